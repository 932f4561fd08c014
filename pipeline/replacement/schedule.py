"""The schedule of a replacement: iterations that train some of a team's models, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipeline.plan.blocks import SCHEDULE, Block, Manifests, only_models
from stages.advantage import AdvantageStage
from stages.base import Stage
from stages.sample import SampleStage
from stages.shift import ShiftStage
from workflows.errors import UsageError

if TYPE_CHECKING:
    from pipeline.plan.assemble import Plan


@dataclass(frozen=True, slots=True)
class Only:
    """Each of these models is trained in a block of its own, on fresh plays of the team as it is by then; all
    others stay as they are. The tasks of an iteration are dealt out to the blocks."""

    models: Sequence[str]

    def check(self, plan: Plan) -> None:
        trained = [model.model_id for model in plan.models.trainable]
        if strangers := sorted(set(self.models) - set(trained)):
            raise UsageError(
                f"model {strangers[0]!r} is not trained in this team, so it can't be aligned with it; set "
                f"models.{strangers[0]}.train = true, or leave the step out"
            )
        advantage = next((s for s in plan.stages if isinstance(s, AdvantageStage)), None)
        if (
            advantage
            and len(trained) > 1
            and any(spec.use == "gae" and spec.gae.across_turns for spec in advantage.specs)
        ):
            raise UsageError(
                "a replacement trains one model in a block, and GAE with advantage.across_turns = true reads "
                "the values of all models; pass --set advantage.across_turns=false, or leave out the steps "
                "align and settle"
            )
        if (count := plan.resolved.data.tasks_per_iteration) < len(self.models):
            raise UsageError(
                f"data.tasks_per_iteration = {count} can't be dealt out to {len(self.models)} models that "
                f"are trained in turn; pass --set data.tasks_per_iteration={len(self.models)} or more"
            )

    def next_block(self, plan: Plan, iteration: int, finished: Sequence[Manifests]) -> Block | None:
        index, pieces = len(finished), len(self.models)
        if index == pieces:
            return None
        count = plan.resolved.data.tasks_per_iteration
        begin, end = count * index // pieces, count * (index + 1) // pieces
        stages, fingerprints = only_models(plan.stages, plan.fingerprints, [self.models[index]])
        mark: dict[str, Any] = {"use": "only", "order": list(self.models)}
        marked = {stage.name: {**fingerprints[stage.name], SCHEDULE: mark} for stage in stages}
        own = (_part(s, begin, end, count) for s in stages)
        model = (self.models[index],)  # no other one was updated on these plays
        cut = tuple(replace(s, updated=model) if isinstance(s, ShiftStage) else s for s in own)
        return Block(index, cut, marked)


def _part(stage: Stage, begin: int, end: int, count: int) -> Stage:
    """The stage with its part of the iteration's tasks, where it is the one that chooses them."""
    if not isinstance(stage, SampleStage):
        return stage
    return replace(stage, tasks_per_iteration=end - begin, offset=begin, stride=count)
