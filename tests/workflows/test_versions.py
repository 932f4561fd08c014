"""Tables of an older schema version read as today's, or are refused with what to do."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.report.write import write_report
from pipeline.store.run import Run
from pipeline.store.shelf import shelf_of
from pipeline.views.stored import print_place
from stages.tables.parquet import Part, TableRef
from tests.pipeline.test_replay import fingerprint, replayed, stored_run
from tests.support.report_runs import new_run, store, team_episode
from tests.support.version_one import VERSION_1, as_version_1, make_version_1, written
from workflows.errors import UsageError
from workflows.trajectory import _SCHEMAS, SCHEMA_VERSION, TURNS, schema_of
from workflows.versions import STEPS, check_version, stored_columns, upgraded

# Of each table at SCHEMA_VERSION. Where one changes, older tables no longer read: raise the version, say in
# STEPS what the older one is made of, and in the changelog what changed. A new table is added here.
OF_THIS_VERSION = {
    "tasks": "1f642627d407827a",
    "turns": "92b2994bb1ddd83c",
    "episodes": "01c4fc7f71d3566d",
    "rewards": "692aa6ec9955f580",
    "greedy_turns": "92b2994bb1ddd83c",
    "greedy_episodes": "01c4fc7f71d3566d",
    "greedy_rewards": "692aa6ec9955f580",
    "credit": "d95ec8f0c3e00d97",
    "baselines": "a8c15464eb3eef92",
    "partition": "195d8559107360c9",
    "scores": "b104677cba68382b",
    "token_advantages": "1041a4b365743b68",
    "kl_scale": "54ffcc6e2f4e5c28",
    "updates": "abbc3b67b9884183",
    "role_updates": "91e7199c854f227c",
    "role_pairs": "8da7e75ffc7687f0",
    "trust": "a5c5010065154946",
    "ratios": "b6a923a27fe17d6e",
    "trial": "cda4372ec17dcf09",
    "prefix_weights": "c015a3f8ee8daa3a",
    "shift": "c6800f7df2d5cb80",
    "models": "e2afdffe8510a634",
    "evaluation": "e1fcd09a33afd8ff",
    "played_interventions": "79dd6ef9adb57397",
    "interventions": "3b8d9628a2b1f309",
    "played_coalitions": "80b4488661706ad2",
    "coalitions": "c7e56e06f145727b",
    "counterfactual_turns": "92b2994bb1ddd83c",
    "counterfactual_episodes": "01c4fc7f71d3566d",
    "counterfactual_rewards": "692aa6ec9955f580",
    "messages": "2135441e6ee17462",
    "message_credit": "4c364598fd679417",
    "credit_channels": "f4cb93165293d76e",
    "votes": "fd03f98d084ea195",
    "traced": "3b851f8539e91917",
    "probe_turns": "92b2994bb1ddd83c",
    "probe_episodes": "01c4fc7f71d3566d",
    "probe_rewards": "692aa6ec9955f580",
    "played_probes": "35b201da69b9d0ef",
    "probes": "b70d8e03488c0284",
    "stops": "60f7044beb774955",
    "stop_curve": "f911cb4f6d57f5e5",
    "stop_price": "674ba501fef7b35f",
    "stop_rows": "97c588e1ef067dee",
}


def test_a_change_of_a_schema_raises_the_version() -> None:
    have = {
        name: hashlib.blake2b(schema.to_string().encode(), digest_size=8).hexdigest()
        for name, schema in _SCHEMAS.items()
    }
    assert have == OF_THIS_VERSION
    assert set(STEPS) == set(range(1, SCHEMA_VERSION))


@pytest.mark.parametrize("name", VERSION_1)
def test_every_column_of_today_is_made_of_columns_that_version_1_had(name: str) -> None:
    today = schema_of(name)
    old = stored_columns(name, 1, today.names)
    assert set(old) == set(VERSION_1[name].names)
    empty = upgraded(VERSION_1[name].empty_table().select(old), name, 1, today.names)
    assert empty.cast(today).schema.names == today.names


def test_old_turns_read_whole_or_by_columns(tmp_path: Path) -> None:
    rows = [
        {"iteration": 4, "block": 0, "episode_id": "e", "turn_index": 0,
         "response_token_ids": [1, 2, 3], "num_response_tokens": 3, "cut": '{"passages":{"items":2}}'},
        {"iteration": 4, "block": 0, "episode_id": "e", "turn_index": 1,
         "response_token_ids": None, "cut": None},
    ]  # fmt: skip
    today = pa.Table.from_pylist(rows, schema=TURNS)
    part = written(str(tmp_path), Part("part-00000.parquet", 2, 0, ""), as_version_1(today, "turns"))
    ref = TableRef("turns", str(tmp_path), TURNS, (part,), version=1)
    assert ref.read().equals(today)
    assert ref.read(["num_response_tokens", "turn_index"]).to_pydict() == {
        "num_response_tokens": [3, None],
        "turn_index": [0, 1],
    }
    assert stored_columns("turns", 1, ["step", "num_response_tokens"]) == ["step", "response_token_ids"]


@pytest.mark.parametrize(
    ("version", "remedy"), [(99, "upgrade this one"), (0, "with the Cadre that wrote it"), (None, "--new")]
)
def test_what_can_not_be_read_is_refused_with_what_to_do(version: Any, remedy: str, tmp_path: Path) -> None:
    run = new_run(str(tmp_path))
    store(run.iteration(0), {name: [rows] for name, rows in team_episode(0, 1.0).items()})
    file = tmp_path / "demo/iterations/00000/rollout/manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema_version": version}))
    with pytest.raises(UsageError, match=f"rollout/manifest.json: table schema version {version}.*{remedy}"):
        run.iteration(0).tables()
    check_version(SCHEMA_VERSION, "here")


def test_an_old_run_is_shown_and_reported(tmp_path: Path, capsys: Any) -> None:
    run = new_run(str(tmp_path))
    tables = {name: [rows] for name, rows in team_episode(0, 1.0).items() if name in VERSION_1}
    store(run.iteration(0), tables)
    made = _seen(run, capsys)
    make_version_1(run)
    before = fingerprint(tmp_path)
    assert _seen(run, capsys) == made
    assert fingerprint(tmp_path).items() >= before.items()


def _seen(run: Run, capsys: Any) -> str:
    print_place(shelf_of(run), 0, episode=None, episodes=1, full=True, as_json=False)
    write_report(run)
    return str(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_an_old_run_replays_and_stays_as_it_is(tmp_path: Path) -> None:
    run = stored_run(tmp_path, count=1)
    new = replayed(run, "credit.use=rloo", label="before")
    make_version_1(run)
    before = fingerprint(tmp_path)
    again = replayed(run, again=True, label="all")
    assert again.verified == 3  # rewards, credit, partition
    old = replayed(run, "credit.use=rloo", label="after")
    for table in ("credit", "partition/team"):
        assert old.done[0].tables[table].read().equals(new.done[0].tables[table].read())
    assert fingerprint(tmp_path) == before
