"""How tables become the next tables, at scale."""
