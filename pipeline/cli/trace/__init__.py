"""What does each verb of `trace` do? A module each, as the verbs themselves are modules of `cli`."""
