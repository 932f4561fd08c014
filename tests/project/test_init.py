"""`init` writes a project that works as it is, and writes over nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.project.init import TAKEN, new_project
from pipeline.report.write import write_report
from pipeline.store.runs import find_run
from workflows.errors import UsageError

ROOT = Path(__file__).parents[2]


def run_in(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("projects") / "acme-team"
    new_project(str(folder))
    return folder


def test_the_package_has_the_folder_s_name_and_no_built_in_one(project):
    assert (project / "acme_team" / "team.py").is_file()
    assert not {p.name for p in project.iterdir() if p.is_dir()} & {
        "workflows",
        "rewards",
        "stages",
        "pipeline",
    }
    for file in project.rglob("*"):
        assert not file.is_file() or "PACKAGE" not in file.read_text("utf-8"), file


def test_its_own_test_passes_and_check_finds_nothing_in_the_way(project):
    tests = run_in(project, "pytest", "-q", "-p", "no:cacheprovider")
    assert tests.returncode == 0, tests.stdout
    check = run_in(project, "pipeline", "check", "--config", "scripted.toml")
    assert check.returncode == 0, check.stderr
    assert "acme_team.team:build" in check.stdout


def test_its_settings_for_a_real_model_are_complete(project, monkeypatch):
    from pipeline.plan.assemble import assemble
    from pipeline.settings.reading import load_settings

    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    plan = assemble(load_settings("pipeline.toml", []))
    assert [item.name for item in plan.stages[2].rewards.items] == ["RightAndBrief", "format"]
    assert plan.workflow.answer_step == "answer"


@pytest.mark.slow
def test_a_whole_iteration_runs_on_the_stand_in_and_can_be_looked_at(project):
    done = run_in(
        project, "pipeline", "run", "iteration", "--config", "scripted.toml", "--set", 'tracking.uri="none"'
    )
    assert done.returncode == 0, done.stderr
    assert "16 episodes" in done.stdout
    for _ in range(3):  # as long as an alarm needs its sign
        done = run_in(
            project,
            "pipeline",
            "run",
            "iteration",
            "--config",
            "scripted.toml",
            "--set",
            'tracking.uri="none"',
        )
        assert done.returncode == 0, done.stderr
    assert "sampler and trainer" not in done.stdout + done.stderr  # the stand-in has no logprobs to speak of
    report = write_report(find_run(str(project / "runs"), "latest"))
    assert (report.episodes, report.turns, report.texts_only) == (64, 192, ())


@pytest.mark.parametrize("name", [*sorted(TAKEN), "json", "polars", "class", "2nd", "a-b", ""])
def test_a_name_that_would_hide_another_package_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match="package name"):
        new_project(str(tmp_path / (name or "7")), name or None)
    assert not list(tmp_path.iterdir())


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        new_project(str(tmp_path))
    with pytest.raises(UsageError, match="is a file"):
        new_project(str(tmp_path / "mine.txt"))
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
