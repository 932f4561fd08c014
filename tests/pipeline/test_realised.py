"""Realised gains: paired where plays are, chances by hand, and told of updates with plays on both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.metrics.realised import gain_of, mcnemar, realised_gains
from tests.pipeline.test_shift import stored
from workflows.trajectory import CREDIT, TURNS


def returns(*values: float, tasks: str = "t") -> pl.DataFrame:
    rows = [(f"{tasks}{k}", 0, value) for k, value in enumerate(values)]
    return pl.DataFrame(rows, schema=["task_id", "sample", "return"], orient="row")


def test_plays_of_the_same_tasks_are_paired_and_falls_are_told_from_rises() -> None:
    gain = gain_of(returns(1, 1, 0, 0, 0), returns(1, 0, 1, 1, 0))
    assert gain["realised_gain"] == pytest.approx(0.2)
    assert (gain["regressions"], gain["improvements"]) == (0.2, 0.4)
    assert gain["mcnemar_p"] == pytest.approx(1.0)  # 2 against 1 of 3


def test_plays_of_other_tasks_have_a_difference_of_means_alone() -> None:
    gain = gain_of(returns(0, 1), returns(1, 1, tasks="u"))
    assert set(gain) == {"realised_gain", "realised_error"}
    assert gain["realised_gain"] == 0.5
    assert gain["realised_error"] == pytest.approx(0.5)


@pytest.mark.parametrize(("rose", "fell", "chance"), [(0, 0, 1), (5, 0, 2 / 32), (0, 5, 2 / 32), (3, 3, 1)])
def test_the_chance_of_an_uneven_split(rose: int, fell: int, chance: float) -> None:
    assert mcnemar(rose, fell) == pytest.approx(chance)


@pytest.mark.parametrize(
    ("updated", "told"),
    [({"a": 0, "b": 1}, {"a"}), ({"a": 0, "b": 0}, set()), ({"a": 1}, set())],
)
def test_only_an_update_alone_between_two_rollouts_has_a_gain(
    updated: dict[str, int], told: set[str], tmp_path: Path
) -> None:
    turns: list[dict[str, Any]] = [
        {"episode_id": f"{block}/{k}", "turn_index": 0, "block": block, "task_id": f"t{k}", "sample": 0}
        for block in (0, 1)
        for k in range(3)
    ]
    credit = [{"episode_id": t["episode_id"], "turn_index": 0, "return": float(t["block"])} for t in turns]
    tables = {
        "turns": stored(tmp_path, "turns", TURNS, turns),
        "credit": stored(tmp_path, "credit", CREDIT, credit),
    }
    updates = {m: [{"block": b, "version_before": 0, "version_after": 1}] for m, b in updated.items()}
    gains = realised_gains(tables, updates)
    assert set(gains) == told
    assert all(gain["realised_gain"] == 1 for gain in gains.values())
