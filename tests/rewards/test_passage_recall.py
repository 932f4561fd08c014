"""Recall of gold passages by an episode's searches."""

from __future__ import annotations

from typing import Any

import pytest

from rewards.base import PlayedEpisode
from rewards.passage_recall import PassageRecall


def episode(*found: list[str] | None, gold: Any = ("a", "b"), valid: bool = True) -> PlayedEpisode:
    llm = {"event": "llm", "trainable": True, "status": "ok", "format_valid": valid, "tool_result": None}
    tools = [
        {
            "event": "tool",
            "trainable": False,
            "tool_result": None if ids is None else {"documents": [{"id": i} for i in ids]},
        }
        for ids in found
    ]
    return PlayedEpisode("e", "ok", {}, {"passages": list(gold)}, [llm, *tools])


@pytest.mark.parametrize(
    ("found", "recall"),
    [
        ((), 0.0),
        (([],), 0.0),
        ((None,), 0.0),
        ((["a", "x"],), 0.5),
        ((["a"], ["a"]), 0.5),
        ((["b"], ["a"]), 1),
    ],
)
def test_all_searches_of_an_episode_count_together(found: Any, recall: float) -> None:
    assert PassageRecall()(episode(*found)) == [recall] + [None] * len(found)


def test_a_reply_that_broke_its_format_found_nothing_by_itself() -> None:
    assert PassageRecall()(episode(["a", "b"], valid=False))[0] == 0.0


def test_a_task_without_gold_passages_is_not_scored() -> None:
    with pytest.raises(ValueError, match="passages"):
        PassageRecall()(episode(["a"], gold=()))
