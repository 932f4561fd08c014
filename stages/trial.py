"""A candidate on trial: the team plays held-out tasks with it and without it, with equal seeds.

The plays lie beside the tables of the update while it is decided on; nothing counts them among the plays or
tokens of the iteration, and nothing trains on them. What is compared, by task, is what they earned: a *pair*
is a task and sample that both teams have played. The candidate stays where a lower bound on the mean gain is
at least minus the tolerance.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from stages.base import Account, Context
from stages.reward import RewardStage
from stages.rollout import RolloutStage
from stages.sample import SampleStage
from stages.tables.filesystem import filesystem
from stages.tables.parquet import TableRef, TableSink
from stages.training.group import TrainerGroup
from stages.training.spec import UpdateReport
from workflows.errors import RunFailed
from workflows.trajectory import EPISODES, REWARDS, TASKS, TURNS

Played = dict[tuple[str, int], dict[str, Any]]
"""By task and sample: `return`, `failed`, `response_tokens`, `prompt_tokens` of a play."""

FAILED: Final = "no return"


@dataclass(frozen=True, slots=True)
class Gain:
    """What a team earns with a candidate, less what it earns without it: over pairs of plays, by task."""

    before: float  # mean return of the pairs
    after: float
    lower: float  # bound on the mean difference
    tasks: int

    @property
    def mean(self) -> float:
        return self.after - self.before

    def told(self) -> str:
        return (
            f"{self.before:.3f} → {self.after:.3f} on {self.tasks} held-out tasks, a gain of at least "
            f"{self.lower:+.3f}"
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """Which tasks a candidate is tried on, and how.

    Args:
        sample: chooses the tasks, other ones in every iteration.
        rollout: plays them.
        reward: says what the plays earned.
        z: standard errors that the bound subtracts.
        tolerance: how far below 0 the bound may be.
    """

    sample: SampleStage
    rollout: RolloutStage
    reward: RewardStage
    z: float
    tolerance: float

    def decided(
        self, group: TrainerGroup, report: UpdateReport, folder: str, context: Context
    ) -> tuple[UpdateReport, list[dict[str, Any]], Account, str]:
        """Keep the candidate of an update, or take it back: its report, rows of `TRIAL`, the account of the
        plays, and a sentence.

        The engine holds the weights of before at the call, and those that stay after it.

        Args:
            group: the trainer, which has made the candidate.
            report: of its update, on trial.
            folder: for the plays and the candidate's weights; it is removed.
        """
        with _removed(folder):
            tasks = self._tasks(f"{folder}/tasks", context)
            before = self._played(f"{folder}/before", tasks, context)
            context.fleet.weights_changed(group.publish(f"{folder}/candidate"))
            after = self._played(f"{folder}/after", tasks, context)
            rows = pairs(before, after)
            gain = gain_of(rows, self.z)
            lost = gain.lower < -self.tolerance
            report = group.settle(f"the trial: {gain.told()}" if lost else None)
            if lost:
                context.fleet.weights_changed(group.publish(f"{folder}/start"))
        at = {"iteration": report.iteration, "block": report.block, "model_id": report.model_id}
        assert report.trust is not None, "an update on trial has a trust region"
        at |= {"candidate_version": report.trust["candidate_version"]}
        at |= {"version_before": report.version_before}
        return report, [at | row for row in rows], account_of(report.model_id, rows), gain.told()

    def _tasks(self, folder: str, context: Context) -> TableRef:
        sink = TableSink("tasks", folder, TASKS)
        return sink.ref(self.sample.run({}, {"tasks": sink}, context).parts["tasks"])

    def _played(self, folder: str, tasks: TableRef, context: Context) -> Played:
        """What the team earns on these tasks, at the weights that its engines have."""
        sinks = {
            "turns": TableSink("turns", f"{folder}/turns", TURNS),
            "episodes": TableSink("episodes", f"{folder}/episodes", EPISODES),
            "rewards": TableSink("rewards", f"{folder}/rewards", REWARDS),
        }
        of_plays = {name: sinks[name] for name in ("turns", "episodes")}
        parts = self.rollout.run({"tasks": tasks}, of_plays, context).parts
        tables = {"tasks": tasks} | {name: sink.ref(parts[name]) for name, sink in of_plays.items()}
        rewarded = self.reward.run(tables, {"rewards": sinks["rewards"]}, context)
        rewards = sinks["rewards"].ref(rewarded.parts["rewards"])
        return returns_of(tables["episodes"], rewards)


def returns_of(episodes: TableRef, rewards: TableRef) -> Played:
    """What each episode earned: the mean reward of its turns that have one."""
    names = ["episode_id", "task_id", "sample", "error", "num_response_tokens", "num_prompt_tokens"]
    of_turns = pl.DataFrame(rewards.read(["episode_id", "reward", "no_reward_reason"]))
    earned = of_turns.group_by("episode_id").agg(
        pl.col("reward").mean().alias("return"), pl.col("no_reward_reason").drop_nulls().first().alias("why")
    )
    played: Played = {}
    for row in pl.DataFrame(episodes.read(names)).join(earned, on="episode_id", how="left").to_dicts():
        failed = None if row["return"] is not None else str(row["error"] or row["why"] or FAILED)
        played[row["task_id"], row["sample"]] = {
            "return": row["return"],
            "failed": failed,
            "response_tokens": row["num_response_tokens"],
            "prompt_tokens": row["num_prompt_tokens"],
        }
    return played


def pairs(before: Played, after: Played) -> list[dict[str, Any]]:
    """Rows of `TRIAL` without their place, sorted by task and sample."""
    rows = []
    for task, sample in sorted(before.keys() | after.keys()):
        one, other = before.get((task, sample), {}), after.get((task, sample), {})
        row = {"task_id": task, "sample": sample, "failed": None}
        for name, play in (("before", one), ("candidate", other)):
            row |= {
                f"{what}_{name}": play.get(what) for what in ("return", "response_tokens", "prompt_tokens")
            }
            if play.get("return") is None:
                row["failed"] = row["failed"] or f"{name}: {play.get('failed') or FAILED}"
        rows.append(row)
    return rows


def gain_of(rows: Sequence[Mapping[str, Any]], z: float) -> Gain:
    """The mean difference of pairs, and mean - z · its standard error over tasks.

    Samples of one task are not independent, tasks are.

    Raises:
        RunFailed: fewer than two tasks have a pair, so nothing can be said.
    """
    by_task: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["failed"] is None:
            by_task.setdefault(row["task_id"], []).append((row["return_before"], row["return_candidate"]))
    if len(by_task) < 2:
        reasons = sorted({str(row["failed"]) for row in rows if row["failed"]})
        raise RunFailed(
            f"the trial of a candidate needs 2 tasks that the team played with it and without it, and has "
            f"{len(by_task)} of {len({row['task_id'] for row in rows})}: {'; '.join(reasons[:3])}"
        )
    means = [tuple(statistics.fmean(side) for side in zip(*each, strict=True)) for each in by_task.values()]
    differences = [after - before for before, after in means]
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    before, after = (statistics.fmean(side) for side in zip(*means, strict=True))
    return Gain(before, after, statistics.fmean(differences) - z * error, len(means))


def account_of(model_id: str, rows: Sequence[Mapping[str, Any]]) -> Account:
    """Pairs that were played = pairs that are compared + pairs in which a play failed."""
    failed: dict[str, int] = {}
    for row in rows:
        if row["failed"] is not None:
            side = str(row["failed"]).partition(":")[0]
            failed[f"play {side} failed"] = failed.get(f"play {side} failed", 0) + 1
    compared = len(rows) - sum(failed.values())
    return Account(f"trial of {model_id}", "pair", len(rows), compared, failed)


@contextlib.contextmanager
def _removed(folder: str) -> Iterator[None]:
    """Nothing stays in a folder, whatever happens."""
    try:
        yield
    finally:
        fs, path = filesystem(folder)
        if fs.exists(path):
            fs.rm(path, recursive=True)
