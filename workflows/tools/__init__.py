"""Tools that roles can use."""
