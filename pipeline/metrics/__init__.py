"""Which numbers describe an iteration, and which of them alarm? Pure functions of tables."""
