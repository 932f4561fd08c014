"""What the commands do, as functions: settings in, a finished job or an error out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pipeline.settings.reading import load_settings
from pipeline.settings.schema import Settings
from pipeline.store.runs import find_run, list_runs, new_name
from workflows.errors import UsageError

if TYPE_CHECKING:
    from pipeline.run.execution import Finished

BRIEF_SECONDS: Final = 10.0  # a stage of a training that is done sooner leaves no line


def check(config: str, overrides: Sequence[str], as_json: bool) -> None:
    """Print the plan and what this machine has; raise `UsageError` where something can't work."""
    from pipeline.cli.check import report, report_lines
    from pipeline.plan.assemble import assemble

    plan = assemble(load_settings(config, overrides))
    found = report(plan)
    _print(json.dumps(found, indent=1) if as_json else "\n".join(report_lines(found)))
    if found["problems"]:
        raise UsageError("; ".join(found["problems"]))


def run_iteration(config: str, overrides: Sequence[str], *, new: bool, dry_run: bool) -> None:
    """Run or finish one iteration, and print its summary.

    Raises:
        UsageError: settings that can't work, or a run that another process writes to.
        RunFailed: the iteration failed; what it finished stays.
    """
    from pipeline.cli.check import report, report_lines, start_problem
    from pipeline.plan.assemble import assemble

    settings = load_settings(config, overrides)
    if new:
        settings = _renamed(settings)
    plan = assemble(settings)
    if dry_run:
        _print("\n".join(report_lines(report(plan))))
        return
    if problem := start_problem(plan):
        raise UsageError(problem)
    from pipeline.cli.show import print_summary
    from pipeline.run.session import session

    with session(plan) as runner:
        finished = runner.run_iteration()
    print_summary(runner.run, finished, runner.tracker.link())


def train(
    config: str, overrides: Sequence[str], iterations: int, *, overfit: bool, new: bool, dry_run: bool
) -> None:
    """Go on with a run until it has `iterations` iterations, and print a line for each.

    Raises:
        UsageError: settings that can't work, or a run that another process writes to.
        RunFailed: an iteration failed, or with `overfit` the group was not solved; what is finished stays.
    """
    from pipeline.cli.check import report, report_lines, start_problem
    from pipeline.plan.assemble import assemble, assemble_evaluation
    from pipeline.run.overfit import Solved, overfit_settings

    settings = load_settings(config, overrides)
    if overfit:
        settings = overfit_settings(settings)
    if new:
        settings = _renamed(settings)
    plan = assemble(settings)
    evaluation = assemble_evaluation(plan) if settings.evaluate.every and not overfit else None
    if dry_run:
        _print("\n".join(report_lines(report(plan))))
        return
    if problem := start_problem(plan):
        raise UsageError(problem)
    from pipeline.cli.show import TrainingLog, print_evaluation, print_summary
    from pipeline.run.session import session
    from pipeline.views.progress import RichProgress

    log = TrainingLog(iterations)
    solved = Solved(settings) if overfit else None

    def on_done(finished: Finished) -> bool:
        log.add(finished)
        return solved is not None and solved.add(finished)

    with session(plan, RichProgress(brief_seconds=BRIEF_SECONDS)) as runner:
        runner.train(iterations, evaluation, on_done, print_evaluation)
        if log.last is None:
            _print(
                f"run {runner.run.name!r} has its {iterations} iterations already: {runner.run.folder.url}"
            )
            return
    print_summary(runner.run, log.last, runner.tracker.link())
    if solved is not None:
        _print(solved.verdict())


def evaluate(config: str, overrides: Sequence[str], *, as_json: bool) -> None:
    """Evaluate the run that the settings name, at the weights that it has now, and print the scores.

    Raises:
        UsageError: as `train`, or the run has an unfinished iteration.
        RunFailed: too many episodes failed.
    """
    from pipeline.cli.check import start_problem
    from pipeline.plan.assemble import assemble, assemble_evaluation

    plan = assemble(load_settings(config, overrides))
    evaluation = assemble_evaluation(plan)
    if problem := start_problem(plan):
        raise UsageError(problem)
    from pipeline.cli.show import print_evaluation
    from pipeline.run.session import session

    with session(plan) as runner:
        found = runner.evaluate(evaluation)
        runner.curves()
    print_evaluation(found, as_json=as_json)


def export(
    name: str,
    root: str,
    folder: str,
    *,
    replay: str | None,
    model: str | None,
    version: str,
    merge: bool,
    as_json: bool,
) -> None:
    """Write a model of a run, or of a replay of it, as a Hugging Face folder, and say where it is."""
    from pipeline.cli.export import export_model

    run = find_run(root, name)
    found = export_model(run, folder, replay=replay, model_id=model, version=version, merge=merge)
    _print(json.dumps(found) if as_json else "\n".join(f"{k:<10}{v}" for k, v in found.items()))


def show(
    name: str,
    root: str,
    *,
    iteration: int | None,
    split: str | None,
    replay: str | None,
    episode: str | None,
    episodes: int | None,
    where: str | None,
    full: bool,
    as_json: bool,
) -> None:
    """Print a summary of an iteration, an evaluation or a replay and some of its episodes, or the turns of
    it that `where` chooses."""
    from pipeline.cli.show import EPISODES, print_place, print_where
    from pipeline.store.shelf import shelf_of

    shelf = shelf_of(find_run(root, name), split=split, replay=replay)
    if where is None:
        count = EPISODES if episodes is None else episodes
        print_place(shelf, iteration, episode=episode, episodes=count, full=full, as_json=as_json)
        return
    if episode is not None:
        raise UsageError(
            f"--where chooses turns and --episode one episode; write \"episode_id = '{episode}'\""
        )
    print_where(shelf, iteration, where, limit=episodes, full=full, as_json=as_json)


def runs(root: str, as_json: bool) -> None:
    """Print one line for each run under the root."""
    from pipeline.cli.show import print_runs

    print_runs(list_runs(root), as_json=as_json)


def _renamed(settings: Settings) -> Settings:
    name = new_name(settings.run.root, settings.run.name)
    return settings.model_copy(update={"run": settings.run.model_copy(update={"name": name})})


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
