"""A reward for tests of whole runs: it tells replies apart whatever model wrote them."""

from __future__ import annotations

from rewards.base import PlayedEpisode


def distinct_characters(episode: PlayedEpisode) -> list[float | None]:
    """How many different characters a reply has: an untrained model's replies differ in this too."""
    values: list[float | None] = [None] * len(episode.turns)
    for position in episode.trainable():
        values[position] = float(len(set(episode.turns[position]["response_text"] or "")))
    return values
