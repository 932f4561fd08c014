"""10,000 random traces (proof 11): spawn trees with failures and cancels keep accounts, and have the same
rows whatever the order in which replies come back; every tenth is played again, by the clock too.

A traced seed is a tree (`tests.support.spawn_trees`). Half an hour; CI plays a few of them
(`tests/workflows/test_crew.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.support.replays import content, stored
from tests.support.spawn_trees import Trees, check_accounts
from workflows.playing.base_episode import BaseEpisode
from workflows.playing.record import Played
from workflows.testing import without_times

TRACES: Final = 10_000
BATCH: Final = 100  # plays whose accounts are checked as one table


@dataclass(slots=True)
class Traced:
    """What the trees were made of, and those that failed, by what was wrong."""

    acts: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, list[int]] = field(default_factory=dict)
    traces: int = 0

    @property
    def reached(self) -> bool:
        return self.traces == TRACES and not self.wrong

    def line(self) -> str:
        """How many traces there were, of which acts, and what was wrong."""
        acts = ", ".join(f"{count} {act}" for act, count in sorted(self.acts.items()))
        wrong = "; ".join(f"{what}: seeds {seeds[:5]}" for what, seeds in self.wrong.items()) or "none wrong"
        return f"{self.traces} traces ({acts}): {wrong}   {'reached' if self.reached else 'short'}"

    def as_dict(self) -> dict[str, Any]:
        said = {"acts": dict(self.acts), "wrong": self.wrong, "traces": self.traces}
        return {"name": "random traces", **said, "reached": self.reached}


def run(folder: str, seeds: Sequence[int], traces: int = TRACES, first: int = 0) -> list[Traced]:
    """Play so many trees from tree `first` on, whatever the seeds are."""
    told, kept = Traced(), dict[int, Played]()
    for seed in range(first, first + traces):
        fails = (0.0, 0.0, 0.03)[seed % 3]
        trees = Trees(("logical", "modelled")[seed % 2], seed, fails)
        played = trees.play(1)
        told.traces += 1
        told.acts.update(row["act"] for row in played.turns if row["act"])
        kept[seed] = played
        if len(kept) == BATCH or seed == first + traces - 1:
            if not _accounts_hold(kept.values()):
                told.wrong["accounts"] = [
                    *told.wrong.get("accounts", []),
                    *(s for s, played in kept.items() if not _accounts_hold([played])),
                ]
            kept.clear()
        if without_times(trees.play(2)) != without_times(played):
            told.wrong.setdefault("order of replies", []).append(seed)
        if seed % 10 == 0 and not _plays_again(seed):
            told.wrong.setdefault("played again", []).append(seed)
    return [told]


def _accounts_hold(plays: Iterable[Played]) -> bool:
    try:
        check_accounts(*plays)
    except AssertionError:
        return False
    return True


def _plays_again(seed: int) -> bool:
    order = ("logical", "modelled", "clock")[seed // 10 % 3]
    trees = Trees(order, seed)
    first = trees.play(1)
    again = trees.play(2, BaseEpisode.of(stored(first)))
    but = ("modelled_seconds",) if order == "clock" else ()
    return content(again, *but) == content(first, *but)
