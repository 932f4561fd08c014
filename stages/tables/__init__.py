"""How does a table lie on disk or in a bucket? Parquet parts and filesystems; workflows name the columns."""
