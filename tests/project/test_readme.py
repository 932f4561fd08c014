"""The README's commands and code are the ones that work."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipeline.settings.reading import parse_settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_ci_calls_the_readmes_test_command_and_make_knows_every_target_it_names() -> None:
    assert "`make test`" in README
    assert re.search(r"^make test$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)`", README)) | set(
        re.findall(r"^make ([a-z-]+)", README, re.MULTILINE)
    )
    assert named <= targets
    assert "iteration" in named


def test_every_command_of_the_readme_is_one_that_the_command_line_knows() -> None:
    commands = set(re.findall(r"python -m pipeline ((?:run )?[a-z-]+)", README))
    assert {"check", "show", "runs", "run iteration"} <= commands
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", *command.split(), "--help"], cwd=ROOT, capture_output=True
        )
        assert done.returncode == 0, command


@pytest.mark.parametrize("text", [t for t in blocks("toml") if "acme" not in t])
def test_the_settings_in_the_readme_are_valid(text: str) -> None:
    parse_settings(tomllib.loads(text))


def test_the_workflow_in_the_readme_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workflow, trial = (next(b for b in blocks("python") if mark in b) for mark in ("def build", "play_once"))
    (tmp_path / "acme_team").mkdir()
    (tmp_path / "acme_team/debate.py").write_text(workflow)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trial.py").write_text(f"from acme_team.debate import build\n{trial}")
    done = subprocess.run([sys.executable, "trial.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_paths_that_the_readme_links_to_exist() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
