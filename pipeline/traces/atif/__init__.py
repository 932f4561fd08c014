"""What is a trace in ATIF? A trajectory of steps with others inside; the survey's is in `traces.survey`."""
