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
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

from pipeline.store.manifest import Manifest
from stages.advantage import AdvantageStage
from stages.base import Stage
from stages.partition import PartitionStage
from stages.rollout import BASE_TURNS, RolloutStage
from stages.sample import SampleStage
from stages.score import ScoreStage
from stages.stored_scores import StoredScoresStage
from stages.update import UpdateStage
from workflows.errors import UsageError, did_you_mean
from workflows.plugins import load_plugin
from workflows.script import AnyWorkflow, ScriptWorkflow
from workflows.steps import LlmStep
from workflows.trajectory import seed_for

if TYPE_CHECKING:
    from pipeline.plan.assemble import Plan

SCHEDULE: Final = "schedule"  # where a fingerprint says which schedule made a stage's block
BUILTIN_SCHEDULES: Final = {
    "simultaneous": "pipeline.plan.blocks:Simultaneous",
    "sequential": "pipeline.plan.blocks:Sequential",
    "refill": "pipeline.plan.blocks:Refill",
}

ORDERS: Final = ("fixed", "random", "forward", "reverse")
Rollouts = Literal["fresh", "stale", "every_k", "suffix"]
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
    """One update after another: a block for each *unit*, which is a model, or models that go together.

    Args:
        order: "fixed" (as in the settings), "random" (anew in every iteration, from the run's seed),
            "forward" or "reverse" (by which unit speaks first in the workflow), or ids of models in the order
            of their updates.
        groups: models that are updated in the same block; every other model is a unit of its own.
        rollouts: "fresh" (before every update the team plays anew, with the models that were updated
            before), "stale" (all updates are made on what the team of before the iteration played),
            "every_k" (fresh before every k-th update) or "suffix" (one slice of tasks is played once, and
            before every later update its episodes are played again from the first turn of a model that was
            updated since).
        every: the k of "every_k".

    The tasks of an iteration are dealt out to its rollouts, so that every choice plays equally many episodes.
    "suffix" has the first slice in every block: as many rows for each update as "fresh". What comes before
    the first updated turn is a copy, exact because the weights that sampled it have not moved. Where the last
    speakers are updated first, n units take (n + 1) / 2n of the sampled tokens of "fresh"; in speaking order
    nothing is saved. Later updates learn from beginnings that earlier ones have seen, so what they promise is
    optimistic: judge a team on tasks that trained nothing.

    Sequential updates on fresh plays are what TeamTR proposes (arXiv:2605.15207), which bounds each update
    by a trust region as well.
    """

    order: str | Sequence[str] = "fixed"
    groups: Sequence[Sequence[str]] = ()
    rollouts: Rollouts = "fresh"
    every: int = 2

    def check(self, plan: Plan) -> None:
        trained = [model.model_id for model in plan.models.trainable]
        self._check_names(trained)
        if self.rollouts not in get_args(Rollouts):
            raise UsageError(
                f"[schedule] rollouts = {self.rollouts!r}{did_you_mean(self.rollouts, get_args(Rollouts))}; "
                f"expected one of {', '.join(get_args(Rollouts))}"
            )
        if self.rollouts == "every_k" and self.every < 1:
            raise UsageError(f"[schedule] every = {self.every}; use 1 (fresh before every update) or more")
        advantage = next((s for s in plan.stages if isinstance(s, AdvantageStage)), None)
        units = self._in_settings_order(trained)
        chained = [spec for spec in (advantage.specs if advantage else ()) if spec.use == "gae"]
        if len(units) > 1 and chained and self.rollouts == "suffix":
            raise UsageError(
                '[schedule] rollouts = "suffix" trains one unit in a block on ends of episodes, and '
                '[advantage] use = "gae" reads the values of all models; use [advantage] use = '
                '"from_credit", or rollouts = "fresh"'
            )
        if len(units) > 1 and any(spec.gae.across_turns for spec in chained):
            raise UsageError(
                "[schedule] sequential trains one unit in a block, and GAE with advantage.across_turns = "
                "true reads the values of all models; set advantage.across_turns = false, or use "
                '[advantage] use = "from_credit", or the simultaneous schedule'
            )
        count = _tasks_of(plan)
        pieces = -(-len(units) // self._steps(len(units)))
        if count < pieces:
            raise UsageError(
                f"[schedule] sequential deals {count} tasks out to {pieces} rollouts; set "
                f"data.tasks_per_iteration to {pieces} or more"
            )

    def next_block(self, plan: Plan, iteration: int, finished: Sequence[Manifests]) -> Block | None:
        units = self.units(plan, iteration)
        index, steps = len(finished), self._steps(len(units))
        if index == len(units):
            return None
        played = index - index % steps  # the block whose plays this one trains on
        stages, fingerprints = only_models(plan.stages, plan.fingerprints, units[index])
        mark = {"use": "sequential", "order": ["+".join(unit) for unit in units], "rollouts_every": steps}
        mark |= {"rollouts": "suffix"} if self.rollouts == "suffix" else {}  # else as in runs that are older
        if played != index:
            return _training_block(index, stages, fingerprints, mark, [played])
        piece, pieces = played // steps, -(-len(units) // steps)
        count = _tasks_of(plan)
        if self.rollouts == "suffix":
            return _suffix_block(index, stages, fingerprints, mark, count // pieces)
        begin, end = count * piece // pieces, count * (piece + 1) // pieces
        stages = _sampling(stages, tasks_per_iteration=end - begin, offset=begin, stride=count)
        return Block(index, stages, _marked(stages, fingerprints, mark))

    def units(self, plan: Plan, iteration: int) -> list[tuple[str, ...]]:
        """The units in the order in which this iteration updates them."""
        trained = [model.model_id for model in plan.models.trainable]
        units = self._in_settings_order(trained)
        if not isinstance(self.order, str):
            places = {name: place for place, name in enumerate(self.order)}
            return sorted(units, key=lambda unit: min(places[name] for name in unit))
        if self.order == "random":
            seed = plan.resolved.run.seed
            return sorted(units, key=lambda unit: (seed_for(seed, "schedule", iteration, *unit), unit))
        if self.order in ("forward", "reverse"):
            first, never = _first_words(plan), len(plan.workflow.order)
            return sorted(
                units,
                key=lambda unit: min(first.get(name, never) for name in unit),
                reverse=self.order == "reverse",
            )
        return units

    def _steps(self, units: int) -> int:
        """Updates on the plays of one rollout."""
        return {"stale": units, "every_k": min(self.every, units)}.get(self.rollouts, 1)

    def _in_settings_order(self, trained: Sequence[str]) -> list[tuple[str, ...]]:
        of_group = {name: tuple(group) for group in self.groups for name in group}
        return list(dict.fromkeys(of_group.get(name, (name,)) for name in trained))

    def _check_names(self, trained: Sequence[str]) -> None:
        """Refuse names of no model that is trained, names that come twice, and orders that leave one out."""
        if isinstance(self.order, str) and self.order not in ORDERS:
            raise UsageError(
                f"[schedule] order = {self.order!r}{did_you_mean(self.order, ORDERS)}; expected one of "
                f"{', '.join(ORDERS)}, or a list of model ids"
            )
        for key, names in (
            ("order", [] if isinstance(self.order, str) else list(self.order)),
            ("groups", [name for group in self.groups for name in group]),
        ):
            for name in names:
                if name not in trained:
                    raise UsageError(
                        f"[schedule] {key} names {name!r}, which is not a model that is trained"
                        f"{did_you_mean(name, trained)}; trained are: {', '.join(trained)}"
                    )
                if names.count(name) > 1:
                    raise UsageError(f"[schedule] {key} names {name!r} twice; name each model once")
            if key == "order" and names and len(names) < len(trained):
                raise UsageError(
                    f"[schedule] order is {', '.join(names)}; it must name each model that is trained once: "
                    f"{', '.join(trained)}"
                )


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
        if self.tasks is not None and not 1 <= self.tasks <= _tasks_of(plan) * self.rollouts:
            raise UsageError(
                f"[schedule] tasks = {self.tasks} can't be reached by {self.rollouts} rollouts of at most "
                f"{_tasks_of(plan)} tasks; expected 1 to {_tasks_of(plan) * self.rollouts}"
            )
        if plan.resolved.credit.silent != "exclude" or plan.resolved.advantage.use != "from_credit":
            raise UsageError(
                "[schedule] refill replaces tasks whose advantages are all 0, so these must be left out of "
                'updates: set credit.silent = "exclude", and [advantage] use = "from_credit"'
            )

    def next_block(self, plan: Plan, iteration: int, finished: Sequence[Manifests]) -> Block | None:
        index, count = len(finished), _tasks_of(plan)
        if finished and "partition" in finished[-1]:
            return None
        mark = {"use": "refill", "rollouts": self.rollouts, "tasks": self.tasks}
        played = sum(int(block["sample"].metrics["tasks"]) for block in finished)
        signal = sum(int(block["credit"].metrics["tasks_with_signal"]) for block in finished)
        missing = (count if self.tasks is None else self.tasks) - signal
        if index == self.rollouts or (index and missing <= 0):
            if not signal:
                return None
            return _training_block(index, plan.stages, plan.fingerprints, mark, range(index))
        # as many as are missing if the next ones teach as often as those so far, and at most a whole slice
        wanted = count if not signal else min(count, -(-missing * played // signal))
        stages = _sampling(
            plan.stages[: _trains_from(plan.stages)],
            tasks_per_iteration=wanted,
            offset=played,
            stride=count * self.rollouts,
        )
        return Block(index, stages, _marked(stages, plan.fingerprints, mark))


def _tasks_of(plan: Plan) -> int:
    return plan.resolved.data.tasks_per_iteration


def _sampling(
    stages: Sequence[Stage], *, tasks_per_iteration: int, offset: int, stride: int
) -> tuple[Stage, ...]:
    """The stages with another choice of tasks: see `SampleStage`."""
    return tuple(
        replace(s, tasks_per_iteration=tasks_per_iteration, offset=offset, stride=stride)
        if isinstance(s, SampleStage)
        else s
        for s in stages
    )


def _marked(
    stages: Sequence[Stage], fingerprints: Fingerprints, mark: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    return {stage.name: {**fingerprints[stage.name], SCHEDULE: dict(mark)} for stage in stages}


def _training_block(
    index: int,
    stages: Sequence[Stage],
    fingerprints: Fingerprints,
    mark: Mapping[str, Any],
    played: Sequence[int],
) -> Block:
    """The stages from the partition on, over the plays of earlier blocks."""
    split = _trains_from(stages)
    written = {table for stage in stages[:split] for table in stage.outputs}
    training = tuple(stages[split:])
    shared = {t: tuple(played) for stage in training for t in stage.inputs if t in written}
    return Block(index, training, _marked(training, fingerprints, mark), shared)


def _suffix_block(
    index: int, stages: Sequence[Stage], fingerprints: Fingerprints, mark: Mapping[str, Any], tasks: int
) -> Block:
    """The stages on the first tasks of the iteration; after block 0, episodes begin with those of it."""
    stages = _sampling(stages, tasks_per_iteration=tasks, offset=0, stride=tasks)
    if index:
        stages = tuple(replace(s, suffix=True) if isinstance(s, RolloutStage) else s for s in stages)
    return Block(index, stages, _marked(stages, fingerprints, mark), {BASE_TURNS: (0,)} if index else {})


def _trains_from(stages: Sequence[Stage]) -> int:
    """The place of the first stage that belongs to some models only: their partition."""
    return next(place for place, stage in enumerate(stages) if isinstance(stage, PartitionStage))


def _first_words(plan: Plan) -> dict[str, int]:
    """By model: the place in the workflow of the first step that one of its roles speaks at."""
    workflow, places = plan.workflow, dict[str, int]()
    for place, step in enumerate(workflow.order):
        if (role := _role_at(workflow, step)) is not None:
            places.setdefault(plan.models.model_of(role).model_id, place)
    return places


def _role_at(workflow: AnyWorkflow, step: str) -> str | None:
    """The role that speaks at a step; None where none does."""
    if isinstance(workflow, ScriptWorkflow):
        actor = workflow.steps[step]
        return actor if actor in workflow.roles else None
    node = workflow.step_of[step]
    return node.role if isinstance(node, LlmStep) else None


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
