"""Engines: what samples tokens. One small protocol, several back ends."""
