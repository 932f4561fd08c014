"""What is a trace in the survey's schema? One JSON object of events and edges; ATIF's is in `traces.atif`."""
