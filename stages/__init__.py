"""How do tables become the next tables, at scale? What runs when, and with which settings, is in pipeline."""
