"""Schedules that weigh rows of stale plays, in whole runs: weights by hand from the tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from tests.whole.test_blocks import of_blocks
from tests.whole.test_iteration import play
from tests.whole.test_suffix import line

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

KEYS = ["episode_id", "turn_index"]


def weighted(raw: dict[str, Any], name: str, **options: Any) -> dict[str, Any]:
    raw = line(raw, name, order="forward", rollouts="reweighted")
    raw["schedule"]["options"] |= options
    return raw | {"trust_region": {"radius": 1000.0}, "ppo": {"learning_rate": 0.02, "epochs": 2}}


def test_rows_weigh_what_the_updates_before_made_of_their_prefixes(
    scripted: Callable[..., dict[str, Any]],
) -> None:
    run, (done,) = play(weighted(scripted(), "weighted"))
    blocks = of_blocks(run)
    assert [("turns" in block, f"updates/r{k}" in block) for k, block in enumerate(blocks)] == [
        (True, True),
        (False, True),
        (False, True),
    ]
    logs = pl.concat([blocks[k][f"ratios/r{k}"] for k in (0, 1)])
    before = logs.group_by("episode_id").agg(pl.col("log_ratio").sum())
    weights = blocks[2]["prefix_weights/r2"].join(before, on="episode_id")
    assert weights.height == blocks[2]["partition/r2"].height == 6 * 4
    for row in weights.iter_rows(named=True):
        assert row["log_weight"] == pytest.approx(row["log_ratio"], abs=1e-12)
        assert row["weight"] == pytest.approx(min(math.exp(row["log_ratio"]), 2.0))
    assert weights["log_weight"].abs().max() > 1e-3
    tokens = blocks[2]["token_advantages/r2"].join(weights, on=KEYS).join(blocks[2]["partition/r2"], on=KEYS)
    for row in tokens.iter_rows(named=True):
        assert row["advantages"] == pytest.approx(
            [row["advantage"] * row["weight"]] * len(row["advantages"]), rel=1e-5
        )
    assert done.metrics["shift/r2/lag_updates"] == 2
    assert 0 < done.metrics["shift/r2/ess_prefix"] < 1
    assert done.metrics["shift/r0/stale_gap"] == 0  # nobody had been updated before it
