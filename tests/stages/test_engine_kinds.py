"""An engine is asked what it can do, never compared with a name: defaults for plug-ins, light questions."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stages.engines.kinds as kinds
from stages.engines.base import EngineSpec
from stages.engines.kind import EngineKind
from stages.engines.kinds import KINDS, check_spec, engine_class, memory_estimate, resolve_kind
from stages.engines.scripted import ScriptedServer
from workflows.errors import UsageError

ROOT = Path(__file__).parents[2]
HERE = "tests.stages.test_engine_kinds"


class Bare:
    """A plug-in of version 0.1: no hook, not even the base class."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec


class WithOldHooks(Bare):
    @staticmethod
    def check(spec: EngineSpec) -> None:
        if spec.options:
            raise UsageError("no options here")

    @staticmethod
    def memory_estimate(spec: EngineSpec) -> float:
        return 2.5


class NeedsMore(EngineKind):
    packages = {"a_package_that_nobody_has": "pip install it-from-somewhere"}  # noqa: RUF012


def made(spec: EngineSpec) -> Bare:
    return Bare(spec)


made.memory_estimate = lambda spec: 1.5  # type: ignore[attr-defined]


def test_a_plug_in_without_hooks_has_the_defaults_and_starts_as_itself() -> None:
    engine: Any = engine_class(f"{HERE}:Bare")
    spec = EngineSpec("team", f"{HERE}:Bare", "")
    assert (engine.trainable, engine.needs_checkpoint, engine.is_sampled) == (True, True, True)
    assert (engine.is_remote, engine.has_weights, engine.pace_options) == (False, False, frozenset())
    assert (engine.said_by({"reply": "x"}), engine.weights_name({}), engine.described(spec)) == (None,) * 3
    check_spec(spec)
    assert engine(spec).spec is spec
    assert type(engine(spec)).__mro__[1].__name__ == "Bare"


def test_hooks_of_version_0_1_are_asked_as_before() -> None:
    spec = EngineSpec("team", f"{HERE}:WithOldHooks", "", options={"a": 1})
    with pytest.raises(UsageError, match="no options here"):
        check_spec(spec)
    assert memory_estimate(spec) == 2.5


def test_a_function_that_makes_the_server_is_an_engine_too() -> None:
    engine: Any = engine_class(f"{HERE}:made")
    spec = EngineSpec("team", f"{HERE}:made", "")
    assert type(engine(spec)) is Bare
    assert memory_estimate(spec) == 1.5
    assert engine.trainable


def test_a_missing_package_is_named_with_its_command_and_questions_need_no_package() -> None:
    path = f"{HERE}:NeedsMore"
    with pytest.raises(UsageError, match=r"needs the package a_package_that_nobody_has.*pip install it-from"):
        resolve_kind(path)
    assert engine_class(path).trainable


def test_auto_is_the_first_kind_whose_packages_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"transformers"}
    monkeypatch.setattr(kinds.importlib.util, "find_spec", lambda name: name if name in installed else None)
    assert resolve_kind("auto") == "torch"
    with pytest.raises(UsageError, match=r'engine = "vllm" needs the package vllm.*cadre-rl\[gpu\]'):
        resolve_kind("vllm")
    installed.add("vllm")
    assert resolve_kind("auto") == "vllm"


def test_what_speaks_instead_of_weights_is_known_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "said.jsonl"
    file.write_text("one")
    first = engine_class("demonstrations").said_by({"file": str(file)})
    file.write_text("two")
    assert first != engine_class("demonstrations").said_by({"file": str(file)})
    assert ScriptedServer.said_by({}) is None  # what ships is covered by the package's version
    assert ScriptedServer.said_by({"reply": "workflows.testing:echo_qa"}) is not None
    assert engine_class("torch").said_by({}) is None


def test_all_built_in_engines_answer_without_torch_vllm_and_ray() -> None:
    script = (
        "import sys\n"
        "from stages.engines.kinds import KINDS, engine_class, installed_kinds\n"
        "from stages.engines.kind import EngineKind\n"
        "for kind in (*KINDS, 'auto'):\n"
        "    engine = engine_class(kind)\n"
        "    assert issubclass(engine, EngineKind), kind\n"
        "    engine.trainable, engine.is_remote, engine.weights_name({}), engine.said_by({})\n"
        "installed_kinds()\n"
        "heavy = {'torch', 'transformers', 'vllm', 'ray', 'httpx'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == 0


def _names(node: ast.expr) -> set[object]:
    if isinstance(node, ast.Constant):
        return {node.value}
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return {e.value for e in node.elts if isinstance(e, ast.Constant)}
    return set()


def test_nothing_compares_an_engine_with_a_name() -> None:
    files = [f for room in ("pipeline", "stages") for f in (ROOT / room).rglob("*.py")]
    assert len(files) > 100
    compared = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if (names := _names(side)) and names <= set(KINDS)
    ]
    assert compared == []
