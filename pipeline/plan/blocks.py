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
from workflows.errors import UsageError, did_you_mean
from workflows.loading import load_plugin

if TYPE_CHECKING:
    from pipeline.plan.assemble import Plan

SCHEDULE: Final = "schedule"  # where a fingerprint says which schedule made a stage's block
BUILTIN_SCHEDULES: Final = {
    "simultaneous": "pipeline.plan.blocks:Simultaneous",
    "sequential": "pipeline.plan.blocks:Sequential",
}

Fingerprints = Mapping[str, Mapping[str, Any]]
Manifests = Mapping[str, Manifest]
"""The manifests of one finished block, by stage name."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block: its number within the iteration, its stages in order, and what their results depend on.

    `shared` names tables that the stages read of an earlier block, and the number of that block.
    """

    index: int
    stages: tuple[Stage, ...]
    fingerprints: Fingerprints
    shared: Mapping[str, int] = field(default_factory=dict)


class Schedule(Protocol):
    """What an iteration's blocks are. Its methods are pure: equal arguments give equal results."""

    def check(self, plan: Plan) -> None:
        """Refuse a plan that can't be cut so.

        Raises:
            UsageError: with what to change.
        """
        ...

    def next_block(self, plan: Plan, iteration: int, finished: Sequence[Manifests]) -> Block | None:
        """The block after the finished ones of an iteration, or None when there is nothing left to do."""
        ...


@dataclass(frozen=True, slots=True)
class Simultaneous:
    """One block: every model is trained on what the team of before the iteration played."""

    def check(self, plan: Plan) -> None:
        pass

    def next_block(self, plan: Plan, iteration: int, finished: Sequence[Manifests]) -> Block | None:
        return None if finished else Block(0, plan.stages, plan.fingerprints)


@dataclass(frozen=True, slots=True)
class Sequential:
    """A block for each model that is trained: the team plays anew with the models that were updated before.

    The iteration's tasks are dealt out, so that all blocks together play as many episodes as a simultaneous
    iteration.

    Args:
        order: ids of all models that are trained, in the order of their updates; without it, as in the
            settings.
    """

    order: tuple[str, ...] = ()

    def check(self, plan: Plan) -> None:
        trained = [model.model_id for model in plan.models.trainable]
        for name in self.order:
            if name not in trained:
                raise UsageError(
                    f"[schedule] order names {name!r}, which is not a model that is trained"
                    f"{did_you_mean(name, trained)}; trained are: {', '.join(trained)}"
                )
        if self.order and sorted(self.order) != sorted(trained):
            raise UsageError(
                f"[schedule] order is {', '.join(self.order)}; it must name each model that is trained once: "
                f"{', '.join(trained)}"
            )
        advantage = next((s for s in plan.stages if isinstance(s, AdvantageStage)), None)
        if len(trained) > 1 and advantage and any(spec.use == "gae" for spec in advantage.specs):
            raise UsageError(
                '[schedule] sequential trains one model in a block, and [advantage] use = "gae" reads the '
                'values of all models; use [advantage] use = "from_credit", or the simultaneous schedule'
            )
        count = next(s.tasks_per_iteration for s in plan.stages if isinstance(s, SampleStage))
        if count < len(trained):
            raise UsageError(
                f"[schedule] sequential deals {count} tasks out to {len(trained)} blocks, one for each model "
                f"that is trained; set data.tasks_per_iteration to {len(trained)} or more"
            )

    def next_block(self, plan: Plan, iteration: int, finished: Sequence[Manifests]) -> Block | None:
        units = self.order or tuple(model.model_id for model in plan.models.trainable)
        index = len(finished)
        if index == len(units):
            return None
        stages, fingerprints = only_models(plan.stages, plan.fingerprints, {units[index]})
        dealt = tuple(
            replace(s, piece=index, pieces=len(units)) if isinstance(s, SampleStage) else s for s in stages
        )
        mark = {"use": "sequential", "order": list(units)}
        return Block(index, dealt, {name: {**f, SCHEDULE: mark} for name, f in fingerprints.items()})


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
            kept.append(replace(stage, models=tuple(m for m in stage.models if m.model_id in models)))
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
