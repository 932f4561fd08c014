"""What a reward model is worth as a ranker: of n stored plays of a task, the one with the highest score.

Only tasks that did not train the model count. For every n the mean over all subsets of a task's plays is
exact; intervals are over tasks, and gains are paired, task by task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from pipeline.plan.resolve import sandbox_of, workflow_options
from pipeline.reward_model.asked import answer_step_of, settings_of
from pipeline.reward_model.plays import Collected, StoredPlay, Where, collect
from pipeline.reward_model.show import account_lines
from pipeline.store.finished import RESULT, Finished
from pipeline.store.run import Run
from pipeline.views.render import cell, open_table, visible
from rewards.ballots import BallotBox
from rewards.preferences.best_of import Ranked, best_of, majority_of, oracle
from rewards.scoring.joined import EPISODES_SEEN, TASKS_SEEN, TURNS_SEEN
from stages.base import Account
from stages.evaluate import Estimate, estimate_mean
from stages.reward_model.model import RewardModel
from stages.tables.parquet import read_parquet
from workflows.errors import UsageError
from workflows.loading import load_workflow
from workflows.preference_tables import PAIRS

TRAINED: Final = "tasks that trained the model"
TOO_FEW: Final = "tasks with too few plays"


@dataclass(frozen=True, slots=True)
class Row:
    """The best of n plays: means over tasks. `majority` is None where no play casts a ballot."""

    n: int
    chosen: Estimate  # the play with the highest score
    mean: float  # any play
    majority: float | None
    oracle: float  # the best play
    gain: Estimate  # of the chosen over the mean
    over_majority: Estimate | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a ranker is worth, and which plays count."""

    rows: list[Row]
    accounts: list[Account]

    def as_dict(self) -> dict[str, Any]:
        return {
            "accounts": [account.as_dict() for account in self.accounts],
            "rows": [row.as_dict() for row in self.rows],
        }


def trained_tasks(model: RewardModel) -> frozenset[str]:
    """The tasks whose pairs a model learned from."""
    pairs = read_parquet(f"{model.folder}/pairs/part-00000.parquet", PAIRS, ["task", "held_out"])
    return frozenset(row["task"] for row in pairs.to_pylist() if not row["held_out"])


def ranked_plays(
    plays: Sequence[StoredPlay],
    scores: Sequence[float],
    ballots: Mapping[str, str],
    trained: frozenset[str],
    sizes: Sequence[int],
) -> Ranking:
    """The best of n for each n.

    Args:
        plays: any stored plays.
        scores: of each.
        ballots: by play, where it casts one.
        trained: tasks that are left out.
        sizes: the n; tasks with fewer plays than the largest are left out, so that all rows are of the same.

    Raises:
        UsageError: no task is left.
    """
    by_task: dict[str, list[Ranked]] = {}
    for play, score in zip(plays, scores, strict=True):
        by_task.setdefault(play.task, []).append(Ranked(score, play.value, ballots.get(play.play)))
    excluded: Counter[str] = Counter()
    kept: dict[str, list[Ranked]] = {}
    for task, of_task in sorted(by_task.items()):
        if task in trained:
            excluded[TRAINED] += 1
        elif len(of_task) < max(sizes):
            excluded[TOO_FEW] += 1
        else:
            kept[task] = of_task
    account = Account(
        "tasks to ranked tasks", "task", len(by_task), len(kept), dict(sorted(excluded.items()))
    )
    account.check()
    if not kept:
        reasons = ", ".join(f"{count} {reason}" for reason, count in excluded.items()) or "there are none"
        raise UsageError(
            f"no task is left to rank plays of: {reasons}; name a run of other tasks, evaluate with more "
            f"samples, or ask for less than the best of {max(sizes)}"
        )
    return Ranking([_row(kept, n) for n in sorted(set(sizes))], [account])


