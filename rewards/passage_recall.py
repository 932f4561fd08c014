"""Whether a search finds what the question needs: for roles that ask a retriever."""

from __future__ import annotations

from dataclasses import dataclass

from rewards.answers import kept_format
from rewards.base import PlayedEpisode


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
        wanted = set(episode.gold.get("passages") or ())
        if not wanted:
            raise ValueError("the task names no gold passages")
        found = {
            document["id"]
            for turn in episode.turns
            if turn["event"] == "tool" and isinstance(turn["tool_result"], dict)
            for document in turn["tool_result"].get("documents", ())
        }
        recall = len(wanted & found) / len(wanted)
        values: list[float | None] = [None] * len(episode.turns)
        for position in episode.trainable():
            values[position] = recall if kept_format(episode.turns[position]) else 0.0
        return values
