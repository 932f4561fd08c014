"""What was a stored message worth? Stored episodes are played with one reply replaced, and compared."""
