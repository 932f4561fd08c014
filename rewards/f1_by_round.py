"""Marginal improvement of the answer's F1, by the round of search that brought it (M-ASK)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from rewards.answers import (
    MALFORMED,
    SHARES,
    Malformed,
    Share,
    answer_of,
    answers_at,
    golds_by_task,
    golds_of,
    grades_of,
)
from rewards.answers import refuse_unknown as refuse
from rewards.base import PlayedEpisode
from rewards.by_round import RoundValues, gains
from rewards.grading import qa
from rewards.part import Numbers, PlayedPart, Rows
from workflows.errors import UsageError
from workflows.vocabulary import Move

_NOTHING, _PLAN, _ANSWER, _SEARCH, _UPDATE = range(5)  # what a turn is paid for


@dataclass(frozen=True, slots=True)
class F1ByRound:
    """Every turn is paid for what it changed, for workflows that answer anew after each round of search.

    With f(x) the best token F1 of x against the gold answers, and answer *t* the one of round *t*:

    - the plan gets f of the answer that it predicts itself;
    - an answer gets f of itself;
    - `search_step` and `round_steps` of round *t* get f(answer *t* + 1) - f(answer *t*): what the search
      changed shows in the next answer. Without an answer before, they get f(answer *t* + 1); without
      one after, 0, since nothing was changed. So what the updates of an episode get adds up to the last
      answer's f minus the first's, whichever answers are missing in between;
    - a search that asks nothing (its parsed `action` is "end") gets 0, be it because of `<end>` or of a
      reply in which there is nothing to search. What follows it in its round, where the workflow
      goes on, is paid as above.

    Turns of other steps get no number from this reward.

    Source: UnityMAS-O's turn-level reward of M-ASK, which leaves the turns after a search that ends
    unpaid, and its next delta with them.

    Options:
        answer_step, plan_step, search_step, round_steps: steps of the workflow.
        plan_key: where the predicted answer stands in what the plan parsed.
        share: "full" gives each turn of a round the whole change; "split" divides it by their number.
        mode: how text is normalised, see `rewards.grading.qa`.
        malformed: what counts of a plan or answer without its format, see `rewards.answers`.

    Raises:
        UsageError: an option has an unknown value.
        ValueError: the task has no gold answer that can be matched; the episode is then excluded.
    """

    answer_step: str = "answer"
    plan_step: str = "plan"
    plan_key: str | None = "answer"
    search_step: str = "search"
    round_steps: tuple[str, ...] = ("summarise", "update")
    share: Share = "full"
    mode: qa.Mode = "strict"
    malformed: Malformed = "raw"

    def __post_init__(self) -> None:
        refuse("share", self.share, SHARES)
        refuse("mode", self.mode, qa.MODES)
        refuse("malformed", self.malformed, MALFORMED)
        if isinstance(self.round_steps, str) or not all(isinstance(s, str) for s in self.round_steps):
            raise UsageError(f"option round_steps must be a list of steps, got {self.round_steps!r}")

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        golds = golds_of(episode, self.mode)

        def f(turn: Mapping[str, Any], key: str | None = None) -> float:
            return golds.f1(answer_of(turn, self.malformed, key))

        answers = {turn["round"]: f(turn) for turn in episode.turns if turn["step"] == self.answer_step}
        changes = gains(answers)
        values: list[float | None] = [None] * len(episode.turns)
        sharers: dict[int, list[int]] = {}
        for position in episode.trainable():
            turn = episode.turns[position]
            if turn["step"] == self.plan_step:
                values[position] = f(turn, self.plan_key)
            elif turn["step"] == self.answer_step:
                values[position] = answers[turn["round"]]
            elif turn["step"] == self.search_step and _asks_nothing(turn["parsed"]):
                values[position] = 0.0
            elif turn["step"] in (self.search_step, *self.round_steps):
                sharers.setdefault(turn["round"], []).append(position)
        for round, positions in sharers.items():
            change = changes.get(round + 1, 0.0)
            for position in positions:
                values[position] = change / len(positions) if self.share == "split" else change
        return values

    def by_columns(self, part: PlayedPart) -> pl.Series:
        kind = part.turns.select(self._kind()).to_series().to_numpy()
        plans, answering, searches, updates = (
            np.flatnonzero(kind == k) for k in (_PLAN, _ANSWER, _SEARCH, _UPDATE)
        )
        answers = part.rows(pl.col("step") == self.answer_step)  # of frozen roles too
        parsed = part.decoded("parsed")
        asking = [row for row in searches.tolist() if not _asks_nothing(parsed[row])]
        sharers = np.sort(np.concatenate([updates, np.array(asking, np.intp)]))
        known = part.turns["round"].to_numpy().astype(np.float64)  # null is NaN
        round = np.nan_to_num(known).astype(np.intp)

        golds = golds_by_task(part, self.mode)
        grades = self._grades(part, answers, golds)
        by_round = RoundValues.of(part.episode[answers], round[answers], grades)
        change = by_round.gain_at(part.episode[sharers], round[sharers] + 1)
        if self.share == "split":
            change = change / _times(part.episode[sharers], round[sharers])
        values = np.zeros(part.turns.height)
        values[plans] = self._grades(part, plans, golds, self.plan_key)
        values[answering] = by_round.at(part.episode[answering], round[answering])
        values[sharers] = change

        no_golds = np.array([its is None for its in golds], np.bool_)
        values[no_golds[part.task][part.episode]] = np.nan
        values[answers[np.isnan(grades)]] = np.nan
        in_rounds = np.concatenate([answers, sharers])
        values[in_rounds[np.isnan(known[in_rounds])]] = np.nan
        return part.series(values, (kind != _NOTHING) | np.isnan(values))

    def _kind(self) -> pl.Expr:
        """What a turn is paid for: the first that holds."""
        step = pl.when(pl.col("receives")).then("step")
        return (
            pl.when(step == self.plan_step)
            .then(_PLAN)
            .when(step == self.answer_step)
            .then(_ANSWER)
            .when(step == self.search_step)
            .then(_SEARCH)
            .when(step.is_in(list(self.round_steps)))
            .then(_UPDATE)
            .otherwise(_NOTHING)
        )

    def _grades(
        self, part: PlayedPart, rows: Rows, golds: Sequence[qa.Golds | None], key: str | None = None
    ) -> Numbers:
        """The F1 of the turns at these rows, NaN where there is none."""
        said = answers_at(part, rows, self.malformed, key)
        return grades_of(said, part.task[part.episode[rows]], golds, qa.Golds.f1)


def _times(episode: Rows, round: Rows) -> Rows:
    """How many of the rows have the same episode and round as each."""
    _, which, times = np.unique(np.stack([episode, round]), axis=1, return_inverse=True, return_counts=True)
    return np.asarray(times[which.ravel()])


def _asks_nothing(parsed: Any) -> bool:
    return not isinstance(parsed, Mapping) or parsed.get("action") == Move.END
