"""How does a stored thing look? Tables, plots, transcripts and progress as text and pictures; no command."""
