"""The forecast of several runs together: the sum of what each needs, as far as it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import add

from pipeline.metrics.forecast import Forecast, forecast
from pipeline.plan.ahead import NO_PACE, ahead_of
from pipeline.plan.assemble import Plan, assemble_evaluation
from pipeline.store.differences import plain
from pipeline.store.pace import own_pace, read_record, stored_pace
from pipeline.store.run import Run
from pipeline.views.forecast import count, forecast_line
from pipeline.views.progress import duration


def left_of_runs(root: str, runs: Sequence[tuple[Plan, str, int]]) -> str:
    """What the runs that are left need, one after another, in words.

    Args:
        root: of the runs.
        runs: for each the plan of its point, its name, and how many iterations it is to have.
    """
    if not runs:
        return "nothing is left to do"
    known = [made for plan, name, wanted in runs if (made := _of_run(root, plan, name, wanted)) is not None]
    if not known:
        return NO_PACE
    if len(known) == len(runs) == 1:
        return forecast_line(known[0])
    tokens, seconds = (reduce(add, (getattr(made, what) for made in known)) for what in ("tokens", "seconds"))
    unknown = len(runs) - len(known)
    rest = f"; nothing is known of {unknown} more" if unknown else ""
    return (
        f"{len(known)} runs: about {count(tokens.middle)} sampled tokens, {duration(seconds.middle)} "
        f"({duration(seconds.low)} to {duration(seconds.high)}), from {_sources(known)}{rest}"
    )


def _of_run(root: str, plan: Plan, name: str, wanted: int) -> Forecast | None:
    run = Run(root, name)
    done = sum(run.is_finished(index) for index in run.iterations()) if run.exists else 0
    pace = own_pace(run, read_record(run)) if run.exists else None
    pace = pace or stored_pace(root, plain(plan.identity), plan.models.regime, name)
    evaluation = assemble_evaluation(plan) if plan.resolved.evaluate.every else None
    ahead = ahead_of(plan, evaluation, done, wanted)
    if pace is None:
        return None
    if not ahead.iterations:  # its last evaluation may be missing
        ahead = replace(ahead, iterations=0)
    return forecast(pace, ahead)


def _sources(known: Sequence[Forecast]) -> str:
    names = list(dict.fromkeys(made.where for made in known))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
