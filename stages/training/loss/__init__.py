"""What is minimised? Token batches in, loss terms out: pure functions; no network and no optimiser."""
