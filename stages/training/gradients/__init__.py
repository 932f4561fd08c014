"""Whose gradient is it? An optimizer step's gradient by role and by copy: read, compared and held back."""
