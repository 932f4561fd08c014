"""What an evaluation found: its scores, its metrics, and the place of its tables.

An evaluation is a list of stages over `evaluations/<split>/<index>/`, where the index is the number
of finished iterations: its tables are apart from training's, and a finished one is never played again.
"""

from __future__ import annotations

from dataclasses import replace

from pipeline.metrics.iteration import iteration_metrics
from pipeline.plan.evaluation import EvaluationPlan
from pipeline.store.evaluated import Evaluated
from pipeline.store.finished import Finished
from stages.evaluate import summarise


def evaluated(plan: EvaluationPlan, done: Finished) -> Evaluated:
    """The result of an evaluation whose stages are finished."""
    scores = summarise(done.tables["evaluation"].read(), plan.metrics.names, plan.solved_at)
    shown = {name: done.tables[name] for name in ("episodes", "turns")}
    done = replace(done, metrics=iteration_metrics(shown, done.accounts, done.stage_seconds))
    return Evaluated(plan.split, done.index, tuple(scores), done, done.store.folder.url, plan.best)
