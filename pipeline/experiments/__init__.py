"""How do several runs compare? Sweeps and comparisons; a single run, and how it is run, lie below."""
