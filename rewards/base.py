"""What a reward and a credit method are.

A reward looks at one played episode and its task, gold included, and gives one number or null per
turn. A credit method looks at whole groups as one Polars frame. Both are pure: same input, same
bits, no engines, settings or paths, which is why stored runs can be scored again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """One episode as a reward sees it. `turns` are in `turn_index` order, JSON columns decoded."""

    episode_id: str
    status: str
    inputs: Mapping[str, Any]
    gold: Mapping[str, Any]
    turns: Sequence[Mapping[str, Any]]

    def trainable(self) -> list[int]:
        """Positions in `turns` that get a reward: llm turns of a model that is trained."""
        return [i for i, t in enumerate(self.turns) if t["event"] == "llm" and t["trainable"]]


class Reward(Protocol):
    """One number or null for each of `episode.turns`."""

    def __call__(self, episode: PlayedEpisode) -> Sequence[float | None]: ...


class Credit(Protocol):
    """Adds `return`, `advantage` (nullable) to the usable turns of whole groups.

    The frame has the identity columns of `turns`, `role`, `step`, `round`, `branch`, `model_id`,
    `reward`, sorted by key. Rows keep their keys; order does not matter.
    """

    def __call__(self, turns: pl.DataFrame) -> pl.DataFrame: ...
