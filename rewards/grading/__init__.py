"""Is a text right? Text in, a number out; no episodes and no tables."""
