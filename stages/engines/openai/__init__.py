"""How does a model behind an API answer? HTTP, pace and cost; such a model is never trained."""
