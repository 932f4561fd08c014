"""How good what happened was, and who gets the credit."""
