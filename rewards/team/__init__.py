"""How did the members of a team work together? Time, split, choice and cost of an episode as rewards."""
