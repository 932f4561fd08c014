"""What an evaluation found: its scores, its metrics, and the place of its tables.

An evaluation is a list of stages over `evaluations/<split>/<index>/`, where the index is the number
of finished iterations: its tables are apart from training's, and a finished one is never played again.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from pipeline.metrics.iteration import iteration_metrics
from pipeline.plan.evaluation import EvaluationPlan
from pipeline.store.evaluated import Evaluated
from pipeline.store.finished import Finished
from stages.evaluate import Score, estimate_score, sources_of, summarise
from stages.vote import tally, votes_by_task


def evaluated(plan: EvaluationPlan, done: Finished) -> Evaluated:
    """The result of an evaluation whose stages are finished; of a vote with a score `<metric>/vote` each."""
    table = done.tables["evaluation"].read()
    sources = sources_of(done.tables["tasks"].read(["task_id", "source"]))
    scores = summarise(table, plan.metrics.names, plan.solved_at, sources)
    if plan.is_vote:
        scores += [_voted(plan, done, table, name) for name in plan.metrics.names]
    shown = {name: done.tables[name] for name in ("episodes", "turns")}
    done = replace(done, metrics=iteration_metrics(shown, done.accounts, done.stage_seconds))
    return Evaluated(plan.label, done.index, tuple(scores), done, done.store.folder.url, plan.best)


def _voted(plan: EvaluationPlan, done: Finished, evaluation: pa.Table, metric: str) -> Score:
    """What the majority of the answers to each task is worth, within the budget of tokens."""
    by_task = votes_by_task(done.tables["votes"].read(), evaluation, metric)
    values = [tally(votes, plan.vote_tokens, task).value for task, votes in sorted(by_task.items())]
    return Score(f"{metric}/vote", estimate_score(values))
