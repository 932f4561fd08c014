"""The command line as a whole: a verb is a module, help is literal and quick, hints work where they stand."""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import pipeline.cli
import pipeline.cli.reward_model
import pipeline.cli.trace
from pipeline.cli.app import REWARD_MODEL_VERBS, RUN_VERBS, TRACE_VERBS, VERBS, literal
from pipeline.settings import program

ROOT = Path(__file__).parents[2]
HEAVY = {"ray", "torch", "mlflow", "vllm", "transformers", "deepspeed"}
MODULES = sorted(module.name for module in pkgutil.iter_modules(pipeline.cli.__path__))
COMMANDS = {
    **{(v.__name__.replace("_", "-"),): v for v in VERBS},
    **{("run", v.__name__): v for v in RUN_VERBS},
    **{("trace", v.__name__.rstrip("_")): v for v in TRACE_VERBS},
    **{("reward-model", v.__name__.replace("_", "-")): v for v in REWARD_MODEL_VERBS},
}
WIDE = {"COLUMNS": "300", "TERMINAL_WIDTH": "300"}  # so that no sentence of a help is broken into lines


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | environment
    )


def test_every_module_of_the_command_line_imports_nothing_heavy() -> None:
    imports = "; ".join(f"import pipeline.cli.{name}" for name in MODULES)
    heavy = f"print(sorted({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {imports}; {heavy}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_verb_is_a_module_with_a_function_of_its_name() -> None:
    verbs = {verb.__name__: verb for verb in (*VERBS, *RUN_VERBS)}
    assert set(MODULES) - {"app", "options", "trace", "reward_model"} == verbs.keys()
    for name, verb in verbs.items():
        assert verb.__module__ == f"pipeline.cli.{name}"


@pytest.mark.parametrize(
    ("package", "group"),
    [(pipeline.cli.trace, TRACE_VERBS), (pipeline.cli.reward_model, REWARD_MODEL_VERBS)],
    ids=["trace", "reward-model"],
)
def test_a_verb_of_a_group_is_a_module_with_a_function_of_its_name(package: Any, group: Any) -> None:
    inside = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert inside - {"shared"} == {verb.__name__ for verb in group}
    assert all(verb.__module__ == f"{package.__name__}.{verb.__name__}" for verb in group)


@pytest.mark.parametrize("command", [(), ("run",), ("trace",), ("reward-model",), *COMMANDS], ids=" ".join)
def test_help_shows_every_word_of_what_was_written_with_its_brackets(command: tuple[str, ...]) -> None:
    done = run(*command, "--help", **WIDE)
    assert done.returncode == 0, done.stderr
    assert "\\[" not in done.stdout
    shown = re.sub(r"[\s│]+", " ", done.stdout)
    if (verb := COMMANDS.get(command)) is not None:
        for paragraph in inspect.getdoc(verb).split("\n\n"):  # type: ignore[union-attr]
            assert " ".join(paragraph.split()) in shown
        for option in inspect.signature(verb, eval_str=True).parameters.values():
            assert option.annotation.__metadata__[0].help in shown


def test_a_section_of_settings_is_no_markup() -> None:
    assert "[evaluate] split" in run("run", "evaluate", "--help", **WIDE).stdout
    assert "[variants.<name>]" in run("run", "ablate", "--help", **WIDE).stdout
    from rich.text import Text

    text = "every = K in [evaluate], [variants.<name>] and [/x] [A:B] [bold]"
    assert Text.from_markup(literal(text)).plain == text


def test_the_version_is_that_of_the_package() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"cadre {version('cadre-rl')}\n")


def test_the_console_script_is_the_same_command_line_and_completes_in_shells(tmp_path: Path) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    module, _, function = scripts["cadre"].partition(":")
    script = tmp_path / "cadre"
    script.write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")

    def cadre(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        there = os.environ | {"PYTHONPATH": str(ROOT)} | environment
        command = [sys.executable, str(script), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=there)

    assert cadre("--version").stdout == run("--version").stdout
    assert "Usage: cadre " in cadre("--help").stdout
    assert "--install-completion" in cadre("--help").stdout
    completed = cadre(_CADRE_COMPLETE="complete_bash", COMP_WORDS="cadre run ev", COMP_CWORD="2")
    assert completed.stdout.split() == ["evaluate"]
    assert "start one with: ./cadre run iteration" in cadre("show").stderr


def test_a_hint_names_the_interpreter_that_runs_where_the_path_has_another(tmp_path: Path) -> None:
    elsewhere = run("show", "--root", str(tmp_path), PATH="/usr/bin:/bin").stderr
    command = elsewhere.partition("start one with: ")[2].strip()
    assert command.endswith("-m pipeline run iteration")
    done = subprocess.run(
        [*command.split(), "--help"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PATH": "/bin"},
    )
    assert done.returncode == 0, done.stderr
    active = run("show", "--root", str(tmp_path), PATH=f"{Path(sys.executable).parent}:/usr/bin").stderr
    assert active.endswith("start one with: python -m pipeline run iteration\n")


def test_a_path_with_a_space_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "my env" / "cadre"
    script.parent.mkdir()
    script.touch(mode=0o755)
    monkeypatch.delenv(program.VARIABLE, raising=False)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.chdir(tmp_path)
    assert program.hint("runs") == "'my env/cadre' runs"
    monkeypatch.setenv("PATH", str(script.parent))
    assert shutil.which("cadre") == str(script)
    assert program.hint("runs") == "cadre runs"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], ["Usage: ", "check", "runs"]),
        (["runs"], ["runs [OPTIONS]", "--rename"]),
        (["run", "train"], ["run train [OPTIONS]", "--redo"]),
    ],
)
def test_help_is_a_word_too(words: list[str], says: list[str]) -> None:
    done = run("help", *words, **WIDE)
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in says)


def test_options_that_have_no_effect_together_are_refused(tmp_path: Path) -> None:
    done = run("show", "--root", str(tmp_path), "-e", "x", "-n", "2")
    assert done.returncode == 2
    assert "leave one of them out" in done.stderr
