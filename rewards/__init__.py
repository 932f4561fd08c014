"""How good was what happened, and who gets the credit? Tables in, tables out; no engine, model or cluster."""
