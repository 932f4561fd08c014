"""How good is a play, by a model that learned it? A folder with weights, and who computes scores from it."""
