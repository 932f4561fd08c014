"""`replace` from the command line to what is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from pipeline.metrics.forecast import Ahead, forecast
from pipeline.plan.ahead import NO_PACE
from pipeline.plan.overview import check_start
from pipeline.replacement.asked import Asked, asked_of, new_team
from pipeline.replacement.record import record_replacement
from pipeline.replacement.replace import run_replacement
from pipeline.replacement.show import ladder_table, replacement_dict, replacement_page
from pipeline.replacement.state import State
from pipeline.run.late_ray import ray_when_needed
from pipeline.store.pace import own_pace, read_record
from pipeline.store.runs import find_run
from pipeline.views.forecast import forecast_line
from pipeline.views.output import print_lines, print_pages
from pipeline.views.progress import RichProgress
from pipeline.views.render import visible


@dataclass(frozen=True, slots=True)
class ReplaceOptions:
    """What the command line says beside the run, the model and the newcomer."""

    name: str | None = None
    steps: Sequence[str] | None = None
    overrides: Sequence[str] = ()
    dry_run: bool = False
    as_json: bool = False


def run_replace(run: str, root: str, model: str, newcomer: str, options: ReplaceOptions) -> None:
    """Replace a model of a run's team, or say what that would take.

    Raises:
        UsageError: what can't work, with what to do.
        RunFailed: plays, lessons or updates failed.
    """
    asked = asked_of(
        find_run(root, run),
        model,
        newcomer,
        name=options.name,
        steps=options.steps,
        overrides=options.overrides,
    )
    if options.dry_run:
        print_pages([dry_page(asked)], dry_values(asked), options.as_json)
        return
    if not any(rung.verdict == "impossible" for rung in asked.rungs):
        check_start(new_team(asked, asked.newcomer)[1].plan)
    quiet: list[str] = []
    say = quiet.append if options.as_json else _print
    with ray_when_needed(asked.old.plan.resolved.cluster) as start:
        state = run_replacement(asked, RichProgress(brief_seconds=10.0), start, say)
    link = record_replacement(asked, state)
    links = {"MLflow": link} if link else {}
    print_pages([replacement_page(asked, state, links)], replacement_dict(asked, state), options.as_json)


def _print(line: str) -> None:
    print_lines([visible(line)])


def dry_page(asked: Asked) -> RenderableType:
    """What would run: the rungs that need no engine, the steps, and a forecast."""
    values = dry_values(asked)
    head = f"would replace model {asked.model} of run {asked.parent.name} by {asked.newcomer}"
    lines = [
        f"new run     {asked.run.folder.url}",
        f"contexts    {values['contexts']} stored turns of {asked.model}, from iterations "
        f"{', '.join(map(str, asked.contexts.iterations))}",
        f"steps       {', '.join(values['steps']) or 'none: the newcomer is put in cold, and judged'}",
        f"plays       {values['plays']} times {values['episodes_a_play']} episodes on "
        f"{asked.old.evaluation.split!r}",
        f"iterations  at most {values['iterations']}",
        f"forecast    {values['forecast']}",
    ]
    body = [Text(visible(line)) for line in lines]
    return Group(Text(visible(head), "bold"), ladder_table(asked.rungs), Text(), *body)


def dry_values(asked: Asked) -> dict[str, Any]:
    """The same as plain values."""
    section, evaluation = asked.section, asked.old.evaluation
    aligns = section.align_iterations if asked.does("align") else 0
    settles = int(asked.does("settle") and bool(asked.teammates))
    plays = 1 + int(asked.does("swap")) + int(asked.does("distill")) + aligns + settles
    episodes = evaluation.num_tasks * asked.settings.evaluate.samples
    return {
        "parent": asked.parent.folder.url,
        "run": asked.run.folder.url,
        "model": asked.model,
        "newcomer": asked.newcomer,
        "ladder": [rung.as_dict() for rung in asked.rungs],
        "steps": list(section.steps),
        "contexts": len(asked.contexts.rows),
        "plays": plays,
        "episodes_a_play": episodes,
        "iterations": aligns + settles,
        "forecast": _forecast(asked, aligns + settles, plays, episodes),
        "finished": sorted(State(asked.run).data.get("steps", {})),
    }


def _forecast(asked: Asked, iterations: int, plays: int, episodes: int) -> str:
    pace = own_pace(asked.parent, read_record(asked.parent))
    if pace is None:
        return NO_PACE
    resolved = asked.old.plan.resolved
    each = float(resolved.data.tasks_per_iteration * resolved.rollout.group_size)
    ahead = Ahead(iterations, plays, True, each, float(episodes * plays))
    return f"at most {forecast_line(forecast(pace, ahead))}; lessons of the newcomer not counted"
