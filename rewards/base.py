"""What a reward and a credit method are.

A reward looks at one played episode and its task, gold included, and gives one number or null per
turn. A credit method looks at whole groups as one Polars frame. Both are pure: same input, same
bits, no engines, settings or paths, which is why stored runs can be scored again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import polars as pl

from rewards.part import PlayedPart
from workflows.vocabulary import Event, Status


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """One episode as a reward sees it. `turns` are in `turn_index` order, JSON columns decoded.

    `addressed` are the positions of the turns that the reward may go to, where its settings name roles
    or steps; None: all.
    """

    episode_id: str
    status: str
    inputs: Mapping[str, Any]
    gold: Mapping[str, Any]
    turns: Sequence[Mapping[str, Any]]
    addressed: frozenset[int] | None = None

    def trainable(self) -> list[int]:
        """Positions in `turns` that get this reward: addressed llm turns of a model that is trained.

        A turn that was called off has no reply, and so gets none.
        """
        return [
            i
            for i, t in enumerate(self.turns)
            if t["event"] == Event.LLM
            and t["trainable"]
            and t.get("status") != Status.CALLED_OFF
            and (self.addressed is None or i in self.addressed)
        ]


class Reward(Protocol):
    """One number or null for each of `episode.turns`."""

    def __call__(self, episode: PlayedEpisode) -> Sequence[float | None]: ...


class ColumnReward(Reward, Protocol):
    """A reward that can also score all episodes of a part at once, which is several times as fast.

    Both forms must give the same numbers, to the last bit: `rewards.testing.check_forms` compares them.
    The easiest way is to ask the same function once for each different input. A subclass that overrides
    `__call__` alone has no column form.
    """

    def by_columns(self, part: PlayedPart) -> pl.Series:
        """One number for each row of `part.turns`, null for a turn that gets none.

        NaN, or any number that is not finite, means that the columns do not decide: an episode with such
        a number is given to the one-episode form, whose numbers, or error, then count. So only that form
        has to know why an episode can't be scored. What this form itself raises, or a wrong number of
        values, costs every episode of the part its rewards, with the reason.
        """


class RewardHooks:
    """What a reward may do beyond scoring; the defaults of rewards that do not.

    A class of rewards may inherit from it, or have it or not: `workflows.hooks.hooks_of` reads it.
    """

    __slots__ = ()
    OLD_NAMES: ClassVar[Mapping[str, str]] = {"check_ready": "check"}

    takes_long: bool = False
    """Whether a part takes far longer to score than a task of the cluster to start, with columns too."""

    @property
    def scores_columns(self) -> bool:
        """Whether `by_columns`, where the reward has it, is to be asked, with the options that it has."""
        return True

    def check_ready(self) -> None:
        """Called before a run starts.

        Raises:
            UsageError: what can't work here, and what to do about it.
        """

    def opened(self) -> AbstractContextManager[Reward] | None:
        """Called before parts are scored by tasks of a cluster: the reward that they ask, for as long as the
        block lasts, where it needs something that is started once, such as weights; None: this one."""
        return None


class Credit(Protocol):
    """Adds `return`, `advantage` (nullable) to the usable turns of whole groups.

    The frame has the identity columns of `turns`, `role`, `step`, `round`, `branch`, `context_hash`,
    `model_id`, `num_response_tokens`, `status`, `reward`, sorted by key. Rows keep their keys; order does not
    matter.
    """

    def __call__(self, turns: pl.DataFrame) -> pl.DataFrame: ...


class CreditHooks:
    """What a credit method may say of itself; the defaults of methods that do not.

    A class of methods may inherit from it, or have some of these or none: `workflows.hooks.hooks_of` reads
    them.
    """

    __slots__ = ()
    OLD_NAMES: ClassVar[Mapping[str, str]] = {"check_group_size": "check"}

    gives_weights: bool = False
    """Whether advantages are never negative, and so are fit for the supervised loss."""

    keeps_baselines: bool = False
    """Whether the method remembers: see `RememberingCredit`."""

    needs_greedy: bool = False
    """Whether the method compares with one more play of each task at temperature 0: its turns are in the
    frame, too, where the column `greedy` is true. They are never trained on."""

    @property
    def group_keys(self) -> Sequence[str]:
        """The columns by which the method compares turns: those of one task, where it does not say."""
        return ("group_id",)

    def check_group_size(self, group_size: int) -> None:
        """Called before a run starts, with the number of episodes of a group.

        Raises:
            UsageError: the method can't work with groups of that size, and what to do about it.
        """


@runtime_checkable
class SurveyedCredit(Credit, Protocol):
    """A credit method that must know something of all groups before it can credit any.

    The groups of an iteration lie in parts that are credited apart from each other. First each part is
    surveyed; then `bound` gives the method that credits them all.
    """

    def survey(self, turns: pl.DataFrame) -> pl.DataFrame:
        """A few numbers about one part's usable turns; called for parts with usable turns only."""

    def bound(self, surveys: Sequence[pl.DataFrame], before: pl.DataFrame) -> Credit:
        """The method as it credits this iteration; `surveys` in the order of the parts."""


class RememberingCredit(SurveyedCredit, Protocol):
    """A surveyed method with `keeps_baselines = True`: it remembers from one iteration to the next."""

    def after(self, surveys: Sequence[pl.DataFrame], before: pl.DataFrame, iteration: int) -> pl.DataFrame:
        """The iteration's table `baselines`; `before` is that of the iteration before, or has no rows."""
