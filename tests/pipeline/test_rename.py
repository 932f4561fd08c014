"""A run that is renamed is found by its new name, by MLflow, replays and whatever else names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.cli.app import app
from pipeline.replays.rename import rename_pages
from pipeline.settings.reading import load_settings
from pipeline.store.lock import RunLock
from pipeline.store.rename import rename_run
from pipeline.store.run import Run
from pipeline.store.runs import find_run, list_runs
from pipeline.store.shelf import replay_info
from tests.support.mlflow_records import client_of, tracker_at
from tests.support.small_runs import make_run
from workflows.errors import UsageError


@pytest.fixture
def root(tmp_path: Path) -> str:
    make_run(tmp_path, "old", [0.1, 0.25], scores={2: 0.5}, settings={"tracking": {"uri": "none"}})
    make_run(tmp_path, "other", [0.1])
    make_run(tmp_path, "swept-s0", [0.5])
    (tmp_path / "swept").mkdir()
    (tmp_path / "swept/sweep.json").write_text(json.dumps({"runs": [{"name": "swept-s0"}]}))
    replay = tmp_path / "old/replays/rloo"
    replay.mkdir(parents=True)
    source = {"name": "old", "uri": str(tmp_path / "old"), "split": None}
    (replay / "replay.json").write_text(json.dumps({"source": source, "iterations": [], "created_at": 5.0}))
    return str(tmp_path)


def test_the_run_its_settings_and_its_replays_have_the_new_name(root: str) -> None:
    done = CliRunner().invoke(app, ["runs", "--root", root, "--rename", "old", "new"])
    assert done.exit_code == 0, done.output
    assert "run 'old' is called 'new' now" in done.output
    assert "--set run.name=new" in done.output
    run = find_run(root, "new")
    assert run.info["name"] == "new"
    assert load_settings(str(Path(root) / "new/settings.toml"), []).run.name == "new"
    source = replay_info(run, "rloo")["source"]
    assert source == {"name": "new", "uri": run.folder.url, "split": None}
    (listed,) = [each for each in list_runs(root) if each["name"] == "new"]
    assert listed["replays"] == ["rloo"]
    assert listed["score"]["mean"] == 0.5
    with pytest.raises(UsageError, match="no run 'old'"):
        find_run(root, "old")


@pytest.mark.parametrize(
    ("name", "new", "says"),
    [
        ("old", "other", "is there already; choose another name"),
        ("old", "a/b", "'a/b' can't be the name of a run; use letters"),
        ("old", "", "can't be the name of a run"),
        ("old", "swept", "is there already"),
        ("odl", "new", r"no run 'odl' under .*\(did you mean 'old'\?\)"),
        ("../old", "new", "no run"),
        ("swept", "new", "is a sweep, whose runs are called after it"),
        ("swept-s0", "new", "belongs to sweep 'swept', which finds its runs by their names"),
    ],
)
def test_what_can_not_be_renamed_is_refused_with_the_reason(
    root: str, name: str, new: str, says: str
) -> None:
    before = sorted(str(path) for path in Path(root).rglob("*"))
    with pytest.raises(UsageError, match=says):
        rename_run(root, name, new)
    assert sorted(str(path) for path in Path(root).rglob("*")) == before


def test_a_run_that_another_one_stands_on_keeps_its_name(root: str, tmp_path: Path) -> None:
    weights = f"{root}/old/checkpoints/team/00002/weights"
    make_run(tmp_path, "later", [0.1], settings={"models": {"team": {"checkpoint": weights}}})
    with pytest.raises(
        UsageError, match=r"checkpoint of run 'later' is .*could not go on.*export FOLDER --run old"
    ):
        rename_run(root, "old", "new")


def test_a_run_that_a_process_writes_to_keeps_its_name(root: str) -> None:
    run = Run(root, "old")
    with RunLock(run.folder), pytest.raises(UsageError, match="is being written by"):
        rename_run(root, "old", "new")
    assert run.exists


@pytest.mark.slow
def test_mlflow_goes_on_with_the_pages_of_the_run_its_replays_and_its_ablations(
    uri: str, experiment: str, tmp_path: Path
) -> None:
    tracking = {"uri": uri, "experiment": experiment}
    run = make_run(tmp_path, "old", [0.1], settings={"tracking": tracking})
    for label in ("rloo", "both/a"):
        run.folder.write_text(f"replays/{label}/replay.json", json.dumps({"created_at": 5.0}))

    def keys(url: str) -> dict[str, str]:
        """As `run.tracker`, `replays.record` and `replays.ablation.record` make them."""
        return {
            "run": f"{url} 0.0",
            "replay": f"{url}/replays/rloo 5.0",
            "ablation": f"{url}/replays/both",
            "variant": f"{url}/replays/both a",
        }

    def tags(url: str) -> dict[str, dict[str, str]]:
        of_replay = {"source_run": url, "run_folder": f"{url}/replays/rloo", "replay": "rloo"}
        of_ablation = {"source_run": url, "run_folder": f"{url}/replays/both"}
        return {
            "run": {"run_folder": url, "run": Path(url).name},
            "replay": of_replay,
            "ablation": of_ablation,
            "variant": of_ablation | {"variant": "a"},
        }

    names = {"run": "old", "replay": "old replay rloo", "ablation": "old ablation both", "variant": "both: a"}

    def begin(url: str) -> dict[str, Any]:
        ids = {}
        for kind, key in keys(url).items():
            tracker = tracker_at(uri, experiment)
            ids[kind] = tracker.start(names[kind], None, {}, tags(url)[kind], key)
            tracker.close()
        return ids

    before = begin(run.folder.url)
    moved = rename_run(str(tmp_path), "old", "new")
    assert rename_pages(moved, run) == "4 pages in MLflow renamed"
    client = client_of(uri)
    pages = {kind: client.get_run(run_id) for kind, run_id in before.items()}
    assert {kind: page.info.run_name for kind, page in pages.items()} == {
        "run": "new",
        "replay": "new replay rloo",
        "ablation": "new ablation both",
        "variant": "both: a",
    }
    for kind, page in pages.items():
        assert tags(moved.folder.url)[kind].items() <= page.data.tags.items()
    assert begin(moved.folder.url) == before  # later processes go on with the same pages


def test_an_mlflow_that_does_not_work_is_said_and_the_run_is_renamed(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("not a database")
    run = make_run(tmp_path, "old", [0.1], settings={"tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"}})
    moved = rename_run(str(tmp_path), "old", "new")
    assert "does not work" in rename_pages(moved, run)
    assert find_run(str(tmp_path), "new").exists
