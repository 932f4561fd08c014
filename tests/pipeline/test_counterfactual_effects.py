"""What the page of counterfactual plays says of a role: means that stand for all plays, chosen or not."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest

from pipeline.replays.counterfactual.show import effects_by_role
from workflows.interventions import INTERVENTIONS
from workflows.trajectory import rows_to_table


def row(task: str, effect: float | None, probability: float = 1.0, **other: Any) -> dict[str, Any]:
    played = {"play_id": f"{task}#", "task_id": task, "op": "drop", "role": "r", "tokens": 10, "status": "ok"}
    return {
        **dict.fromkeys(INTERVENTIONS.names),
        **played,
        "effect": effect,
        "select_probability": probability,
        "first_difference": 1,
        **other,
    }


def entries(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return effects_by_role(pl.DataFrame(rows_to_table(rows, INTERVENTIONS)))


def test_a_task_is_one_value_whatever_the_number_of_its_plays() -> None:
    (entry,) = entries([row("a", 1.0), row("a", 1.0), row("a", 1.0), row("b", 0.0)])
    assert (entry["effect"], entry["tasks"], entry["plays"]) == (0.5, 2, 4)
    assert entry["low"] < 0.5 < entry["high"]


def test_plays_that_were_chosen_with_other_chances_count_for_those_that_were_not() -> None:
    """Effects that go with the chance of being played: the plain mean is off, the weighted one is not."""
    luck = random.Random(0)
    every = [(f"t{i}", 0.2 if i % 2 else 0.9, float(i % 2)) for i in range(2000)]
    rows = [row("one", effect, chance) for _, chance, effect in every if luck.random() < chance]
    (entry,) = entries(rows)
    assert entry["effect"] == pytest.approx(0.5, abs=0.05)
    plain = sum(r["effect"] for r in rows) / len(rows)
    assert plain < 0.3


def test_what_was_not_played_or_has_no_return_is_in_no_mean() -> None:
    rows = [
        row("a", 0.5),
        row("a", None, status="infra_error", first_difference=None),
        row("b", None, play_id=None, skipped="why"),
        row("a", 0.0, op="none", role=None),
        row("a", 0.25, op="mask"),
    ]
    drop, mask = entries(rows)
    assert (drop["op"], drop["plays"], drop["effect"], drop["changed"], drop["tasks"]) == (
        "drop",
        2,
        0.5,
        0.5,
        1,
    )
    assert (mask["op"], mask["effect"], mask["low"]) == ("mask", 0.25, None)
    assert entries([row("a", None, status="timeout")])[0]["effect"] is None
