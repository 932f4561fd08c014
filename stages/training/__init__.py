"""How do weights move? A trainer's processes, updates and checkpoints; rows come ready from the partition."""
