"""An iteration as blocks of stages, and schedules, which say what the next block is.

A block is a list of stages with a folder of its own: tasks are sampled, played, credited and trained on
there. Most runs have one block an iteration, in which all models are trained at the same time. A schedule
may ask for more: how many depends on nothing but the plan and the manifests of the blocks that are
finished, so a resumed iteration gets the list that an unbroken one has.

    plan, finished blocks → next block, or None when the iteration is done
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from pipeline.store.manifest import Manifest
from stages.advantage import AdvantageStage
from stages.base import Stage
from stages.partition import PartitionStage
from stages.sample import SampleStage
from stages.score import ScoreStage
from stages.stored_scores import StoredScoresStage
from stages.update import UpdateStage
from workflows.errors import UsageError
from workflows.plugins import load_plugin

if TYPE_CHECKING:
    from pipeline.plan.assemble import Plan

SCHEDULE: Final = "schedule"  # where a fingerprint says which schedule made a stage's block
BUILTIN_SCHEDULES: Final = {
    "simultaneous": "pipeline.plan.blocks:Simultaneous",
    "sequential": "pipeline.plan.sequential:Sequential",
    "refill": "pipeline.plan.blocks:Refill",
}

Fingerprints = Mapping[str, Mapping[str, Any]]
Manifests = Mapping[str, Manifest]
"""The manifests of one finished block, by stage name."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block: its number within the iteration, its stages in order, and what their results depend on.

    `shared` names tables that the stages read of earlier blocks (by `stages.base.written_as`), and the
    numbers of those blocks.
    """

    index: int
    stages: tuple[Stage, ...]
    fingerprints: Fingerprints
    shared: Mapping[str, Sequence[int]] = field(default_factory=dict)


class Schedule(Protocol):
    """What an iteration's blocks are. Its methods are pure: equal arguments give equal results."""

    def check(self, plan: Plan) -> None:
        """Refuse a plan that can't be cut so.

        Raises:
            UsageError: with what to change.
        """
        ...

    def next_block(self, plan: Plan, iteration: int, finished: Sequence[Manifests]) -> Block | None:
        """The block after the finished ones of an iteration, or None when there is nothing left to do.

        A schedule with `reads_earlier = True` is also given `earlier`: the manifests of the blocks of the
        iteration before, none in the first.
        """
        ...


@dataclass(frozen=True, slots=True)
class Simultaneous:
    """One block: every model is trained on what the team of before the iteration played."""

    def check(self, plan: Plan) -> None:
        pass

    def next_block(self, plan: Plan, iteration: int, finished: Sequence[Manifests]) -> Block | None:
        return None if finished else Block(0, plan.stages, plan.fingerprints)


