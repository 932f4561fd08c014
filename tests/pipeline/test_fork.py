"""A run that begins as a copy of another: what it has, its name, and that neither changes the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.store.fork import fork_run
from pipeline.store.run import Run
from tests.support.small_runs import make_run
from workflows.errors import UsageError


def parent_of(root: Path) -> Run:
    run = make_run(root, "parent", [0.5, 0.6])
    run.write_info(tracker={"run_id": "x"}, best={"dev": 1}, begins={"a": 3})
    folder = run.folder
    folder.write_text("checkpoints/a/00004/weights/model.safetensors", "weights")
    folder.write_text("checkpoints/a/00004/manifest.json", json.dumps({"files": []}))
    folder.write_text("report/run.html", "a page")
    return run


def test_a_fork_has_what_its_parent_had_and_shares_its_files(tmp_path: Path) -> None:
    parent = parent_of(tmp_path)
    run = fork_run(parent, "child")
    assert (run.iterations(), run.weights_versions("a")) == ([0, 1], [4])
    assert run.info["parent"] == {"run": "parent", "uri": parent.folder.url, "iterations": 2}
    assert (run.info["tracker"], run.info["best"], run.begins("a")) == ({}, {"dev": 1}, 3)
    assert run.info["identity"] == parent.info["identity"]
    assert 'name = "child"' in (run.folder.read_text("settings.toml") or "")
    assert run.folder.read_text("report/run.html") is None
    one, other = (Path(r.folder.path, "checkpoints/a/00004/weights/model.safetensors") for r in (parent, run))
    assert one.samefile(other)  # a hard link


def test_a_fork_and_its_parent_go_on_without_each_other(tmp_path: Path) -> None:
    parent = parent_of(tmp_path)
    run = fork_run(parent, "child")
    run.folder.write_text("iterations/00000/done.json", "{}")
    run.folder.remove("checkpoints")
    assert json.loads(parent.iteration(0).folder.read_text("done.json") or "")["metrics"]
    assert parent.weights_versions("a") == [4]


def test_a_fork_that_was_killed_is_begun_anew(tmp_path: Path) -> None:
    parent = parent_of(tmp_path)
    half = Run(str(tmp_path), "child")
    half.folder.write_text("iterations/00007/done.json", "{}")
    assert not half.exists
    assert fork_run(parent, "child").iterations() == [0, 1]


def test_what_can_not_be_forked_is_refused(tmp_path: Path) -> None:
    parent = parent_of(tmp_path)
    fork_run(parent, "child")
    with pytest.raises(UsageError, match="is there already"):
        fork_run(parent, "child")
    unfinished = make_run(tmp_path, "unfinished", [0.1], unfinished=True)
    with pytest.raises(UsageError, match="iteration 1 of run 'unfinished' is unfinished"):
        fork_run(unfinished, "other")
