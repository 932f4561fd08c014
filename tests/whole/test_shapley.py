"""Shapley values of what a reply reads, by replays: in a run that trains on them, and of a stored run."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest

from pipeline.replays.counterfactual.command import run_counterfactual
from pipeline.replays.counterfactual.plan import Asked
from pipeline.store.effects import effects_of
from pipeline.views.transcript import _change
from tests.whole.test_iteration import play
from tests.whole.test_suffix import line
from workflows.errors import UsageError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]


def test_a_run_trains_on_shares_and_a_stored_run_is_asked_for_them(
    scripted_module: dict[str, Any], capsys: Any
) -> None:
    raw = line(scripted_module, "shapley")
    raw.pop("schedule")
    raw["models"] = {"team": raw["models"]["r0"]}
    raw["roles"] = {role: {"model": "team"} for role in ("left", "right", "end")}
    raw["workflow"] = {"use": "tests.support.small_teams:joined"}
    raw["models"]["team"]["engine_options"] = {"reply": "tests.support.small_teams:of_prompt"}
    raw["data"]["tasks_per_iteration"] = 2
    raw["credit"] = {"use": "group_relative", "channels": [{"use": "shapley_replayed", "name": "shares"}]}
    raw["counterfactuals"] = {"ops": ["shapley"], "permutations": 2}
    run, (done,) = play(raw)
    run.read_info()
    rows, sets, credit = (
        pl.DataFrame(done.tables[name].read()) for name in ("interventions", "coalitions", "message_credit")
    )
    plays = 2 * 4
    assert sets.height == plays * 4  # both, either and none of the two that the last role reads
    shares = rows.filter(op="shapley")
    assert shares.height == credit.height == plays * 2
    ends = sets.with_columns(size=pl.col("present").list.len()).select("episode_id", "size", "return")
    total = ends.filter(size=2).join(ends.filter(size=0), on="episode_id").sort("episode_id")
    by_play = shares.group_by("episode_id").agg(pl.col("effect").sum()).sort("episode_id")
    assert by_play["effect"].to_list() == pytest.approx((total["return"] - total["return_right"]).to_list())
    assert shares["effect"].n_unique() > 4
    assert credit["credit"].sum() == pytest.approx(by_play["effect"].sum())
    metrics = done.metrics
    assert metrics["counterfactual/tokens"] == sets["tokens"].sum() == plays * 3 * 31
    assert metrics["counterfactual/shapley/replays"] == plays * 2
    assert metrics["credit/shares/rows"] == plays * 2

    root, name = run.folder.path.rsplit("/", 1)
    run_counterfactual(name, root, Asked("shapley", permutations=2), as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert {entry["role"]: entry["op"] for entry in said["effects"]} == {
        "left": "shapley",
        "right": "shapley",
    }
    assert said["tokens"] == plays * 3 * 31
    run_counterfactual(name, root, Asked("shapley", permutations=2))
    assert "share of an input" in capsys.readouterr().out
    changes = effects_of(run, done, frozenset(shares["episode_id"]))
    told = [_change(effect) for effects in changes.values() for effect in effects]
    assert len(told) == 2 * plays * 2  # of the run, and of the replay
    assert all(line.startswith("the Shapley value of this reply in what turn 2 makes of") for line in told)
    with pytest.raises(UsageError, match="--permutations has no effect without shapley"):
        run_counterfactual(name, root, Asked("drop", permutations=2))