@dataclass(frozen=True, slots=True)
class Refill:
    """Tasks without signal are replaced: the team plays further tasks until enough of them teach something.

    A block for each rollout, then one that trains all models on the plays of all of them. What counts is how
    many tasks have an advantage that is not 0. An iteration in which none has one makes no update.
    Source: dynamic sampling of DAPO, arXiv:2503.14476, section 3.2, with a budget.

    Args:
        rollouts: the most rollouts of an iteration, the first included.
        tasks: with signal, to reach; without it, `data.tasks_per_iteration`.

    Every iteration has a slice of its own of rollouts times `data.tasks_per_iteration` tasks to draw from, so
    what an iteration plays does not depend on how many tasks earlier ones needed.
    """

    rollouts: int = 3
    tasks: int | None = None

    def check(self, plan: Plan) -> None:
        if self.rollouts < 2:
            raise UsageError(
                f"[schedule] rollouts = {self.rollouts} leaves nothing to refill; use 2 or more, or use = "
                '"simultaneous"'
            )
        if self.tasks is not None and not 1 <= self.tasks <= tasks_of(plan) * self.rollouts:
            raise UsageError(
                f"[schedule] tasks = {self.tasks} can't be reached by {self.rollouts} rollouts of at most "
                f"{tasks_of(plan)} tasks; expected 1 to {tasks_of(plan) * self.rollouts}"
            )
        if plan.resolved.credit.silent != "exclude" or plan.resolved.advantage.use != "from_credit":
            raise UsageError(
                "[schedule] refill replaces tasks whose advantages are all 0, so these must be left out of "
                'updates: set credit.silent = "exclude", and [advantage] use = "from_credit"'
            )

    def next_block(self, plan: Plan, iteration: int, finished: Sequence[Manifests]) -> Block | None:
        index, count = len(finished), tasks_of(plan)
        if finished and "partition" in finished[-1]:
            return None
        mark = {"use": "refill", "rollouts": self.rollouts, "tasks": self.tasks}
        played = sum(int(block["sample"].metrics["tasks"]) for block in finished)
        signal = sum(int(block["credit"].metrics["tasks_with_signal"]) for block in finished)
        missing = (count if self.tasks is None else self.tasks) - signal
        if index == self.rollouts or (index and missing <= 0):
            if not signal:
                return None
            return training_block(index, plan.stages, plan.fingerprints, mark, range(index))
        # as many as are missing if the next ones teach as often as those so far, and at most a whole slice
        wanted = count if not signal else min(count, -(-missing * played // signal))
        stages = sampling(
            plan.stages[: trains_from(plan.stages)],
            tasks_per_iteration=wanted,
            offset=played,
            stride=count * self.rollouts,
        )
        return Block(index, stages, marked(stages, plan.fingerprints, mark))


def tasks_of(plan: Plan) -> int:
    return plan.resolved.data.tasks_per_iteration


def sampling(
    stages: Sequence[Stage], *, tasks_per_iteration: int, offset: int, stride: int
) -> tuple[Stage, ...]:
    """The stages with another choice of tasks: see `SampleStage`."""
    return tuple(
        replace(s, tasks_per_iteration=tasks_per_iteration, offset=offset, stride=stride)
        if isinstance(s, SampleStage)
        else s
        for s in stages
    )


def marked(
    stages: Sequence[Stage], fingerprints: Fingerprints, mark: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    return {stage.name: {**fingerprints[stage.name], SCHEDULE: dict(mark)} for stage in stages}


def training_block(
    index: int,
    stages: Sequence[Stage],
    fingerprints: Fingerprints,
    mark: Mapping[str, Any],
    played: Sequence[int],
) -> Block:
    """The stages from the partition on, over the plays of earlier blocks."""
    split = trains_from(stages)
    written = {table for stage in stages[:split] for table in stage.outputs}
    training = tuple(stages[split:])
    shared = {t: tuple(played) for stage in training for t in stage.inputs if t in written}
    return Block(index, training, marked(training, fingerprints, mark), shared)


def trains_from(stages: Sequence[Stage]) -> int:
    """The place of the first stage that belongs to some models only: their partition."""
    return next(place for place, stage in enumerate(stages) if isinstance(stage, PartitionStage))


def load_schedule(use: str, options: Mapping[str, Any]) -> Schedule:
    """The schedule that `use` names: a built-in, or `package.module:Class`.

    Raises:
        UsageError: there is none by that name, or it does not take these options.
    """
    schedule: Schedule = load_plugin(use, options, BUILTIN_SCHEDULES, "schedule")
    return schedule


def only_models(
    stages: Sequence[Stage], fingerprints: Fingerprints, models: Collection[str]
) -> tuple[tuple[Stage, ...], dict[str, Mapping[str, Any]]]:
    """The stages of an iteration that train these models alone, and their fingerprints.

    Stages before the partition stay as they are: the whole team plays.
    """
    advantage = next((s for s in stages if isinstance(s, AdvantageStage)), None)
    tokens = tuple(t for t in advantage.specs if t.model_id in models) if advantage else ()
    with_tokens = any(t.does_something for t in tokens)
    kept: list[Stage] = []
    for stage in stages:
        if isinstance(stage, PartitionStage):
            others = frozenset(m.model_id for m in stage.models if m.model_id not in models)
            here = tuple(m for m in stage.models if m.model_id in models)
            kept.append(replace(stage, models=here, elsewhere=others))
        elif isinstance(stage, AdvantageStage):
            kept += [AdvantageStage(tokens)] if with_tokens else []
        elif isinstance(stage, ScoreStage | StoredScoresStage):
            kept += [stage] if stage.model_id in models else []
        elif isinstance(stage, UpdateStage):
            kept += [stage.reading(advantages=with_tokens)] if stage.model.model_id in models else []
        else:
            kept.append(stage)
    of_kept = {stage.name: fingerprints[stage.name] for stage in kept if stage.name in fingerprints}
    if "partition" in of_kept:
        of_partition = of_kept["partition"]
        cut = {m: spec for m, spec in of_partition["models"].items() if m in models}
        of_kept["partition"] = {**of_partition, "models": cut}
    if "advantage" in of_kept:
        of_kept["advantage"] = {m: spec for m, spec in of_kept["advantage"].items() if m in models}
    return tuple(kept), of_kept
