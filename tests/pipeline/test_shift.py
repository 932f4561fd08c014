"""Metrics `shift/<unit>/…`: who was updated on whose plays, and the bounds that follow, by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from pipeline.metrics.shift import shift_metrics
from pipeline.tracking.mlflow import trust_tags
from stages.tables.parquet import TableRef, TableSink
from workflows.trajectory import TRUST, TURNS, UPDATES, rows_to_table

TRUSTED = {"a": 0.02, "b": 0.08, "c": 0.18}  # KL of an episode


def stored(folder: Path, name: str, schema: Any, rows: list[dict[str, Any]]) -> TableRef:
    sink = TableSink(name, f"{folder}/{name}", schema)
    return sink.ref([sink.write_part(0, rows_to_table(rows, schema))])


def tables(folder: Path, *, blocks: dict[str, int], played: set[int], trust: bool = True) -> Any:
    """Three units that speak in turn, each updated in its block, on plays of the blocks of `played`."""
    turns = [
        {"episode_id": f"e{block}", "turn_index": k, "model_id": model, "block": block}
        for block in sorted(played)
        for k, model in enumerate("abc")
    ]
    found = {"turns": stored(folder, "turns", TURNS, turns)}
    for model, block in blocks.items():
        row = {"kind": "summary", "model_id": model, "block": block, "version_before": 3, "version_after": 4}
        name = f"updates/{model}"
        found[name] = stored(folder, name, UPDATES, [row | {"sampler_kl": 0.001}])
        decided = {"decision": "accepted", "radius": 0.1, "divergence": 0.2, "surrogate": 0.05}
        decided |= {"per_episode": TRUSTED[model], "model_id": model}
        if trust:
            found[f"trust/{model}"] = stored(folder, f"trust/{model}", TRUST, [decided])
    return found


def test_on_plays_that_all_share_each_unit_has_the_budget_of_those_that_speak_before_it(
    tmp_path: Path,
) -> None:
    metrics = shift_metrics(tables(tmp_path, blocks={"a": 0, "b": 0, "c": 0}, played={0}))
    assert [metrics[f"shift/{m}/lag_updates"] for m in "abc"] == [2, 2, 2]
    budgets = [metrics[f"shift/{m}/shift_budget"] for m in "abc"]
    assert budgets == pytest.approx([0, math.sqrt(0.02 / 2), math.sqrt((0.02 + 0.08) / 2)])
    assert metrics["shift/c/shift_budget_triangle"] == pytest.approx(0.1 + 0.2)
    assert [metrics[f"shift/{m}/kl_share"] for m in "abc"] == pytest.approx([1 / 14, 4 / 14, 9 / 14])
    assert metrics["shift/a/gain_per_kl"] == pytest.approx(2.5)
    assert (metrics["shift/a/outside"], metrics["shift/a/accepted"]) == (1, 1)


def test_forward_on_stale_plays_shifts_contexts_and_reverse_and_fresh_plays_do_not(tmp_path: Path) -> None:
    forward = shift_metrics(tables(tmp_path / "f", blocks={"a": 0, "b": 1, "c": 2}, played={0}))
    assert [forward[f"shift/{m}/lag_updates"] for m in "abc"] == [0, 1, 2]
    assert forward["shift/c/shift_budget"] == pytest.approx(math.sqrt(0.05))
    reverse = shift_metrics(tables(tmp_path / "r", blocks={"c": 0, "b": 1, "a": 2}, played={0}))
    assert [reverse[f"shift/{m}/lag_updates"] for m in "abc"] == [2, 1, 0]
    assert [reverse[f"shift/{m}/shift_budget"] for m in "abc"] == [0, 0, 0]
    fresh = shift_metrics(tables(tmp_path / "n", blocks={"a": 0, "b": 1, "c": 2}, played={0, 1, 2}))
    assert [fresh[f"shift/{m}/lag_updates"] for m in "abc"] == [0, 0, 0]


def test_a_tag_says_what_was_decided_of_each_unit(tmp_path: Path) -> None:
    metrics = shift_metrics(tables(tmp_path, blocks={"a": 0, "b": 0}, played={0}))
    assert trust_tags(metrics) == {"trust/a": "accepted", "trust/b": "accepted"}
    of_b = {"shift/b/accepted": 0.0, "shift/b/partly": 1.0, "shift/b/kept_share": 0.25}
    assert trust_tags(metrics | of_b)["trust/b"] == "partly 0.25"
    assert trust_tags({"shift/b/lag_updates": 1.0}) == {}


def test_without_a_divergence_there_is_what_needs_none(tmp_path: Path) -> None:
    metrics = shift_metrics(tables(tmp_path, blocks={"a": 0, "b": 0}, played={0}, trust=False))
    assert metrics == {
        "shift/a/rollout_train_mismatch": 0.001,
        "shift/a/lag_updates": 1,
        "shift/a/shift_budget": 0,  # b speaks after a
        "shift/a/shift_budget_triangle": 0,
        "shift/b/rollout_train_mismatch": 0.001,
        "shift/b/lag_updates": 1,
    }
