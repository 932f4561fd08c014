"""Which turns should share a baseline? The ablation of grouping, on a game with pay of several scales.

Peers report 11 % without grouping, 52 % by turn, 74 % by agent and 96 % by both (PettingLLMs, Plan-Path with
one 1.7B model a role: another game, so only the order can be compared). Here turn is the round, agent the
role; the game is `tests.learning.relay`, the score the share of right words in the last iterations, of all
roles and rounds alike. Everything but `credit.options.by` is equal, seeds included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from pipeline.run.cluster import start_ray
from tests.learning.train import Learned, train

ITERATIONS: Final = 40
GROUPINGS: Final = {
    "none": "task",
    "by round": "task_round",
    "by role": "task_role",
    "both": "task_role_round",
}
GOAL: Final = 0.9  # of "both"


@dataclass(frozen=True, slots=True)
class Ablation:
    """The runs of every grouping. Reached: "both" solves the game, and the order is the peers'."""

    runs: Mapping[str, tuple[Learned, ...]]

    def mean(self, grouping: str) -> float:
        return fmean(run.last for run in self.runs[grouping])

    @property
    def order(self) -> tuple[str, ...]:
        """The groupings, the worst first."""
        return tuple(sorted(self.runs, key=self.mean))

    @property
    def reached(self) -> bool:
        return self.order == tuple(GROUPINGS) and self.mean("both") >= GOAL

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": "grouping",
            "order": self.order,
            "means": {name: self.mean(name) for name in self.runs},
            "runs": {name: [run.as_dict() for run in runs] for name, runs in self.runs.items()},
            "reached": self.reached,
        }

    def lines(self) -> list[str]:
        """A line a grouping, and the verdict."""
        out = []
        for name, runs in self.runs.items():
            lasts = [run.last for run in runs]
            spread = f" ± {stdev(lasts):.1%}" if len(lasts) > 1 else ""
            out.append(f"  {name:<10} {self.mean(name):6.1%}{spread} of the words right, {len(lasts)} seeds")
        told = f"  order {' < '.join(self.order)}   goal {' < '.join(GROUPINGS)}, and both at {GOAL:.0%}"
        return [*out, f"{told}   {'reached' if self.reached else 'short'}"]


def run(folder: str, seeds: Sequence[int], only: str = "") -> list[Ablation]:
    """Train with every grouping and seed; `only` is for trying out one grouping, and gives no verdict."""
    import ray

    start_ray("local", 0.2)
    runs: dict[str, list[Learned]] = {}
    try:
        for name, by in GROUPINGS.items():
            for seed in seeds if only in name else ():
                runs.setdefault(name, []).append(play(name, by, folder, seed))
                print(runs[name][-1].line(), flush=True)
    finally:
        ray.shutdown()
    if set(runs) != set(GROUPINGS):
        return []
    found = Ablation({name: tuple(group) for name, group in runs.items()})
    print("\n".join(found.lines()), flush=True)
    return [found]


def play(name: str, by: str, folder: str, seed: int) -> Learned:
    """One run of the game, of all its iterations."""
    return train(
        name,
        Path(__file__).parent / "relay.toml",
        [f'credit.options.by="{by}"'],
        root=folder,
        seed=seed,
        iterations=ITERATIONS,
        goal=None,
        metric="reward/right/mean",
    )
