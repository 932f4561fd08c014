"""Graders: text in, a number out. No episodes, no tables."""
