"""Marginal improvement of the answer's F1, by the round of search that brought it (M-ASK)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rewards.answers import MALFORMED, SHARES, Malformed, Share, answer_of, golds_of
from rewards.answers import refuse_unknown as refuse
from rewards.base import PlayedEpisode
from rewards.by_round import gains
from rewards.grading import qa
from workflows.errors import UsageError


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
            return qa.f1(answer_of(turn, self.malformed, key), golds, self.mode)

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
            elif turn["step"] == self.search_step and _asks_nothing(turn):
                values[position] = 0.0
            elif turn["step"] in (self.search_step, *self.round_steps):
                sharers.setdefault(turn["round"], []).append(position)
        for round, positions in sharers.items():
            change = changes.get(round + 1, 0.0)
            for position in positions:
                values[position] = change / len(positions) if self.share == "split" else change
        return values


def _asks_nothing(turn: Mapping[str, Any]) -> bool:
    parsed = turn["parsed"]
    return not isinstance(parsed, Mapping) or parsed.get("action") == "end"
