"""`runs`: what each run has come to, whole names for whoever reads them, and the removal of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.cli.app import app
from pipeline.store.lock import RunLock
from pipeline.store.runs import list_runs, remove_run
from tests.support.small_runs import make_run
from workflows.errors import UsageError

LONG = "a-run-whose-name-is-as-long-as-names-of-sweeps-are-separate-learning_rate-1e-05-s0"


@pytest.fixture
def root(tmp_path: Path) -> str:
    make_run(tmp_path, "plain", [0.1, 0.25], scores={0: 0.3, 2: 0.5})
    make_run(tmp_path, LONG, [0.5], seed=1)
    make_run(tmp_path, "empty", [])
    (tmp_path / "swept").mkdir()
    (tmp_path / "swept/sweep.json").write_text(json.dumps({"runs": [{"name": LONG}]}))
    return str(tmp_path)


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["runs", *arguments])
    return done.exit_code, done.output + (str(done.exception) if done.exception else "")


def test_each_run_has_its_last_return_and_score_its_size_and_its_sweep(root: str) -> None:
    by_name = {each["name"]: each for each in list_runs(root)}
    assert by_name["plain"]["return"] == 0.25
    assert by_name["plain"]["score"] == {"split": "dev", "name": "exact_match", "mean": 0.5, "index": 2}
    files = [path.stat().st_size for path in Path(root, "plain").rglob("*") if path.is_file()]
    assert by_name["plain"]["bytes"] == sum(files)
    assert by_name[LONG]["sweep"] == "swept"
    assert (by_name["empty"]["return"], by_name["empty"]["score"], by_name["empty"]["sweep"]) == (
        None,
        None,
        None,
    )


def test_a_pipe_gets_one_whole_line_a_run(root: str) -> None:
    code, out = run("--root", root)
    assert code == 0
    (line,) = [line for line in out.splitlines() if LONG in line]
    assert "swept" in line
    assert "0.5" in line
    (line,) = [line for line in out.splitlines() if line.startswith("plain")]
    assert "dev exact_match 0.500" in line
    assert "KiB" in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--remove", "plain"], "without a terminal, add --yes"),
        (["--remove", "plian", "--yes"], "did you mean 'plain'"),
        (["--remove", "../plain", "--yes"], "no run or sweep"),
        (["--remove", ".", "--yes"], "no run or sweep"),
        (["--remove", "notes", "--yes"], "neither a run nor a sweep"),
        (["--yes"], "belongs to --remove"),
    ],
)
def test_nothing_is_removed_that_was_not_meant(root: str, arguments: list[str], says: str) -> None:
    (Path(root) / "notes").mkdir()
    before = sorted(path.name for path in Path(root).iterdir())
    code, out = run("--root", root, *arguments)
    assert code != 0
    assert says in out
    assert sorted(path.name for path in Path(root).iterdir()) == before


def test_a_run_is_removed_whole_and_a_sweep_without_its_runs(root: str) -> None:
    assert run("--root", root, "--remove", "plain", "--yes")[0] == 0
    assert run("--root", root, "--remove", "swept", "--yes")[0] == 0
    assert sorted(path.name for path in Path(root).iterdir()) == sorted([LONG, "empty"])


def test_a_run_that_another_one_stands_on_is_not_removed(root: str, tmp_path: Path) -> None:
    weights = f"{root}/plain/checkpoints/team/00002/weights"
    make_run(tmp_path, "later", [0.1], settings={"models": {"team": {"checkpoint": weights}}})
    with pytest.raises(
        UsageError, match=r"checkpoint of run 'later' is .*could not go on.*export FOLDER --run plain"
    ):
        remove_run(root, "plain")
    assert (Path(root) / "plain/run.json").exists()
    remove_run(root, "later")
    remove_run(root, "plain")
    assert not (Path(root) / "plain").exists()


def test_a_run_that_a_process_writes_to_is_not_removed(root: str) -> None:
    from pipeline.store.folder import Folder

    with RunLock(Folder(root).child("plain")), pytest.raises(UsageError, match="plain"):
        remove_run(root, "plain")
    assert (Path(root) / "plain/run.json").exists()
