"""How does vLLM sample tokens for us? Its process and our worker in it; no protocol of ours is here."""
