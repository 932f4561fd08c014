"""Training on one group until it is solved: the first thing to try with a new team or reward.

A team that can't learn one task by heart will not learn many: the reward doesn't reach the policy, the
learning rate is off, or the model never samples a better answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.plan.evaluation import metric_sections
from pipeline.settings.names import slug
from pipeline.settings.program import hint
from pipeline.settings.schema import EvaluateSection, RewardSection, Settings
from pipeline.store.finished import Finished
from pipeline.store.run import Run, finished_metrics
from workflows.errors import RunFailed

SHARE = 0.95  # of `evaluate.solved_at` that the group's mean must reach: sampling is never without a slip


def overfit_settings(settings: Settings) -> Settings:
    """The same settings on one task, the same in every iteration, in a run of its own."""
    name = f"{settings.run.name}-overfit"
    return settings.model_copy(
        update={
            "run": settings.run.model_copy(update={"name": name}),
            "data": settings.data.model_copy(update={"tasks_per_iteration": 1, "always_first": True}),
        }
    )


def watch(evaluate: EvaluateSection, rewards: Sequence[RewardSection]) -> Solved:
    """Watches the first reward that says how well the team does.

    Raises:
        UsageError: no reward says that.
    """
    return Solved(metric_sections(evaluate, rewards)[0].label, SHARE * evaluate.solved_at)


@dataclass(slots=True)
class Solved:
    """Watches the mean of a reward until it reaches a goal."""

    reward: str
    goal: float
    values: list[float] = field(default_factory=list)

    def add(self, finished: Finished) -> bool:
        """Whether the group is solved by this iteration."""
        value = finished.metrics.get(f"reward/{slug(self.reward)}/mean")
        if value is not None:
            self.values.append(value)
        return value is not None and value >= self.goal

    def is_solved_by(self, run: Run) -> bool:
        """Whether the newest iteration of `run`, all of which are finished, has solved the group already."""
        indices = run.iterations()
        if not indices or not all(map(run.is_finished, indices)):
            return False
        value = finished_metrics(run)[indices[-1]].get(f"reward/{slug(self.reward)}/mean")
        return value is not None and value >= self.goal

    def verdict(self) -> str:
        """One sentence for a group that is solved.

        Raises:
            RunFailed: it is not; the message says how far it came.
        """
        if self.values and self.values[-1] >= self.goal:
            return (
                f"solved: mean {self.reward} {self.values[-1]:.3f} in iteration {len(self.values)} of this "
                f"session, from {self.values[0]:.3f}"
            )
        best = (
            f"best {max(self.values):.3f}, last {self.values[-1]:.3f}" if self.values else "no reward at all"
        )
        raise RunFailed(
            f"the group is not solved: mean {self.reward} should reach {self.goal:g}, {best}; look at its "
            f"episodes (`{hint('show')}`), then try a higher learning rate, a larger group_size, or "
            "more iterations"
        )


def already_solved(run: Run, solved: Solved) -> str:
    """One sentence for a group that an earlier call has solved: nothing is left to train."""
    return (
        f"run {run.name!r} has solved its group already, in iteration {run.iterations()[-1]}: mean "
        f"{solved.reward} reached {solved.goal:g}; nothing was trained. Start anew with --new, or train on "
        "all tasks without --overfit"
    )
