"""The command line: which verbs there are. Each verb is a module of this folder, which imports what it needs
when it is called."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from pipeline.cli.ablate import ablate
from pipeline.cli.check import check
from pipeline.cli.compare import compare
from pipeline.cli.demonstrations import demonstrations
from pipeline.cli.evaluate import evaluate
from pipeline.cli.export import export
from pipeline.cli.grade import grade
from pipeline.cli.index import index
from pipeline.cli.init import init
from pipeline.cli.iteration import iteration
from pipeline.cli.replace import replace
from pipeline.cli.replay import replay
from pipeline.cli.report import report
from pipeline.cli.reward_model.best_of import best_of
from pipeline.cli.reward_model.train import train as train_reward_model
from pipeline.cli.runs import runs
from pipeline.cli.serve_retriever import serve_retriever
from pipeline.cli.show import show
from pipeline.cli.study import study
from pipeline.cli.sweep import sweep
from pipeline.cli.trace.export import export as trace_export
from pipeline.cli.trace.import_ import import_
from pipeline.cli.trace.stats import stats
from pipeline.cli.trace.validate import validate
from pipeline.cli.train import train
from pipeline.cli.ui import ui
from pipeline.settings.program import SCRIPT, VARIABLE, program, started_as_script, version
from workflows.errors import CadreError, UsageError

VERBS: Final[tuple[Callable[..., None], ...]] = (
    *(check, compare, export, show, report, runs, init, ui),
    *(index, serve_retriever, grade, demonstrations, replace),
)
# `run iteration`, `run train`, …
RUN_VERBS: Final[tuple[Callable[..., None], ...]] = (
    *(iteration, train, evaluate, replay, ablate),
    *(sweep, study),
)
# `trace export`, `trace import`, …
TRACE_VERBS: Final[tuple[Callable[..., None], ...]] = (trace_export, import_, validate, stats)
# `reward-model train`, `reward-model best-of`
REWARD_MODEL_VERBS: Final[tuple[Callable[..., None], ...]] = (train_reward_model, best_of)


app = typer.Typer(
    name=SCRIPT,
    no_args_is_help=True,
    add_completion=started_as_script(),  # a shell completes the names of programs, not `python -m …`
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
run_app = typer.Typer(help="Run a pipeline.", no_args_is_help=True)
for verb in VERBS:
    app.command()(verb)
for verb in RUN_VERBS:
    run_app.command()(verb)
app.add_typer(run_app, name="run")
trace_app = typer.Typer(help="Write, read, check and count traces of episodes.", no_args_is_help=True)
for verb in TRACE_VERBS:
    trace_app.command(verb.__name__.rstrip("_"))(verb)
app.add_typer(trace_app, name="trace")
reward_model_app = typer.Typer(
    help="A model of which play is better, from stored plays.", no_args_is_help=True
)
for verb in REWARD_MODEL_VERBS:
    reward_model_app.command(verb.__name__.replace("_", "-"))(verb)
app.add_typer(reward_model_app, name="reward-model")


def command_line() -> Any:
    """All verbs as one command.

    Help texts are shown as they are written: `[evaluate]` is a section of settings, not markup.
    """
    command = typer.main.get_command(app)
    _show_literally(command)
    return command


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{SCRIPT} {version()}")
        raise typer.Exit


@app.callback()
def cadre(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version, and stop.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Train teams of language models: the whole workflow is the unit of reinforcement learning."""


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed run, 2 wrong usage, 130 or 143 stopped."""
    os.environ[VARIABLE] = program()  # hints of processes that this one starts are for the same person
    sys.exit(_guarded())


def _guarded() -> int:
    from pipeline.run.signals import Stopped, end_children, stop_behind

    try:
        return _run_command()
    except BaseException as error:
        stopped = stop_behind(error)  # whatever it was wrapped in on its way
        if stopped is None and isinstance(error, KeyboardInterrupt):
            stopped = Stopped(signal.SIGINT)
        if stopped is None:
            raise
        end_children()
        return _fail(stopped, stopped.exit_code)


def _run_command() -> int:
    from pipeline.run.signals import stop_behind

    try:
        _check_arguments(sys.argv[1:])
        if sys.argv[1:2] == ["help"]:  # `help run train`, as many programs have it
            sys.argv[1:] = [*sys.argv[2:], "--help"]
        command_line()(prog_name=SCRIPT if started_as_script() else program())
    except CadreError as error:
        if stop_behind(error) is not None:
            raise
        return _fail(error, 2 if isinstance(error, UsageError) else 1)
    except SystemExit as done:
        if stop_behind(done) is not None:
            raise
        return done.code if isinstance(done.code, int) else 1
    return 0


def _check_arguments(arguments: Sequence[str]) -> None:
    """Refuse arguments that are not UTF-8: names made of them could be written nowhere."""
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise UsageError(f"the argument {argument!a} is not UTF-8; give it in UTF-8")


def _fail(message: object, code: int) -> int:
    from pipeline.views.render import visible  # a message may quote what a model or a file says

    sys.stderr.write(f"error: {visible(str(message))}\n")
    return code


def _show_literally(command: Any) -> None:
    """Make the help of a command, its options and its commands literal."""
    for each in (command, *command.params):
        if getattr(each, "help", None):
            each.help = literal(each.help)
    for child in getattr(command, "commands", {}).values():
        _show_literally(child)


def literal(text: str) -> str:
    """A help text without markup, as typer has to get it: brackets escaped, a paragraph in one line."""
    from rich.markup import escape

    return escape(re.sub(r"(?<!\n)\n(?!\n)", " ", text))
