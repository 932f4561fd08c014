"""What may a settings file say? Sections, defaults and how they are read; nothing of what follows."""
