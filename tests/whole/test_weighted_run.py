"""Schedules that follow from measures: weights of stale plays by hand from the tables, replays, stops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from pipeline.plan.assemble import assemble
from pipeline.replays.plan import replay_plan
from pipeline.replays.replayer import replay
from pipeline.replays.settings import overridden
from pipeline.replays.source import Source
from pipeline.run.session import session
from pipeline.settings.reading import parse_settings
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from stages.base import Quiet
from tests.whole.test_blocks import of_blocks, same_blocks, stop_before
from tests.whole.test_iteration import _Halt, play
from tests.whole.test_suffix import line

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

KEYS = ["episode_id", "turn_index"]


def weighted(raw: dict[str, Any], name: str, **options: Any) -> dict[str, Any]:
    raw = line(raw, name, order="forward", rollouts="reweighted")
    raw["schedule"]["options"] |= options
    return raw | {"trust_region": {"radius": 1000.0}, "ppo": {"learning_rate": 0.02, "epochs": 2}}


@pytest.fixture(scope="module")
def whole(ray_cluster: None, scripted_module: dict[str, Any]) -> tuple[Run, Finished]:
    """One iteration of reweighted plays."""
    run, (done,) = play(weighted(scripted_module, "weighted"))
    return run, done


def test_rows_weigh_what_the_updates_before_made_of_their_prefixes(whole: tuple[Run, Finished]) -> None:
    run, done = whole
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


def test_reweighted_blocks_are_replayed_bit_for_bit(whole: tuple[Run, Finished]) -> None:
    run, _ = whole
    run.read_info()
    plan = replay_plan(Source(run), overridden(run, []), label="again", again=True)
    # rewards and credit once, a partition in each block, token advantages in the last two; the weights of
    # prefixes are what updates have left, and are read as they are stored
    assert replay(plan, [0], Quiet()).verified == 2 + 3 + 2


def stopped(raw: dict[str, Any], halts: list[tuple[str, int]], iterations: int) -> Run:
    """A run that is stopped before each of these stages, by block, of its last iteration, and then ends."""
    for stage, block in halts:
        with session(assemble(parse_settings(raw)), signals=False) as runner:
            while runner.next_index() < iterations - 1:
                runner.run_iteration()
            stop_before(runner, stage, block)
            with pytest.raises(_Halt):
                runner.run_iteration()
    run, _ = play(raw)
    return run


def blocks_of(run: Run, index: int) -> list[tuple[bool, list[str]]]:
    """Of each block: whether the team played, and which models were updated."""
    return [
        ("turns" in block, sorted(n.partition("/")[2] for n in block if n.startswith("updates/")))
        for block in of_blocks(run, index)
    ]


def shift_budget(run: Run, block: int, model: str) -> float:
    return float(of_blocks(run)[block]["shift"].filter(model_id=model)["shift_budget"].item())


def test_a_budget_plays_anew_where_weights_would_not_do_and_a_stop_changes_nothing(
    scripted: Callable[..., dict[str, Any]],
) -> None:
    def raw(name: str, max_shift: float) -> dict[str, Any]:
        return weighted(
            scripted(), name, rollouts="budget", order="lowest_ess", max_shift=max_shift, min_ess=0.0
        )

    wide, _ = play(raw("wide", 1e9))
    assert blocks_of(wide, 0) == [(True, ["r0"]), (False, ["r1"]), (False, ["r2"])]
    first, second = shift_budget(wide, 0, "r1"), shift_budget(wide, 1, "r2")
    assert 0 < first < second  # of one teammate, and of two
    run, _ = play(raw("budget", (first + second) / 2))
    assert blocks_of(run, 0) == [(True, ["r0"]), (False, ["r1"]), (True, ["r2"])]
    halts = [("update/r0", 0), ("reweight/r1", 1), ("rollout", 2)]
    same_blocks(stopped(raw("stopped", (first + second) / 2), halts, 1), run, [0])


def promised(run: Run, unit: list[str]) -> float:
    """What the updates of a unit in iteration 0 promised for each nat."""
    rows = [b[f"trust/{m}"].row(0, named=True) for b in of_blocks(run) for m in unit if f"trust/{m}" in b]
    return float(sum(row["surrogate"] for row in rows) / sum(row["per_episode"] for row in rows))


def test_coloured_groups_in_the_order_of_what_updates_promised_and_a_stop_changes_nothing(
    scripted: Callable[..., dict[str, Any]],
) -> None:
    def raw(name: str) -> dict[str, Any]:
        made = weighted(scripted(), name, rollouts="fresh", order="max_gain_per_kl", groups="coloured")
        made["workflow"] = {"use": "tests.support.small_teams:fork"}
        made["roles"] = {role: {"model": f"r{k}"} for k, role in enumerate(("left", "right", "end"))}
        return made

    run, _ = play(raw("coloured"), iterations=2)
    assert blocks_of(run, 0) == [(True, ["r0", "r1"]), (True, ["r2"])]
    is_first = promised(run, ["r0", "r1"]) >= promised(run, ["r2"])
    assert blocks_of(run, 1)[0][1] == (["r0", "r1"] if is_first else ["r2"])
    same_blocks(stopped(raw("halted"), [("update/r0", 0), ("rollout", 1)], 2), run, [0, 1])
