"""What runs, in which order, with which settings, and where is it recorded? Work on tables is in stages."""
