"""What the commands do, as functions: settings in, a finished job or an error out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from pipeline.runs import find_run, list_runs, new_name
from pipeline.settings import Settings, load_settings
from workflows.errors import UsageError


def check(config: str, overrides: Sequence[str], as_json: bool) -> None:
    """Print the plan and what this machine has; raise `UsageError` where something can't work."""
    from pipeline.assemble import assemble
    from pipeline.checks import report, report_lines

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
    from pipeline.assemble import assemble
    from pipeline.checks import memory_problem, report, report_lines

    settings = load_settings(config, overrides)
    if new:
        settings = _renamed(settings)
    plan = assemble(settings)
    if dry_run:
        _print("\n".join(report_lines(report(plan))))
        return
    if problem := memory_problem(plan):
        raise UsageError(problem)
    from pipeline.session import session
    from pipeline.show import print_summary

    with session(plan) as runner:
        finished = runner.run_iteration()
    print_summary(runner.run, finished, runner.tracker.link())


def show(
    name: str,
    root: str,
    *,
    iteration: int | None,
    episode: str | None,
    episodes: int,
    full: bool,
    as_json: bool,
) -> None:
    """Print an iteration's summary and some of its episodes."""
    from pipeline.show import print_iteration

    run = find_run(root, name)
    print_iteration(run, iteration, episode=episode, episodes=episodes, full=full, as_json=as_json)


def runs(root: str, as_json: bool) -> None:
    """Print one line for each run under the root."""
    from pipeline.show import print_runs

    print_runs(list_runs(root), as_json=as_json)


def _renamed(settings: Settings) -> Settings:
    name = new_name(settings.run.root, settings.run.name)
    return settings.model_copy(update={"run": settings.run.model_copy(update={"name": name})})


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
