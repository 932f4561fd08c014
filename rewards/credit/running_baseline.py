"""A running baseline for each role: needs no group, and remembers earlier iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import polars as pl

from rewards.base import CreditHooks
from rewards.credit.equal import are_equal
from rewards.credit.grouping import check_returns
from rewards.credit.moments import merged, survey
from rewards.credit.returns import Returns, add_return
from workflows.errors import UsageError, did_you_mean

_KINDS: Final = ("ema", "mean")


@dataclass(frozen=True, slots=True)
class RunningBaseline(CreditHooks):
    """Advantage = return minus the running mean return of the turn's role.

    An iteration's turns are measured against the mean of the iterations before it, so that no turn is
    in its own baseline; a role that has none yet is measured against its own mean of this iteration.
    The means after an iteration are its table `baselines`, which the next iteration reads: a restart,
    a kill or a replay changes nothing.
    Source: role-conditioned advantage estimation, SPIRAL, arXiv:2506.24119 (which updates after every
    episode; here once for each iteration, so that the order of episodes has no say).

    Options:
        kind: "ema" forgets: mean = decay · mean + (1 - decay) · this iteration's mean; "mean" is the
            mean of all turns so far.
        decay: of "ema", in [0, 1).
        returns, gamma: see `rewards.credit.returns`.

    Raises:
        UsageError: an option has a value that it can't have.
    """

    kind: Literal["ema", "mean"] = "ema"
    decay: float = 0.95
    returns: Returns = "turn"
    gamma: float = 1.0
    baselines: Mapping[str, float] = field(default_factory=dict, init=False)

    keeps_baselines = True

    def __post_init__(self) -> None:
        check_returns("running_baseline", self.returns, self.gamma)
        if self.kind not in _KINDS:
            raise UsageError(
                f"credit running_baseline: kind is {self.kind!r}{did_you_mean(self.kind, _KINDS)}; use one "
                f"of {', '.join(_KINDS)}"
            )
        if not 0 <= self.decay < 1:
            raise UsageError(f"credit running_baseline: decay is {self.decay}; use 0 or more, below 1")

    def survey(self, turns: pl.DataFrame) -> pl.DataFrame:
        """Moments of one part's returns by role: see `rewards.base.SurveyedCredit`."""
        return survey(self._returns(turns), "role", "return")

    def bound(self, surveys: Sequence[pl.DataFrame], before: pl.DataFrame) -> RunningBaseline:
        """The method with the baselines that this iteration is measured against."""
        method = RunningBaseline(self.kind, self.decay, self.returns, self.gamma)
        fresh = {role: moments.mean for role, moments in merged(surveys).items()}
        kept = dict(before.select("key", "mean").iter_rows())
        object.__setattr__(method, "baselines", {**fresh, **kept})
        return method

    def after(self, surveys: Sequence[pl.DataFrame], before: pl.DataFrame, iteration: int) -> pl.DataFrame:
        """The `BASELINES` rows after this iteration, sorted by key."""
        rows = {row["key"]: row for row in before.iter_rows(named=True)}
        for role, moments in merged(surveys).items():
            old = rows.get(role)
            mean, count = moments.mean, float(moments.count)
            if old is not None and self.kind == "ema":
                mean = self.decay * old["mean"] + (1 - self.decay) * moments.mean
                count += self.decay * old["count"]
            elif old is not None:
                count += old["count"]
                mean = old["mean"] + (moments.mean - old["mean"]) * moments.count / count
            rows[role] = {"key": role, "mean": mean, "count": count, "iteration": iteration}
        return pl.DataFrame([rows[key] for key in sorted(rows)], schema=before.schema)

    def __call__(self, turns: pl.DataFrame) -> pl.DataFrame:
        """Add `return` and `advantage`; one row per turn, sorted by key. Unbound: of these turns alone."""
        baselines = self.baselines
        if not baselines:
            baselines = {role: moments.mean for role, moments in merged([self.survey(turns)]).items()}
        baseline = pl.col("role").replace_strict(
            list(baselines), list(baselines.values()), return_dtype=pl.Float64
        )
        same = are_equal(baseline, pl.col("return"))
        return self._returns(turns).with_columns(
            advantage=pl.when(same).then(0.0).otherwise(pl.col("return") - baseline)
        )

    def _returns(self, turns: pl.DataFrame) -> pl.DataFrame:
        return add_return(turns, self.returns, self.gamma).with_columns(pl.col("role").fill_null(""))