def _row(by_task: Mapping[str, Sequence[Ranked]], n: int) -> Row:
    chosen = [best_of(plays, n) for plays in by_task.values()]
    means = [fmean(play.value for play in plays) for plays in by_task.values()]
    votes = [majority_of(plays, n, task) for task, plays in by_task.items()]
    voted = [vote if vote is not None else 0.0 for vote in votes]
    has_votes = any(vote is not None for vote in votes)
    return Row(
        n=n,
        chosen=estimate_mean(chosen),
        mean=fmean(means),
        majority=fmean(voted) if has_votes else None,
        oracle=fmean(oracle(plays, n) for plays in by_task.values()),
        gain=estimate_mean([a - b for a, b in zip(chosen, means, strict=True)]),
        over_majority=estimate_mean([a - b for a, b in zip(chosen, voted, strict=True)])
        if has_votes
        else None,
    )


def collected(run: Run, model: RewardModel, split: str | None, value: str | None) -> Collected:
    """The plays of a run, with what they earned by the measure of the training, unless another is named."""
    named = value if value is not None else model.info["asked"]["reward_model"]["value"]
    return collect([run], {run.folder.url: answer_step_of(run)}, Where(named, split))


def ballots_of(run: Run, split: str | None) -> dict[str, str]:
    """By play, what its answer votes for; {} where the workflow declares no answer.

    Raises:
        InfraError: programs vote, and the sandbox failed.
    """
    settings = settings_of(run, ())
    try:
        workflow = load_workflow(settings.workflow.use, workflow_options(settings))
        if workflow.answer_step is None:
            return {}
        box = BallotBox(workflow.answer_step, workflow.task, sandbox_of(settings.sandbox))
        box.check_ready()
    except UsageError:
        return {}
    seen = {"tasks": TASKS_SEEN, "turns": TURNS_SEEN, "episodes": EPISODES_SEEN}
    found: dict[str, str] = {}
    for tables in _tables(run, split):
        for index in range(len(tables["episodes"].parts)):
            parts = [tables[name].read_part(index, schema.names) for name, schema in seen.items()]
            found |= {f"0:{episode}": ballot for episode, ballot in box.ballots(*parts).items()}
    return found


def _tables(run: Run, split: str | None) -> list[Mapping[str, Any]]:
    if split is None:
        places = [Finished.read(run.iteration(index)) for index in run.iterations()]
    else:
        numbers = [n for n in run.folder.child(f"evaluations/{split}").names() if n.isdigit()]
        places = [Finished.read(run.evaluation(split, int(n)), RESULT) for n in numbers]
    return [place.measured for place in places if {"tasks", "turns", "episodes"} <= place.tables.keys()]


def ranking_page(model: RewardModel, run: Run, ranking: Ranking) -> RenderableType:
    """The best of n as a table, beside what needs no reward model."""
    table = open_table(
        "  best of", ">chosen", ">interval", ">any play", ">majority", ">best play", ">gain", ">interval"
    )
    for row in ranking.rows:
        table.add_row(
            cell(f"  {row.n}"),
            cell(f"{row.chosen.mean:.3f}"),
            cell(row.chosen.interval),
            cell(f"{row.mean:.3f}"),
            cell(None if row.majority is None else f"{row.majority:.3f}"),
            cell(f"{row.oracle:.3f}"),
            cell(f"{row.gain.mean:+.3f}"),
            cell(row.gain.interval),
        )
    lines = account_lines(ranking.as_dict()["accounts"])
    last = ranking.rows[-1]
    note = "chosen: by the model's score; gain: over any play, task by task, 95 % over tasks"
    verdict: list[Text] = []
    if last.over_majority is not None:
        share = f"{last.over_majority.mean:+.3f} {last.over_majority.interval}"
        verdict.append(Text(visible(f"  best of {last.n} against a majority of {last.n}: {share}")))
    return Group(
        Text(visible(f"plays of {run.name} ranked by {model.folder}"), "bold"),
        *(Text(visible(f"  {line}")) for line in lines),
        Text(),
        table,
        *verdict,
        Text(visible(f"  {note}"), "dim"),
    )
