"""REINFORCE++: no critic and no need for groups; advantages normalised over the whole iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import polars as pl

from rewards.base import CreditHooks
from rewards.credit.grouping import (
    BY_OPTIONS,
    By,
    check_options,
    compare,
    refuse_single_plays,
    without_helpers,
)
from rewards.credit.moments import Moments, merged, survey
from rewards.credit.returns import Returns, add_return
from workflows.errors import UsageError, did_you_mean

_BASELINES: Final = ("global", "group")
_PER: Final = ("role", "all")


@dataclass(frozen=True, slots=True)
class ReinforcePP(CreditHooks):
    """Advantage = return, normalised to mean 0 and deviation 1 over all turns of the iteration.

    With `baseline = "group"` the mean of the turn's group (that of `group_relative`) is taken off first:
    REINFORCE++-baseline. Returns that are all equal, and a single one, give exact zeros. The paper's KL
    in the reward is `[ppo] kl_in = "reward"`. Source: REINFORCE++, arXiv:2501.03262.

    Options:
        baseline: "global" or "group".
        per: "role" normalises each role's turns by themselves, for roles may have rewards of different
            scale; "all" all turns together, as in the paper, which has one role.
        by, returns, gamma: as in `group_relative`; `by` is for baseline "group".

    Raises:
        UsageError: an option has a value that it can't have.
    """

    baseline: Literal["global", "group"] = "global"
    per: Literal["role", "all"] = "role"
    by: By = "task_role"
    returns: Returns = "turn"
    gamma: float = 1.0
    moments: Mapping[str, Moments] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        check_options("reinforce_pp", self.by, self.returns, self.gamma)
        for name, value, known in (("baseline", self.baseline, _BASELINES), ("per", self.per, _PER)):
            if value not in known:
                raise UsageError(
                    f"credit reinforce_pp: {name} is {value!r}{did_you_mean(value, known)}; use one of "
                    f"{', '.join(known)}"
                )

    @property
    def group_keys(self) -> tuple[str, ...]:
        return BY_OPTIONS[self.by]

    def check_group_size(self, group_size: int) -> None:
        if self.baseline == "group":
            refuse_single_plays('reinforce_pp with baseline = "group"', group_size)

    def survey(self, turns: pl.DataFrame) -> pl.DataFrame:
        """Moments of one part's raw advantages: see `rewards.base.SurveyedCredit`."""
        return survey(self._raw(turns), "_key", "_raw")

    def bound(self, surveys: Sequence[pl.DataFrame], before: pl.DataFrame) -> ReinforcePP:
        """The method with the moments of all parts."""
        method = ReinforcePP(self.baseline, self.per, self.by, self.returns, self.gamma)
        object.__setattr__(method, "moments", merged(surveys))
        return method

    def __call__(self, turns: pl.DataFrame) -> pl.DataFrame:
        """Add `return` and `advantage`; one row per turn, sorted by key. Unbound: of these turns alone."""
        moments = self.moments or merged([self.survey(turns)])
        raw = self._raw(turns)
        values, keys = raw["_raw"].to_numpy(), raw["_key"].to_numpy()
        advantage = np.zeros(raw.height)
        for key in np.unique(keys):
            where = keys == key
            advantage[where] = moments[key].whiten(values[where])
        return without_helpers(raw.with_columns(advantage=pl.Series(advantage, dtype=pl.Float64)))

    def _raw(self, turns: pl.DataFrame) -> pl.DataFrame:
        """Turns with `return`, and helpers `_raw` and `_key`: what is normalised, and together with what."""
        if self.baseline == "group":
            turns = compare(turns, self.by, self.returns, self.gamma)
            raw = pl.col("_above") - pl.col("_baseline")
        else:
            turns = add_return(turns, self.returns, self.gamma)
            raw = pl.col("return")
        key = pl.col("role").fill_null("") if self.per == "role" else pl.lit("")
        return turns.with_columns(_raw=raw, _key=key)
