"""How does an iteration, an evaluation or a training run? Plans come in; what is left lies in the store."""
