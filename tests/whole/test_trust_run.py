"""Runs whose updates are taken back in part or whole: broken off at their borders, they end as unbroken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.store.run import Run
from tests.whole.test_blocks import in_turn, of_blocks, same_blocks, stopped_in_the_second
from tests.whole.test_iteration import play

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

SMALL: dict[str, Any] = {"data": {"tasks_per_iteration": 2}, "rollout": {"group_size": 2}}
HALTS = [("update/first", 0), ("rollout", 1), ("update/second", 1)]


def taken_back(scripted: Callable[..., dict[str, Any]], name: str) -> dict[str, Any]:
    """Two models at a learning rate that is far too high, few whole checkpoints: the first is rejected, the
    second kept in part."""
    raw = in_turn(
        scripted,
        **SMALL,
        run={"name": name},
        ppo={"epochs": 2, "learning_rate": 0.5, "entropy_coefficient": 0.1},
        trust_region={"radius": 0.01},
        checkpoints={"every": 9},
    )
    raw["models"]["first"]["trust_region"] = {"reject": True}
    raw["models"]["second"]["trust_region"] = {"backtrack": 20, "penalty": 0.1}
    return raw


def decided(run: Run, index: int, model: str) -> dict[str, Any]:
    (frame,) = [b[f"trust/{model}"] for b in of_blocks(run, index) if f"trust/{model}" in b]
    return dict(frame.row(0, named=True))


def test_updates_that_are_taken_back_survive_kills_and_are_made_again_alike(scripted: Any) -> None:
    whole, done = play(taken_back(scripted, "whole"), iterations=2)
    of_first = [decided(whole, index, "first") for index in (0, 1)]
    assert [row["decision"] for row in of_first] == ["rejected", "rejected"]
    assert [row["candidate_version"] for row in of_first] == [1, 2]
    assert [row["version_before"] for row in of_first] == [0, 0]
    assert of_first[1]["radius"] == of_first[0]["radius"] / 2
    of_second = [decided(whole, index, "second") for index in (0, 1)]
    assert [row["decision"] for row in of_second] == ["partly", "partly"]
    assert [row["scale"] for row in of_second] == [1.0, 2.0]
    assert all(row["divergence"] <= row["radius"] < row["whole_divergence"] for row in of_second)
    assert done[1].metrics["shift/first/rejected"] == 1
    assert done[1].metrics["shift/second/outside"] == 0
    assert any("candidate 2 of model 'first' is rejected" in note for note in done[1].notes)

    same_blocks(stopped_in_the_second(taken_back(scripted, "broken"), HALTS), whole, [0, 1])
