"""Rewards for tests of whole runs, whatever model replies."""

from __future__ import annotations

from rewards.base import PlayedEpisode


def distinct_characters(episode: PlayedEpisode) -> list[float | None]:
    """How many different characters a reply has: an untrained model's replies differ in this too."""
    values: list[float | None] = [None] * len(episode.turns)
    for position in episode.trainable():
        values[position] = float(len(set(episode.turns[position]["response_text"] or "")))
    return values


def constant(episode: PlayedEpisode) -> list[float | None]:
    """1 for every trained turn: nothing can be learned from it."""
    values: list[float | None] = [None] * len(episode.turns)
    for position in episode.trainable():
        values[position] = 1.0
    return values
