"""Whether a search finds what the question needs: for roles that ask a retriever."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from rewards.answers import kept_format, kept_formats
from rewards.base import PlayedEpisode
from rewards.part import PlayedPart
from workflows.vocabulary import Event


@dataclass(frozen=True, slots=True)
class PassageRecall:
    """The share of `gold["passages"]` among the documents that the episode's tools returned, in [0, 1].

    Each addressed turn that kept its format receives it, others 0: a workflow that searches for something
    else when a reply can't be read owes its luck to nobody. Name the role that writes the queries in
    `roles`; the final answer's F1 says little about a query as long as readers can't read.

    Raises:
        ValueError: the task has no gold passages; the episode is then excluded, not scored 0.
    """

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        wanted = _wanted(episode.gold)
        if not wanted:
            raise ValueError("the task names no gold passages")
        results = [turn["tool_result"] for turn in episode.turns if turn["event"] == Event.TOOL]
        recall = len(wanted & _found(results)) / len(wanted)
        values: list[float | None] = [None] * len(episode.turns)
        for position in episode.trainable():
            values[position] = recall if kept_format(episode.turns[position]) else 0.0
        return values

    def by_columns(self, part: PlayedPart) -> pl.Series:
        tools = part.rows(pl.col("event") == Event.TOOL)
        results: list[list[Any]] = [[] for _ in range(part.num_episodes)]
        decoded = part.decoded("tool_result")
        for row in tools:
            results[part.episode[row]].append(decoded[row])
        recalls = np.full(part.num_episodes, np.nan)  # stays where the one-episode form fails
        for episode, task in enumerate(part.task):
            with contextlib.suppress(Exception):
                wanted = _wanted(part.tasks.gold[task])
                recalls[episode] = len(wanted & _found(results[episode])) / len(wanted)
        recall = recalls[part.episode]
        values = np.where(kept_formats(part), recall, 0.0 * recall)
        return part.series(values, part.receives | np.isnan(values))


def _wanted(gold: Mapping[str, Any]) -> set[Any]:
    return set(gold.get("passages") or ())


def _found(results: Iterable[Any]) -> set[Any]:
    """Ids of the documents that tools returned."""
    return {
        document["id"]
        for result in results
        if isinstance(result, dict)
        for document in result.get("documents", ())
    }
