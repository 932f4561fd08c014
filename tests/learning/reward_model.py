"""A reward model of orchestrations: from stored plays it learns when spawning pays, which no length tells.

Plays of a game of spawning (`tests.support.stored_games`), whose lead decides by chance. Of a task that
splits, the play with helpers is the better one, and it is longer; of a task that does not, it is the worse
one. So a ranker that looks at length or at the number of turns is right little more than half of the time,
and a model has to read which task it is.

It starts from a random model of a few words (`tiny-words`), and is judged on tasks that trained nothing: its
accuracy on pairs, and the best of n plays that it chooses. Reached where the lower end of its gain over every
trivial ranker is above 0.1 for every seed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from pipeline.reward_model.asked import asked_of
from pipeline.reward_model.best_of import ballots_of, collected, ranked_plays, trained_tasks
from pipeline.reward_model.train import run_training
from pipeline.run.cluster import start_ray
from stages.base import Quiet
from stages.reward_model.model import read_model
from stages.reward_model.scorer import ModelScorer
from tests.support.stored_games import game_run, tasks_of

TASKS: Final = 128
PLAYS: Final = 8
SIZES: Final = (1, 2, 4, 8)
MARGIN: Final = 0.1  # that the gain over every trivial ranker must be above
SETTINGS: Final = (
    "reward_model.context=256",
    "reward_model.held_out=0.3",
    "reward_model.pairs_per_task=8",
    "reward_model.passes=30",
    "reward_model.pairs_per_step=64",
    "reward_model.micro_batch_tokens=8192",
    "reward_model.learning_rate=2e-3",
    "reward_model.head_learning_rate=1e-2",
    'reward_model.trainer={ precision = "fp32", num_threads = 1 }',
)


@dataclass(frozen=True, slots=True)
class Learned:
    """What one seed's model is worth on tasks that trained nothing."""

    seed: int
    pairs: int
    tasks: int
    accuracy: dict[str, Any]
    trivial: dict[str, dict[str, Any]]
    rows: list[dict[str, Any]]  # the best of n
    seconds: float

    @property
    def reached(self) -> bool:
        gains = [ranker["gain"]["low"] for ranker in self.trivial.values()]
        return all(low is not None and low > MARGIN for low in gains)

    def line(self) -> str:
        """Accuracy beside trivial rankers, and the best of the most plays."""
        share = self.accuracy
        others = ", ".join(f"{name} {r['accuracy']['value']:.3f}" for name, r in self.trivial.items())
        best = self.rows[-1]
        votes = "" if best["majority"] is None else f", majority {best['majority']:.3f}"
        return (
            f"seed {self.seed}: {share['value']:.3f} [{share['low']:.3f}, {share['high']:.3f}] of "
            f"{self.pairs} pairs of {self.tasks} held-out tasks; {others}; best of {best['n']}: "
            f"{best['chosen']['mean']:.3f} (any {best['mean']:.3f}{votes}, oracle {best['oracle']:.3f}); "
            f"{self.seconds:.0f} s   {'reached' if self.reached else 'short'}"
        )

    def as_dict(self) -> dict[str, Any]:
        return {"name": "reward model", **asdict(self), "reached": self.reached}


def run(folder: str, seeds: Sequence[int], only: str = "") -> list[Learned]:
    """Train a reward model from every seed's plays, and judge it."""
    import ray

    start_ray("local", 0.2)
    learned = []
    try:
        for seed in seeds:
            learned.append(one(folder, seed))
            print(f"  {learned[-1].line()}", flush=True)
    finally:
        ray.shutdown()
    return learned


def one(folder: str, seed: int, *more: str, tasks: int = TASKS) -> Learned:
    """Plays, model and judgement of one seed; `more` are further settings. Ray is up."""
    began = time.monotonic()
    played = game_run(folder, f"plays-{seed}", tasks=tasks_of(tasks), plays=PLAYS, seed=seed)
    asked = asked_of([played], "tiny-words", f"model-{seed}", root=folder, overrides=[*SETTINGS, *more])
    info = run_training(asked, Quiet(), lambda: None)
    model = read_model(asked.folder.url)
    plays = collected(played, model, None, None)
    ranking = ranked_plays(
        plays.plays,
        ModelScorer(model)([play.text for play in plays.plays]),
        ballots_of(played, None),
        trained_tasks(model),
        SIZES,
    )
    judged = info["judged"]
    return Learned(
        seed=seed,
        pairs=judged["held_out"]["pairs"],
        tasks=judged["held_out"]["tasks"],
        accuracy=judged["held_out"]["accuracy"],
        trivial=judged["trivial"],
        rows=[row.as_dict() for row in ranking.rows],
        seconds=time.monotonic() - began,
    )
