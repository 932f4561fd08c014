"""How does an episode look to other programs? As a trace; what a run's tables are is in `pipeline.store`."""
