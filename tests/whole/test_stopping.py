"""Whole runs that learn when to stop: accounts, prices that go on, and a kill that changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.store.run import Run
from tests.whole.test_blocks import stopped_in_the_second
from tests.whole.test_iteration import play

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

Rows = list[dict[str, Any]]


def learning(scripted: Callable[..., dict[str, Any]], name: str, **stopping: Any) -> dict[str, Any]:
    """One model for all roles of a small team, whose stopper is one of them."""
    raw = scripted(
        run={"name": name},
        data={"tasks_per_iteration": 2},
        rollout={"group_size": 2, "tasks_per_shard": 1},
        stopping={"price": 0.001, "budget": 30, "price_step": 0.5, **stopping},
    )
    raw["workflow"] = {"use": "evaluate_optimise", "options": {"max_rounds": 3, "learned_stop": True}}
    return raw


def rows(run: Run, index: int, table: str) -> Rows:
    found: Rows = run.iteration(index).tables()[0][table].read().to_pylist()
    return found


def test_a_team_learns_when_to_stop_and_a_kill_changes_nothing(scripted: Any) -> None:
    whole, done = play(learning(scripted, "whole", use="hazard"), iterations=2)
    for finished in done:
        for account in finished.accounts:
            account.check()
    stops = rows(whole, 0, "stops")
    assert len(stops) == 4 * 3  # episodes, decision points and the end
    assert {s["stop_source"] for s in stops} == {"learned", "budget"}
    assert all(s["held_back"] for s in stops if s["stop_source"] == "learned")
    assert {p["tokens"] for p in rows(whole, 0, "probes")} == {0}  # a draft stands already
    taken = rows(whole, 0, "stop_rows/team")
    assert len(taken) == 8
    assert not [r for r in rows(whole, 0, "partition/team") if r["role"] == "stopper"]
    assert {r["rule"] for r in rows(whole, 0, "stop_curve")} >= {"fixed", "policy", "hindsight", "return"}
    (first,), (second,) = (rows(whole, index, "stop_price") for index in (0, 1))
    assert second["price"] == first["next_price"] > first["price"] == 0.001
    assert done[1].metrics["stop/price"] == second["price"]
    assert 0 < done[0].metrics["model/team/stop_probability"] < 1
    assert done[1].metrics["model/team/version"] == 2

    raw = learning(scripted, "broken", use="hazard")
    broken = stopped_in_the_second(raw, [("stops", 0), ("update/team", 0)])
    for table in ("stops", "stop_rows/team", "stop_price", "stop_curve"):
        assert rows(broken, 1, table) == rows(whole, 1, table)
    assert [m["hash"] for m in rows(broken, 1, "models/team")] == [
        m["hash"] for m in rows(whole, 1, "models/team")
    ]


@pytest.mark.long
def test_a_team_learns_from_episodes_that_stop(scripted: Any) -> None:
    run, done = play(learning(scripted, "plain", use="all_action", epsilon=1.0), iterations=1)
    for account in done[0].accounts:
        account.check()
    stops = rows(run, 0, "stops")
    stopped = [s for s in stops if s["stop_taken"] and s["stop_source"] == "learned"]
    assert stopped
    assert all(s["weight"] == 1 and s["continue_value"] is not None for s in stopped)
    assert {p["kind"] for p in rows(run, 0, "probes")} <= {"stop", "continue"}
    assert done[0].metrics["model/team/version"] == 1
