"""Which teams ship with Cadre? Each file builds one; the graph and how it is played lie outside."""
