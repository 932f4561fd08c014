"""`relay`: a game in which credit is easily given to the wrong turn, for the ablation of grouping.

    ┌──────── again, once ────────┐
    run ───────────────────────→ keep

Two roles translate one symbol, the runner into a made-up word and the keeper into itself, and both do
so again in a second round, where other words are right. A word is paid for by itself, but roles and
rounds are paid on scales of their own (`Pay`): what the runner earns for a right word in round 0 is less
than what the keeper gets for a wrong one. So a baseline over turns of several scales calls every turn of
the one bad and every turn of the other good, whatever was said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rewards.base import PlayedEpisode
from workflows.errors import WorkflowError
from workflows.graph import Edge, LlmStep, Workflow
from workflows.roles import Role
from workflows.state import State

SYMBOLS: Final = ("red", "green", "blue", "yellow")
RIGHT: Final[Mapping[tuple[str, int], tuple[str, ...]]] = {
    ("runner", 0): ("ba", "do", "ki", "lu"),
    ("runner", 1): ("ti", "pa", "no", "me"),
    ("keeper", 0): SYMBOLS,
    ("keeper", 1): ("pink", "brown", "white", "black"),
}
"""By role and round: the right word for each symbol."""
VERBS: Final = ("see", "hear")


def build() -> Workflow:
    """The game, for a model of the words of `tiny-words`."""
    return Workflow(
        "relay",
        roles=[
            Role("runner", prompt="{verb} {symbol} say", max_response_tokens=1, fixed_length=True),
            Role("keeper", prompt="{verb} {symbol} name", max_response_tokens=1, fixed_length=True),
        ],
        steps=[
            LlmStep("run", "runner", {"verb": verb, "symbol": "task.symbol"}),
            LlmStep("keep", "keeper", {"verb": verb, "symbol": "task.symbol"}),
        ],
        edges=[Edge("run", "keep"), Edge("keep", "run", limit=1)],
        answer_step="keep",
    )


def verb(state: State) -> str:
    """How a prompt tells the rounds apart."""
    return VERBS[state.round]


def tasks(path: str) -> Iterator[dict[str, Any]]:
    """One task a symbol. `path` says how many: "4".

    Raises:
        WorkflowError: not a number from 1 to 4.
    """
    if not path.isdecimal() or not 1 <= int(path) <= len(SYMBOLS):
        raise WorkflowError(f"[data] path of relay is a number from 1 to {len(SYMBOLS)}, got {path!r}")
    for split in ("train", "dev"):
        for symbol in SYMBOLS[: int(path)]:
            yield {
                "task_id": f"{symbol}-{split}",
                "split": split,
                "inputs": {"symbol": symbol},
                "gold": {"answers": [symbol]},
            }


def right(episode: PlayedEpisode) -> list[float]:
    """1 for each turn whose word is right, else 0: how well a team plays, on one scale."""
    return [_right(turn, episode.inputs["symbol"]) for turn in episode.turns]


@dataclass(frozen=True, slots=True)
class Pay:
    """What a turn earns: its wage, and its prize on top where the word is right.

    The wage is `wages[role] + raise_per_round · round`, the prize `prizes[role] · growth ** round`. With all
    wages 0 and all prizes 1 this is `right`.
    """

    wages: Mapping[str, float] = field(default_factory=dict)
    prizes: Mapping[str, float] = field(default_factory=dict)
    raise_per_round: float = 0.0
    growth: float = 1.0

    def __call__(self, episode: PlayedEpisode) -> list[float]:
        return [
            self._wage(t) + self._prize(t) * r for t, r in zip(episode.turns, right(episode), strict=True)
        ]

    def _wage(self, turn: Mapping[str, Any]) -> float:
        return self.wages.get(turn["role"], 0.0) + self.raise_per_round * float(turn["round"])

    def _prize(self, turn: Mapping[str, Any]) -> float:
        return self.prizes.get(turn["role"], 1.0) * float(self.growth ** turn["round"])


def _right(turn: Mapping[str, Any], symbol: str) -> float:
    words = RIGHT[turn["role"], turn["round"]]
    return float(turn["response_text"] == words[SYMBOLS.index(symbol)])
