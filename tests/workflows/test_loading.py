"""Plug-ins by import path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workflows.errors import UsageError, WorkflowError
from workflows.graph import Workflow
from workflows.loading import load_workflow
from workflows.plugins import MOVED, load_object, load_plugin

MODULE = """
from workflows.errors import WorkflowError
from workflows.teams.single import build as single

class Thing:
    def __init__(self, size: int, colour: str = "red"):
        self.size, self.colour = size, colour

class Outer:
    class Inner:
        value = 3

def build(hint: str = ""):
    return single(prompt="{question} " + hint)

def not_a_workflow():
    return 7

def anything(**options):
    return options

def refuses():
    raise WorkflowError("too small")

def breaks(divisor):
    return 1 / divisor

number = 5
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's package in the working directory."""
    package = tmp_path / "acme_team"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text(MODULE)
    (package / "broken.py").write_text("import acme_misspelt\n")
    (package / "typo.py").write_text("def build(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    _forget_acme()  # another test may have had a package of this name
    yield tmp_path
    _forget_acme()


def _forget_acme() -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "acme_team"]:
        del sys.modules[name]


def test_a_built_in_name_stands_for_an_import_path() -> None:
    assert load_workflow("single", {}).name == "single"
    assert load_workflow("workflows.teams.single:build", {}).name == "single"
    assert load_plugin("pair", {"a": 1}, {"pair": "builtins:dict"}, "thing") == {"a": 1}


def test_a_package_in_the_working_directory_is_found(acme: Path) -> None:
    workflow = load_workflow("acme_team.parts:build", {"hint": "Be brief."})
    assert isinstance(workflow, Workflow)
    assert load_plugin("acme_team.parts:Thing", {"size": 2}, {}, "thing").size == 2
    assert load_object("acme_team.parts:Outer.Inner").value == 3


def test_the_working_directory_shadows_no_installed_package(acme: Path) -> None:
    (acme / "email").mkdir()
    (acme / "email" / "__init__.py").write_text("raise RuntimeError('shadowed')")
    sys.modules.pop("email.charset", None)
    assert load_object("email.charset:Charset")


@pytest.mark.parametrize(("use", "options", "message"), [
    ("sinlge", {}, "no built-in workflow 'sinlge' (did you mean 'single'?); built in: single, qa_decompose"),
    ("acme_team:", {}, "'acme_team:' is not an import path; write it as package.module:name"),
    ("acme team.parts:build", {}, "not an import path"),
    ("acme_taem.parts:build", {}, "there is no module 'acme_taem'; searched"),
    ("acme_team.part:build", {}, "there is no module 'acme_team.part'"),
    ("acme_team.broken:build", {}, "importing acme_team.broken failed: No module named 'acme_misspelt'"),
    ("acme_team.typo:build", {}, "importing acme_team.typo failed: SyntaxError"),
    ("acme_team.parts:biuld", {}, "there is no 'biuld' in acme_team.parts"),
    ("acme_team.parts:biuld", {}, "did you mean 'build'"),
    ("acme_team.parts:number", {}, "is a int, not a class or function"),
    ("acme_team.parts:not_a_workflow", {}, "builds a int; it must return a workflows.graph.Workflow"),
    ("acme_team.parts:build", {"hnit": "x"}, "has no option 'hnit' (did you mean 'hint'?); it has: hint"),
    ("acme_team.parts:Thing", {}, "needs option 'size'; its options are: size, colour"),
    ("acme_team.parts:refuses", {}, "workflow 'acme_team.parts:refuses': too small"),
    ("acme_team.parts:breaks", {"divisor": 0}, "can't be built with options {'divisor': 0}: ZeroDivision"),
])  # fmt: skip
def test_what_can_not_be_loaded_is_said_in_one_message(
    acme: Path, use: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        load_workflow(use, options)
    assert message in str(raised.value)


def test_options_reach_a_plugin_that_takes_any(acme: Path) -> None:
    assert load_plugin("acme_team.parts:anything", {"a": 1}, {}, "thing") == {"a": 1}


def test_a_graph_that_is_declared_wrongly_keeps_its_own_message() -> None:
    with pytest.raises(UsageError, match=r"^workflow 'single': a tag is letters"):
        load_workflow("single", {"answer_tag": "a b"})
    assert issubclass(WorkflowError, UsageError)


def test_nothing_heavy_is_imported_with_the_workflow_core() -> None:
    code = (
        "import sys, workflows.playing.play, workflows.testing, workflows.teams.qa_decompose; "
        "import workflows.teams.single, workflows.draw; "
        "print(sorted({'ray', 'torch', 'vllm', 'transformers', 'deepspeed', 'mlflow'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("old", MOVED)
def test_a_module_that_moved_is_found_where_it_is_now_and_hides_none_of_today(old: str) -> None:
    today = Path(__file__).parents[2].joinpath(*MOVED[old].split("."))
    assert today.with_suffix(".py").is_file()
    assert not Path(__file__).parents[2].joinpath(*old.split(".")).with_suffix(".py").exists()
