"""Which of two plays of a task is better: pairs of stored plays, plays as text, and measures of a ranking."""
