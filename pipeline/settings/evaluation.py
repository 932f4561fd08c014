"""`[[rewards]]` and `[evaluate]`: what plays are worth, and how a team is measured."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pipeline.settings.section import Count, Name, Positive, Section, Share

DataPath = str | tuple[str, ...] | dict[str, str | tuple[str, ...]]


class RewardSection(Section):
    use: str
    """A reward that ships, or package.module:name of your own."""
    name: Name | None = None
    """Name of this reward in tables and metrics; without it, the last word of use."""
    weight: float = 1.0
    """Weight in the sum; 0 makes it a metric, kept and shown but no part of the reward."""
    roles: tuple[str, ...] | None = None
    """Roles that the reward goes to; without it, all."""
    steps: tuple[str, ...] | None = None
    """Steps of the workflow that the reward goes to; without it, all."""
    options: dict[str, Any] = {}
    """Options of the reward."""

    @property
    def label(self) -> str:
        """The name of its part in `reward_parts`."""
        return self.name or self.use.rsplit(":", 1)[-1].rsplit(".", 1)[-1]


class TestSection(Section):
    """Tasks that choose nothing: the best evaluation chooses a checkpoint, and these say how good it is."""

    split: Name = "test"
    """The split; it must be another than evaluate.split."""
    tasks: Positive | None = None
    """Number of tasks; without it, the whole split."""
    when: Literal["best", "always"] = "best"
    """best (at the first evaluation, at one that is the best so far, and at the end) or always (at each)."""


class VoteSection(Section):
    """Independent plays of each task whose answers vote: what a team has to beat at equally many tokens."""

    answers: Annotated[int, Field(ge=2)] = 8
    """Number of plays of each task."""
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Sampling temperature of these plays."""
    tokens: Positive | None = None
    """Budget of sampled tokens a task, within which plays vote; without it, all of them vote."""


class EvaluateSection(Section):
    """How a team is evaluated: its own tasks, sampling and tables, apart from training."""

    later = frozenset({"test", "vote", "top_p", "top_k", "min_p", "best_by", "patience"})

    path: DataPath | None = None
    """Data to evaluate on; without it, that of [data]."""
    split: str = "dev"
    """The split that is evaluated."""
    tasks: Positive | None = None
    """Number of tasks; without it, the whole split."""
    samples: Positive = 1
    """Episodes of one task; several give pass@k."""
    temperature: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Sampling temperature; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of probability that is sampled from; without it, as each role's own says."""
    top_k: Annotated[int, Field(ge=0)] | None = None
    """Number of most likely tokens that are sampled from, 0 for all; without it, as each role's own says."""
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Tokens less likely than this share of the likeliest one are not sampled; without it, as each role's own
    says."""
    every: Annotated[int, Field(ge=0)] = 0
    """Iterations from one evaluation to the next while training; 0 is never."""
    rewards: tuple[RewardSection, ...] = ()
    """The metrics, as [[evaluate.rewards]]; without them, those of [[rewards]] but format and length."""
    best: Name | None = None
    """The metric whose best checkpoint is kept; without it, the first."""
    best_by: Literal["mean", "solved"] = "mean"
    """Which number of that metric is compared: mean, or solved (pass@1, the share of samples that reach
    solved_at: of private tests, programs that pass all)."""
    patience: Count = 0
    """Training stops after so many evaluations in a row that are no better than the best, whose checkpoint is
    then the run's result; 0 never stops it."""
    solved_at: float = 1.0
    """A sample with this value or more counts as solved, for pass@k."""
    max_failed_share: Share = 0.5
    """Share of episodes that may fail for causes that are not the policy's before the evaluation fails."""
    test: TestSection | None = None
    """A second split that chooses no checkpoint; without it there is none."""
    vote: VoteSection | None = None
    """A majority vote of independent plays, on the tasks of test or else of split; without it there is
    none."""
