"""Which of two plays of a task is the better one? What learns to say so is in stages/training/ranking.py."""
