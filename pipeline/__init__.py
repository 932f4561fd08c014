"""What runs, in which order, with which settings, and where it is recorded."""
