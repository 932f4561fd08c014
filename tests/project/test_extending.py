"""The examples of docs/extending.md run, from the page itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from stages.engines.kind import EngineKind
from stages.engines.kinds import engine_class
from tests.support.pages import ROOT, blocks

PAGE = ROOT / "docs" / "extending.md"
PYTHON = blocks("python", PAGE)
TRIALS = [block for block in PYTHON if block.label == "try"]
FILE = re.compile(r"# (acme/\w+\.py)\n")


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    """A working folder with the files that the page's blocks name in their first line."""
    for block in PYTHON:
        if named := FILE.match(block.text):
            file = tmp_path / named[1]
            file.parent.mkdir(exist_ok=True)
            assert not file.exists(), f"{named[1]} is shown twice"
            file.write_text(block.text, "utf-8")
    return tmp_path


@pytest.mark.parametrize("trial", TRIALS, ids=lambda block: block.place)
def test_a_trial_of_the_page_passes(trial, acme: Path) -> None:
    (acme / "trial.py").write_text(trial.text, "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "trial.py"], cwd=acme, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr


def test_every_file_of_the_page_is_tried_and_every_section_has_a_trial() -> None:
    shown = {named[1] for block in PYTHON if (named := FILE.match(block.text))}
    tried = "\n".join(block.text for block in TRIALS)
    for file in shown:
        assert file.removesuffix(".py").replace("/", ".") in tried, f"no trial uses {file}"


def test_what_settings_name_can_be_loaded(acme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the plan loads it, with the options that the page gives."""
    from rewards.channels.loading import load_channel
    from rewards.loading import load_credit, load_reward
    from workflows.plugins import load_object

    monkeypatch.syspath_prepend(acme)
    raws = [tomllib.loads(block.text) for block in blocks("toml", PAGE)]
    rewards = [item for raw in raws for item in raw.get("rewards", [])]
    assert [load_reward(item["use"], item.get("options", {})) for item in rewards]
    credits = [raw["credit"] for raw in raws if "credit" in raw]
    assert [load_credit(credit["use"], {}) for credit in credits if "use" in credit]
    assert [load_channel(channel["use"], {}) for each in credits for channel in each.get("channels", ())]
    paths = [raw["ppo"]["loss"] for raw in raws if "ppo" in raw] + [
        raw["data"]["format"] for raw in raws if "data" in raw
    ]
    assert len(paths) == 2
    assert all(callable(load_object(path)) for path in paths)
    engines = [model["engine"] for raw in raws for model in raw.get("models", {}).values()]
    assert [engine_class(engine).__name__ for engine in engines] == ["Echo"]


def test_the_page_names_every_question_that_an_engine_class_is_asked() -> None:
    questions = {name for name in vars(EngineKind) if not name.startswith("_")}
    section = PAGE.read_text("utf-8").partition("## A new engine")[2].partition("\n## ")[0]
    assert {name for name in questions if f"`{name}`" not in section} == set()
