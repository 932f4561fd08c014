"""Lone surrogates and byte-order marks: refused in settings, cleaned in data, before anything is made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.settings.reading import load_settings, parse_settings, read_toml
from stages.engines.base import EngineSpec
from stages.engines.demonstrations import read_demonstrations
from stages.weights.chat import ChatRenderer
from workflows.data.tasks import load_tasks
from workflows.engine import Message, Sampling
from workflows.errors import UsageError
from workflows.testing import ScriptedModel
from workflows.tools.retriever import Bm25Retriever

LONE = "a\ud83d"  # what "a\xff" of a command line and "a\ud83d" of JSON become


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({"tracking": {"experiment": LONE}}, "tracking.experiment"),
        ({"run": {"name": LONE}}, "run.name"),
        ({"workflow": {"options": {"prompt": ["x", LONE]}}}, "workflow.options.prompt.1"),
        ({"rewards": [{"use": LONE}]}, "rewards.0.use"),
        ({"models": {LONE: {}}}, "a key of models"),
    ],
)
def test_settings_that_no_file_can_hold_are_refused_by_key(raw: dict[str, Any], key: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_settings(raw, "mine.toml")
    assert f"mine.toml: {key} = 'a\\ud83d' has characters that are not UTF-8" in str(refused.value)


def test_an_override_of_bytes_that_are_not_utf8_is_refused_before_a_run_folder_is_made(
    tmp_path: Path, signal_toml: Path
) -> None:
    root = tmp_path / "runs"
    command = [sys.executable, "-m", "pipeline", "run", "iteration", "--config", str(signal_toml)]
    command += ["--set", f"run.root={root}", "--set", b"tracking.experiment=a\xff"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        done.stderr == "error: the argument 'tracking.experiment=a\\udcff' is not UTF-8; give it in UTF-8\n"
    )
    assert not root.exists()


@pytest.fixture
def signal_toml() -> Path:
    return Path(__file__).parents[2] / "docs" / "examples" / "signal.toml"


def test_a_mark_before_settings_is_no_part_of_them(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_bytes(b'\xef\xbb\xbf[run]\nname = "x"\n')
    assert load_settings(file).run.name == "x"
    assert read_toml(file.read_bytes(), "s.toml") == {"run": {"name": "x"}}


def test_demonstrations_are_cleaned_and_may_begin_with_a_mark(tmp_path: Path, tiny: str) -> None:
    file = tmp_path / "demonstrations.jsonl"
    chat = [{"role": "user", "content": LONE}, {"role": "assistant", "content": LONE}]
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps({"messages": chat}).encode() + b"\n")
    spec = EngineSpec(base_id="b", kind="demonstrations", checkpoint=tiny, options={"file": str(file)})
    ((before, answer),) = read_demonstrations(spec)
    assert (before, answer) == ([{"role": "user", "content": "a?"}], "a?")


def test_renderers_and_scripts_clean_what_they_encode(tiny: str) -> None:
    renderer = ChatRenderer(tiny)
    lone, clean = ([Message(role="user", content=text)] for text in (LONE, "a?"))
    assert renderer.render(lone) == renderer.render(clean)
    assert renderer.encode(LONE) == renderer.encode("a?")
    model = ScriptedModel(lambda chat, sampling: LONE)
    assert model.complete(model.render(lone), Sampling(max_tokens=9)).text == "a?"


def test_rows_of_a_loader_and_of_a_corpus_are_cleaned(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "acme_lone.py").write_text(
        "def load(path):\n    yield {'inputs': {'question': 'a\\ud83d'}, 'gold': {'answers': ['x\\ud83d']}}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (task,) = load_tasks("x", format="acme_lone:load").tasks.to_pylist()
    assert json.loads(task["inputs"]) == {"question": "a?"}
    corpus = tmp_path / "corpus.jsonl"
    passage = {"id": "1", "title": "T" + LONE, "text": "some words"}
    corpus.write_bytes(b"\xef\xbb\xbf" + json.dumps(passage).encode() + b"\n")
    retriever = Bm25Retriever(str(corpus))
    assert retriever.search(["words"], 1)[0][0]["title"] == "Ta?"
