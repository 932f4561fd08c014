"""What of a plan is still to come, and the forecast of it from the best pace that is known."""

from __future__ import annotations

from typing import Any

from pipeline.metrics.forecast import Ahead, Forecast, Pace, forecast
from pipeline.plan.assemble import Plan
from pipeline.plan.evaluation import EvaluationPlan
from pipeline.store.differences import plain
from pipeline.store.pace import own_pace, read_record, stored_pace
from pipeline.store.run import Run

NO_PACE = (
    "no iteration was measured here yet, of this run or of one like it under the same root; run one, or "
    "`check --probe` measures a small one"
)


def ahead_of(
    plan: Plan, evaluation: EvaluationPlan | None, done: int, wanted: int, *, starts: bool = True
) -> Ahead:
    """The iterations from `done` to `wanted`, with the evaluations between and after them."""
    every = plan.resolved.evaluate.every
    counts, episodes = 0, 0.0
    if evaluation is not None:
        counts = sum(every > 0 and index % every == 0 for index in range(done, wanted)) + 1
        samples = plan.resolved.evaluate.samples
        vote = plan.resolved.evaluate.vote
        for one in (evaluation, *evaluation.also):
            plays = vote.answers if one.is_vote and vote is not None else samples
            episodes += one.num_tasks * plays
    data, rollout = plan.resolved.data, plan.resolved.rollout
    each = float(data.tasks_per_iteration * rollout.group_size)
    return Ahead(max(0, wanted - done), counts, starts, each, episodes)


def known_pace(plan: Plan) -> Pace | None:
    """The pace of the run itself, or of a stored one that is like it."""
    run = Run(plan.resolved.run.root, plan.resolved.run.name)
    if run.exists and (own := own_pace(run, read_record(run))) is not None:
        return own
    return stored_pace(run.folder.url.rpartition("/")[0], plain(plan.identity), plan.models.regime, run.name)


def forecast_of(
    plan: Plan, evaluation: EvaluationPlan | None, done: int, wanted: int, pace: Pace | None = None
) -> Forecast | None:
    """The forecast of a plan's iterations from `done` to `wanted`; None where nothing was measured.

    Args:
        pace: that of a probe; None: `known_pace`.
    """
    pace = pace or known_pace(plan)
    ahead = ahead_of(plan, evaluation, done, wanted)
    return forecast(pace, ahead) if pace is not None and ahead.iterations > 0 else None


def forecast_values(
    plan: Plan,
    evaluation: EvaluationPlan | None = None,
    wanted: int | None = None,
    pace: Pace | None = None,
) -> dict[str, Any]:
    """What `check` and `--dry-run` say of it: the forecast of one iteration, or of all up to `wanted`."""
    run = Run(plan.resolved.run.root, plan.resolved.run.name)
    done = sum(run.is_finished(index) for index in run.iterations()) if run.exists else 0
    wanted = done + 1 if wanted is None else wanted
    if wanted <= done:
        return {"missing": f"the run has its {done} iterations already"}
    made = forecast_of(plan, evaluation, done, wanted, pace)
    return {"missing": NO_PACE} if made is None else made.as_dict()
