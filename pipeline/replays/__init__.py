"""Stored tables through the pure stages again: replays of a run, and ablations over one set of turns."""
