"""Which of two stored plays is better? A model learns it and is judged by it; runs and trainers lie below."""
