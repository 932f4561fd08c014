"""Rewards that tests of whole runs name by their import path."""

from __future__ import annotations

from collections.abc import Sequence

from rewards.base import PlayedEpisode


def sometimes(episode: PlayedEpisode) -> Sequence[float | None]:
    """A number that differs between the plays of every third task, and is 0 for all plays of the others."""
    task, _, sample = episode.episode_id.partition("/")[2].rpartition("/")
    value = float(int(sample) % 2) if sum(map(ord, task)) % 3 == 0 else 0.0
    addressed = set(episode.trainable())
    return [value if place in addressed else None for place in range(len(episode.turns))]
