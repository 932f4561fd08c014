"""Schedules in which one unit is updated after another: on which plays, and in which order.

A *unit* is a model that is trained, or a group of them that go together. Which plays an update is made on is
`rollouts`, who is next `order`; both may depend on what finished blocks have measured, and on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

from pipeline.plan.blocks import (
    Block,
    Fingerprints,
    Manifests,
    marked,
    only_models,
    sampling,
    tasks_of,
    training_block,
)
from pipeline.plan.units import Unit, coloured, first_words
from stages.advantage import AdvantageStage
from stages.base import Stage
from stages.rollout import BASE_TURNS, RolloutStage
from stages.shift import PrefixStage, ShiftStage
from stages.update import UpdateStage
from workflows.errors import UsageError, did_you_mean
from workflows.trajectory import seed_for

if TYPE_CHECKING:
    from pipeline.plan.assemble import Plan

MEASURED_ORDERS: Final = ("max_gain_per_kl", "lowest_ess")  # that follow from what updates have measured
ORDERS: Final = ("fixed", "random", "forward", "reverse", *MEASURED_ORDERS)
Rollouts = Literal["fresh", "stale", "every_k", "suffix", "reweighted", "budget"]
WEIGHTED: Final = ("reweighted", "budget")


@dataclass(frozen=True, slots=True)
class Sequential:
    """One update after another: a block for each *unit*, which is a model, or models that go together.

    Args:
        order: "fixed" (as in the settings), "random" (anew in every iteration, from the run's seed),
            "forward" or "reverse" (by which unit speaks first in the workflow), "max_gain_per_kl" (by what
            updates of the iteration before promised for each nat), "lowest_ess" (next the unit whose rows the
            updates so far have shifted most), or ids of models in the order of their updates.
        groups: models that are updated in the same block; every other model is a unit of its own. "coloured"
            makes them: units that no path leads between, one after another from the first.
        rollouts: "fresh" (before every update the team plays anew, with the models that were updated
            before), "stale" (all updates are made on what the team of before the iteration played),
            "every_k" (fresh before every k-th update), "suffix" (one slice of tasks is played once, and
            before every later update its episodes are played again from the first turn of a model that was
            updated since), "reweighted" (stale, and each row weighs as much as its context is likely today)
            or "budget" (fresh where the shift is too large for weights, else reweighted).
        every: the k of "every_k".
        weight_cap: the largest weight of a row, of "reweighted" and "budget".
        max_shift: of "budget": the shift budget above which the team plays anew.
        min_ess: of "budget": the effective share of rows below which it does.

    The tasks of an iteration are dealt out to its rollouts, so that every choice plays equally many episodes,
    and "budget" as many at most. "suffix" has the first slice in every block: as many rows for each update as
    "fresh". What comes before the first updated turn is a copy, exact because the weights that sampled it
    have not moved. Where the last speakers are updated first, n units take (n + 1) / 2n of the sampled tokens
    of "fresh"; in speaking order nothing is saved. Later updates learn from beginnings that earlier ones have
    seen, so what they promise is optimistic: judge a team on tasks that trained nothing.

    Sequential updates on fresh plays are what TeamTR proposes (arXiv:2605.15207), which bounds each update
    by a trust region as well.
    """

    order: str | Sequence[str] = "fixed"
    groups: str | Sequence[Sequence[str]] = ()
    rollouts: Rollouts = "fresh"
    every: int = 2
    weight_cap: float = 2.0
    max_shift: float = 0.1
    min_ess: float = 0.5

    reads_earlier: ClassVar[bool] = True

    def check(self, plan: Plan) -> None:
        trained = [model.model_id for model in plan.models.trainable]
        self._check_names(trained)
        if self.rollouts not in get_args(Rollouts):
            raise UsageError(
                f"[schedule] rollouts = {self.rollouts!r}{did_you_mean(self.rollouts, get_args(Rollouts))}; "
                f"expected one of {', '.join(get_args(Rollouts))}"
            )
        self._check_numbers()
        if self.groups == "coloured" and all(len(unit) == 1 for unit in self.units(plan)):
            raise UsageError(
                '[schedule] groups = "coloured" finds no two models between whose steps no path leads, so it '
                "has no effect; remove it, or name groups"
            )
        units = self.units(plan)
        self._check_gae(plan, len(units))
        needs = f'rollouts = "{self.rollouts}"' if self.rollouts in WEIGHTED else f'order = "{self.order}"'
        measured = self.rollouts in WEIGHTED or self.order in MEASURED_ORDERS
        if measured and len(units) > 1 and not any(isinstance(s, ShiftStage) for s in plan.stages):
            raise UsageError(
                f"[schedule] {needs} reads how far each update moved every message, which trust regions "
                "measure; set [trust_region] radius for all models, with share = 1 (a radius that is never "
                "reached, such as 1000, only measures)"
            )
        count = tasks_of(plan)
        pieces = self._pieces(len(units))
        if count < pieces:
            raise UsageError(
                f"[schedule] sequential deals {count} tasks out to {pieces} rollouts; set "
                f"data.tasks_per_iteration to {pieces} or more"
            )

    def next_block(
        self,
        plan: Plan,
        iteration: int,
        finished: Sequence[Manifests],
        earlier: Sequence[Manifests] = (),
    ) -> Block | None:
        units = self.units(plan)
        index = len(finished)
        if index == len(units):
            return None
        order = self._order(plan, iteration, finished, earlier)
        played = self._played(order, finished)  # for each update the block whose plays it is made on
        before = {
            m: block
            for block, unit in enumerate(order[:index])
            for m in unit
            if played[block] == played[index]
        }
        mark: dict[str, Any] = {"use": "sequential", "order": ["+".join(unit) for unit in order]}
        mark["rollouts_every"] = self._steps(len(units))
        if self.rollouts in ("suffix", *WEIGHTED):  # else as in runs that are older
            mark["rollouts"] = self.rollouts
        weighs = self.rollouts in WEIGHTED and played[index] != index
        stages, fingerprints = plan.stages, plan.fingerprints
        if weighs:
            stages, fingerprints = reweighted(plan, order[index], before, self.weight_cap)
        stages, fingerprints = only_models(stages, fingerprints, order[index])
        stages = _shifted(stages, (*before, *order[index]))
        if played[index] != index:
            block = training_block(index, stages, fingerprints, mark, [played[index]])
            return replace(block, shared={**block.shared, **_updates_of(block.stages, before)})
        piece, pieces = len(set(played[:index])), self._pieces(len(units))
        count = tasks_of(plan)
        if self.rollouts == "suffix":
            return _suffix_block(index, stages, fingerprints, mark, count // pieces)
        begin, end = count * piece // pieces, count * (piece + 1) // pieces
        stages = sampling(stages, tasks_per_iteration=end - begin, offset=begin, stride=count)
        return Block(index, stages, marked(stages, fingerprints, mark))

    def _order(
        self, plan: Plan, iteration: int, finished: Sequence[Manifests], earlier: Sequence[Manifests]
    ) -> list[Unit]:
        """The units in the order of their updates: all of them, or with "lowest_ess" up to the next one."""
        units = self.units(plan)
        if not isinstance(self.order, str):
            places = {name: place for place, name in enumerate(self.order)}
            return sorted(units, key=lambda unit: min(places[name] for name in unit))
        if self.order == "random":
            seed = plan.resolved.run.seed
            return sorted(units, key=lambda unit: (seed_for(seed, "schedule", iteration, *unit), unit))
        if self.order in ("forward", "reverse"):
            first, never = first_words(plan), len(plan.workflow.order)
            return sorted(
                units,
                key=lambda unit: min(first.get(name, never) for name in unit),
                reverse=self.order == "reverse",
            )
        if self.order == "max_gain_per_kl":
            gains = {unit: _gain_per_kl(unit, earlier) for unit in units}
            return sorted(units, key=lambda unit: -gains[unit])
        if self.order == "lowest_ess":
            order = units[:1]
            for block in finished:
                left = [unit for unit in units if unit not in order]
                if left:
                    order.append(min(left, key=lambda unit: _least_ess(unit, block)))
            return order
        return units

    def _played(self, order: Sequence[Unit], finished: Sequence[Manifests]) -> list[int]:
        """For each update up to the next one, the block whose plays it is made on."""
        played: list[int] = []
        for index in range(len(finished) + 1):
            steps = self._steps(len(order))
            if self.rollouts == "budget":
                stays = index > 0 and self._fits(order[index], finished[index - 1])
                played.append(played[-1] if stays else index)
            else:
                played.append(0 if self.rollouts == "reweighted" else index - index % steps)
        return played

    def _fits(self, unit: Unit, block: Manifests) -> bool:
        """Whether the plays of a block can be reweighted for a unit, by what the block measured."""
        metrics = block["shift"].metrics
        shift = max((metrics.get(f"shift_budget/{name}", math.inf) for name in unit), default=math.inf)
        return shift <= self.max_shift and _least_ess(unit, block) >= self.min_ess

    def _steps(self, units: int) -> int:
        """Updates on the plays of one rollout."""
        steps = {"stale": units, "reweighted": units, "every_k": min(self.every, units)}
        return steps.get(self.rollouts, 1)

    def _pieces(self, units: int) -> int:
        """Into how many slices the tasks of an iteration are cut."""
        return -(-units // self._steps(units))

    def units(self, plan: Plan) -> list[Unit]:
        """What is updated together, in the order of the settings."""
        trained = [model.model_id for model in plan.models.trainable]
        groups = coloured(plan, trained) if isinstance(self.groups, str) else self.groups
        of_group = {name: tuple(group) for group in groups for name in group}
        return list(dict.fromkeys(of_group.get(name, (name,)) for name in trained))

    def _check_numbers(self) -> None:
        if self.rollouts == "every_k" and self.every < 1:
            raise UsageError(f"[schedule] every = {self.every}; use 1 (fresh before every update) or more")
        if self.rollouts in WEIGHTED and not self.weight_cap >= 1:
            raise UsageError(
                f"[schedule] weight_cap = {self.weight_cap}; use 1 or more: 1 lowers weights only"
            )
        if self.rollouts == "budget" and not (self.max_shift >= 0 and 0 <= self.min_ess <= 1):
            raise UsageError(
                f"[schedule] max_shift = {self.max_shift} and min_ess = {self.min_ess}; use a shift of 0 or "
                "more (a bound on total variation), and a share of rows from 0 to 1"
            )
        of_weights = [("weight_cap", self.weight_cap != 2.0, WEIGHTED)]
        of_budget = [
            ("max_shift", self.max_shift != 0.1, ("budget",)),
            ("min_ess", self.min_ess != 0.5, ("budget",)),
        ]
        for name, is_set, where in (*of_weights, *of_budget):
            if is_set and self.rollouts not in where:
                raise UsageError(
                    f"[schedule] {name} has no effect with rollouts = {self.rollouts!r}; remove it, or use "
                    f"rollouts = {' or '.join(map(repr, where))}"
                )

    def _check_gae(self, plan: Plan, units: int) -> None:
        advantage = next((s for s in plan.stages if isinstance(s, AdvantageStage)), None)
        chained = [spec for spec in (advantage.specs if advantage else ()) if spec.use == "gae"]
        if units > 1 and chained and self.rollouts in ("suffix", *WEIGHTED):
            why = (
                "trains one unit in a block on ends of episodes"
                if self.rollouts == "suffix"
                else "weighs rows"
            )
            raise UsageError(
                f'[schedule] rollouts = "{self.rollouts}" {why}, and [advantage] use = "gae" reads the '
                'values of all models; use [advantage] use = "from_credit", or rollouts = "fresh"'
            )
        if units > 1 and any(spec.gae.across_turns for spec in chained):
            raise UsageError(
                "[schedule] sequential trains one unit in a block, and GAE with advantage.across_turns = "
                "true reads the values of all models; set advantage.across_turns = false, or use "
                '[advantage] use = "from_credit", or the simultaneous schedule'
            )
        imitating = [spec.model_id for spec in (advantage.specs if advantage else ()) if spec.imitate]
        if units > 1 and imitating and self.rollouts in WEIGHTED:
            raise UsageError(
                f'[schedule] rollouts = "{self.rollouts}" weighs rows by policies, and model '
                f'{imitating[0]!r} imitates; use rollouts = "stale", or another loss'
            )

    def _check_names(self, trained: Sequence[str]) -> None:
        """Refuse names of no model that is trained, names that come twice, and orders that leave one out."""
        if isinstance(self.order, str) and self.order not in ORDERS:
            raise UsageError(
                f"[schedule] order = {self.order!r}{did_you_mean(self.order, ORDERS)}; expected one of "
                f"{', '.join(ORDERS)}, or a list of model ids"
            )
        if isinstance(self.groups, str) and self.groups != "coloured":
            raise UsageError(
                f'[schedule] groups = {self.groups!r}; expected "coloured", or lists of model ids'
            )
        for key, names in (
            ("order", [] if isinstance(self.order, str) else list(self.order)),
            (
                "groups",
                [] if isinstance(self.groups, str) else [name for group in self.groups for name in group],
            ),
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


def reweighted(
    plan: Plan, unit: Collection[str], before: Collection[str], cap: float
) -> tuple[tuple[Stage, ...], dict[str, Mapping[str, Any]]]:
    """The plan's stages with weights for the rows of a unit, and their fingerprints.

    Args:
        before: teammates that were updated on the plays.
    """
    advantage = next((s for s in plan.stages if isinstance(s, AdvantageStage)), None)
    specs = (
        advantage.specs
        if advantage
        else tuple(plan.algorithms[m.model_id].tokens for m in plan.models.trainable)
    )
    tokens = tuple(replace(spec, prefix=True) if spec.model_id in unit else spec for spec in specs)
    weights = [PrefixStage(name, tuple(before), cap) for name in unit]
    stages: list[Stage] = []
    for stage in plan.stages:
        if isinstance(stage, UpdateStage) and not any(isinstance(s, AdvantageStage) for s in stages):
            stages += [*weights, AdvantageStage(tokens)]
        if isinstance(stage, AdvantageStage):
            stages += [*weights, AdvantageStage(tokens)]
        elif isinstance(stage, UpdateStage):
            stages.append(stage.reading(advantages=True))
        else:
            stages.append(stage)
    of_tokens = {
        m: {**spec, "prefix": True} if m in unit else spec
        for m, spec in plan.fingerprints["advantage"].items()
    }
    of_weights = {stage.name: {"cap": cap} for stage in weights}
    return tuple(stages), {**plan.fingerprints, "advantage": of_tokens, **of_weights}


def _shifted(stages: Sequence[Stage], updated: Sequence[str]) -> tuple[Stage, ...]:
    """The stages with the measure of shifts over the updates on these plays."""
    return tuple(replace(s, updated=tuple(updated)) if isinstance(s, ShiftStage) else s for s in stages)


def _updates_of(stages: Sequence[Stage], before: Mapping[str, int]) -> dict[str, Sequence[int]]:
    """What the stages read of the updates of earlier blocks: table → the block of the update."""
    written = {table for stage in stages for table in stage.outputs}
    return {
        table: (before[table.partition("/")[2]],)
        for stage in stages
        for table in stage.inputs
        if table.partition("/")[0] in ("ratios", "trust") and table not in written
    }


def _gain_per_kl(unit: Unit, earlier: Sequence[Manifests]) -> float:
    """What the unit's updates promised for each nat that an episode moved; infinite where none is known."""
    metrics = [
        block[f"update/{name}"].metrics for block in earlier for name in unit if f"update/{name}" in block
    ]
    gain = math.fsum(m.get("surrogate", 0.0) for m in metrics)
    far = math.fsum(m.get("kl_seq", 0.0) for m in metrics)
    return gain / far if far > 0 else math.inf


def _least_ess(unit: Unit, block: Manifests) -> float:
    """The smallest effective share of the rows of a unit's models; 0 where none is known."""
    metrics = block["shift"].metrics
    return min(metrics.get(f"ess_prefix/{name}", 0.0) for name in unit)


def _suffix_block(
    index: int, stages: Sequence[Stage], fingerprints: Fingerprints, mark: Mapping[str, Any], tasks: int
) -> Block:
    """The stages on the first tasks of the iteration; after block 0, episodes begin with those of it."""
    stages = sampling(stages, tasks_per_iteration=tasks, offset=0, stride=tasks)
    if index:
        stages = tuple(replace(s, suffix=True) if isinstance(s, RolloutStage) else s for s in stages)
    return Block(index, stages, marked(stages, fingerprints, mark), {BASE_TURNS: (0,)} if index else {})
