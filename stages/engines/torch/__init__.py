"""How does plain torch sample tokens? A small engine that repeats bit for bit; vLLM is the fast one."""
