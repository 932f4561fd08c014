"""Which verbs make and use a reward model? `reward-model train` and `best-of`; what they do lies below."""
