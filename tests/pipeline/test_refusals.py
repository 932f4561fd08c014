"""What can't work is refused before Ray starts: one message that says what, where and what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from pipeline.plan.assemble import assemble
from pipeline.settings.reading import parse_settings
from workflows.errors import UsageError

ROOT = Path(__file__).parents[2]
Settings = Callable[..., dict[str, Any]]


def checkpoint(folder: Path, **config: Any) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def rows(folder: Path, *lines: str) -> str:
    (folder / "tasks.jsonl").write_text("\n".join(lines))
    return str(folder / "tasks.jsonl")


GOOD_ROW = '{"question": "Who?", "answer": ["me"]}'

# what is changed (a function of a temporary folder), and words that the message must have
CASES: dict[str, tuple[Callable[[Path], dict[str, Any]], list[str]]] = {
    "unknown workflow": (lambda d: {"workflow": {"use": "qa_decompos"}}, ["qa_decompose"]),
    "unknown workflow option": (lambda d: {"workflow": {"options": {"topk": 2}}}, ["top_k"]),
    "workflow module missing": (lambda d: {"workflow": {"use": "no_such_pkg.x:build"}}, ["no_such_pkg"]),
    "unknown role": (lambda d: {"roles": {"raeder": {}}}, ["raeder", "'reader'"]),
    "role without a model": (
        lambda d: {"models": {"other": {"checkpoint": "tiny"}}, "roles": {"reader": {"model": "other"}}},
        ["decomposer", "has no model"],
    ),
    "undeclared model": (lambda d: {"roles": {"reader": {"model": "taem"}}}, ["taem", "'team'"]),
    "model without a role": (
        lambda d: {
            "models": {"other": {"checkpoint": "tiny"}},
            "roles": {r: {"model": "team"} for r in ("decomposer", "reader", "answerer")},
        },
        ["other", "no role"],
    ),
    "sharing leaves out a role": (
        lambda d: {"sharing": {"groups": {"a": ["decomposer", "reader"]}}},
        ["answerer"],
    ),
    "sharing with a role twice": (
        lambda d: {"sharing": {"groups": {"a": ["decomposer", "reader"], "b": ["reader", "answerer"]}}},
        ["reader", "'a'", "'b'"],
    ),
    "sharing says nothing": (lambda d: {"sharing": {}}, ["regime", "groups"]),
    "group of one": (lambda d: {"rollout": {"group_size": 1}}, ["group_size"]),
    "top_p": (lambda d: {"roles": {"reader": {"sampling": {"top_p": 0.9}}}}, ["reader", "top_p"]),
    "top_k": (lambda d: {"roles": {"reader": {"sampling": {"top_k": 5}}}}, ["reader", "top_k"]),
    "min_p": (
        lambda d: {"roles": {"reader": {"sampling": {"min_p": 0.1}}}},
        ["reader", "min_p = 0.1", "evaluate.top_p"],
    ),
    "greedy": (lambda d: {"rollout": {"temperature": 0}}, ["temperature 0"]),
    "answer longer than the context": (
        lambda d: {"roles": {"reader": {"max_response_tokens": 5000}}},
        ["5000", "max_model_len"],
    ),
    "context longer than the model's": (lambda d: {"models": {"team": {"max_model_len": 4096}}}, ["2048"]),
    "nothing to train": (lambda d: {"models": {"team": {"train": False}}}, ["nothing to train"]),
    "unknown engine": (lambda d: {"models": {"team": {"engine": "vlm"}}}, ["vlm", "'vllm'"]),
    "engine option": (lambda d: {"models": {"team": {"engine": "torch"}}}, ["torch engine", "reply"]),
    "no such checkpoint": (lambda d: {"models": {"team": {"checkpoint": "tinny"}}}, ["tinny", "'tiny'"]),
    "not a causal model": (
        lambda d: {
            "models": {"team": {"checkpoint": checkpoint(d / "m", architectures=["BertForMaskedLM"])}}
        },
        ["BertForMaskedLM", "not a causal language model"],
    ),
    "empty model folder": (lambda d: {"models": {"team": {"checkpoint": str(d)}}}, ["config.json"]),
    "unknown reward": (lambda d: {"rewards": [{"use": "token_f2"}]}, ["token_f2", "token_f1"]),
    "reward option": (lambda d: {"rewards": [{"use": "token_f1", "options": {"mod": "x"}}]}, ["mode"]),
    "two rewards of one name": (lambda d: {"rewards": [{"use": "format"}, {"use": "format"}]}, ["format"]),
    "no rewards": (lambda d: {"rewards": []}, ["reward"]),
    "unknown credit": (lambda d: {"credit": {"use": "group_relativ"}}, ["group_relative"]),
    "credit option": (lambda d: {"credit": {"options": {"by": "rolle"}}}, ["rolle", "task_role"]),
    "data missing": (lambda d: {"data": {"path": str(d / "none.jsonl")}}, ["none.jsonl"]),
    "malformed task row": (
        lambda d: {"data": {"path": rows(d, GOOD_ROW, '{"question": ""')}},
        ["row 2"],
    ),
    "task without an answer": (
        lambda d: {"data": {"path": rows(d, GOOD_ROW, '{"question": "Who?", "answer": []}')}},
        ["row 2"],
    ),
    "unknown split": (lambda d: {"data": {"split": "trian"}}, ["trian", "train"]),
    "more tasks than there are": (lambda d: {"data": {"tasks_per_iteration": 10**6}}, ["1000000"]),
    "corpus missing": (
        lambda d: {"workflow": {"options": {"corpus": str(d / "none.jsonl")}}},
        ["none.jsonl"],
    ),
    "file store of MLflow": (lambda d: {"tracking": {"uri": "file:///tmp/mlruns"}}, ["sqlite"]),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_with_a_message_that_says_what_and_where(
    case: str, scripted: Settings, tmp_path: Path
) -> None:
    changes, words = CASES[case]
    with pytest.raises(UsageError) as error:
        assemble(parse_settings(scripted(**changes(tmp_path))))
    message = str(error.value)
    for word in words:
        assert word in message, message
    assert "Traceback" not in message


def test_the_settings_that_the_cases_start_from_are_accepted(scripted: Settings) -> None:
    assemble(parse_settings(scripted()))


@pytest.mark.parametrize("verb", [["run", "iteration"], ["check"]])
def test_the_command_line_exits_with_2_prints_one_message_and_starts_nothing(
    verb: list[str], scripted: Settings, tmp_path: Path
) -> None:
    raw = scripted(rollout={"group_size": 1})
    config = tmp_path / "p.toml"
    config.write_text(tomlkit.dumps(raw))
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pipeline", *verb, "--config", str(config)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert len(said) == 1
    assert said[0].startswith("error: ")
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert not imported & {"ray", "torch", "vllm", "deepspeed", "transformers"}
    assert not Path(raw["run"]["root"]).exists()


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pipeline", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    heavy = {"ray", "torch", "vllm", "deepspeed", "transformers", "mlflow", "polars", "pyarrow", "numpy"}
    assert done.returncode == 0
    assert not imported & heavy


def test_a_folder_that_shadows_a_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "workflows").mkdir()
    (tmp_path / "workflows/__init__.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )
    assert done.returncode == 2
    assert str(tmp_path / "workflows") in done.stderr
    assert "shadows" in done.stderr
