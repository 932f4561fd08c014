"""How is a corpus searched from files, not from memory? Builds and maps them; scores in memory lie above."""
