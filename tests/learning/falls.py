"""Alarms before a fall: each is planted in a small real run, and told before the score has lost a tenth.

- `role_dominates`: the sender's reward is ten times the receiver's, and credit keeps the scale of rewards.
- `style_leaks`: the sender alone is paid, and the receiver, of the same model, earns nothing.
- `copies_add_up`: voters are paid for certain words, whatever the task: all copies pull one way.
- `fell_from_peak`: a team that has learned the game is then taught its opposite, step by small step.

A score has lost a tenth where the mean of three iterations is a tenth below its peak and further below than
chance, two standard errors: a team that has yet to learn scores near nothing, and a tenth of that is noise.
The healthy runs are those of the games as they are: none of these alarms may be told there. With `--only` the
name of one plant.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import polars as pl

from pipeline.run.cluster import start_ray
from pipeline.store.run import Run
from rewards.base import PlayedEpisode
from rewards.credit.group_relative import GroupRelative
from tests.learning.train import EXAMPLES, train

ALARMS: Final = ("role_dominates", "style_leaks", "copies_add_up", "fell_from_peak")
SMOOTH: Final = 3  # iterations whose mean is the score, as alarms have it
SURE: Final = 2.0  # standard errors
LOST: Final = 0.9  # share of its peak below which a score has lost a tenth
SIGNAL, VOTING = EXAMPLES / "signal.toml", Path(__file__).parent / "falls.toml"
MEASURED: Final = [
    'measure={gradients="exact", drift=true}',
    "evaluate.every=0",
    "checkpoints.every=1000",
]
APART: Final = 'credit={use="group_relative", options={by="task_role"}}'
TWO_WORDS: Final = ['data.path="2"', "data.tasks_per_iteration=2", "rollout.group_size=64"]
HERE: Final = "tests.learning.falls"


def nothing(episode: PlayedEpisode) -> list[float | None]:
    """The same for everyone."""
    return [0.0 if position in set(episode.trainable()) else None for position in range(len(episode.turns))]


def some_words(episode: PlayedEpisode) -> list[float | None]:
    """1 for a reply out of one half of all words, whatever the task asks."""
    values: list[float | None] = [None] * len(episode.turns)
    for position in episode.trainable():
        words = str(episode.turns[position]["response_text"]).split()
        values[position] = float(bool(words) and sum(map(ord, words[0])) % 2 == 0)
    return values


@dataclass(frozen=True, slots=True)
class Opposite(GroupRelative):
    """Group-relative credit with its sign turned: what is better is unlearned."""

    def __call__(self, turns: pl.DataFrame) -> pl.DataFrame:
        return super(Opposite, self).__call__(turns).with_columns(advantage=-pl.col("advantage"))


@dataclass(frozen=True, slots=True)
class Plant:
    """A run of a game, and the alarm that is planted in it; none in a healthy one."""

    name: str
    file: Path
    iterations: int
    alarm: str = ""
    overrides: Sequence[str] = ()
    then: Sequence[str] = ()  # further iterations, with these overrides
    further: int = 0


PLANTS: Final = (
    Plant("signal", SIGNAL, 12),
    Plant("voting", VOTING, 12),
    Plant(
        "role_dominates",
        SIGNAL,
        10,
        "role_dominates/sender",
        [
            'rewards=[{use="exact_match", roles=["receiver"]}, '
            '{use="exact_match", name="much", weight=10.0, roles=["sender"]}]',
            APART,
        ],
    ),
    Plant(
        "style_leaks",
        SIGNAL,
        10,
        "style_leaks/receiver",
        [
            'rewards=[{use="exact_match", roles=["sender"]}, '
            f'{{use="{HERE}:nothing", roles=["receiver"]}}]',
            APART,
            "ppo.entropy_coefficient=0.0",
            *TWO_WORDS,
        ],
    ),
    Plant(
        "copies_add_up",
        VOTING,
        8,
        "copies_add_up/generator",
        [f'rewards=[{{use="{HERE}:some_words"}}]', APART, "rollout.group_size=24"],
    ),
    Plant(
        "fell_from_peak",
        SIGNAL,
        16,
        "fell_from_peak",
        [*TWO_WORDS, APART],
        [
            *TWO_WORDS,
            f'credit={{use="{HERE}:Opposite", options={{by="task_role"}}}}',
            "ppo.learning_rate=2e-4",
        ],
        20,
    ),
)


@dataclass(frozen=True, slots=True)
class Told:
    """One run: its score, and the alarms of this page that it told, each with its first iteration."""

    name: str
    seed: int
    alarm: str
    curve: tuple[float, ...]
    errors: tuple[float, ...] = ()  # standard error of the score of each iteration
    told: dict[str, int] = field(default_factory=dict)
    kept: bool = True  # whether the weights of the peak are still there

    @property
    def smooth(self) -> list[float]:
        """The score at each iteration: the mean of it and those before it."""
        return [fmean(self.curve[max(0, end - SMOOTH) : end]) for end in range(1, len(self.curve) + 1)]

    @property
    def lost_at(self) -> int | None:
        """The first iteration at which the score has lost a tenth of its peak up to then."""
        scores = self.smooth
        for at in range(SMOOTH, len(scores)):
            best = max(scores[SMOOTH - 1 : at])
            chance = SURE * math.sqrt(2 * sum(e**2 for e in self.errors[at + 1 - SMOOTH : at + 1])) / SMOOTH
            if scores[at] < LOST * best and best - scores[at] > chance:
                return at
        return None

    @property
    def reached(self) -> bool:
        """Whether the planted alarm came in time; of a healthy run, whether none came."""
        if not self.alarm:
            return not self.told and self.kept
        if self.alarm not in self.told or not self.kept:
            return False
        return self.lost_at is None or self.told[self.alarm] <= self.lost_at

    def line(self) -> str:
        alarms = ", ".join(f"{key} at {at}" for key, at in self.told.items()) or "no alarm"
        lost = f"lost a tenth at {self.lost_at}" if self.lost_at is not None else "lost no tenth"
        return (
            f"  {self.name:<16} seed {self.seed}: {alarms}; {lost}   {'reached' if self.reached else 'short'}"
        )

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "lost_at": self.lost_at, "reached": self.reached}


def run(folder: str, seeds: Sequence[int], only: str = "") -> list[Told]:
    """Play every plant with every seed."""
    import ray

    start_ray("local", 0.2)
    results = []
    try:
        for plant in PLANTS:
            for seed in seeds if only in plant.name else ():
                results.append(play(plant, folder, seed))
                print(results[-1].line(), flush=True)
    finally:
        ray.shutdown()
    return results


def play(plant: Plant, folder: str, seed: int) -> Told:
    """One run, and the alarms that it told."""
    overrides = [*plant.overrides, *MEASURED]
    learned = train(
        plant.name, plant.file, overrides, root=folder, seed=seed, iterations=plant.iterations, goal=None
    )
    if plant.further:
        learned = train(
            plant.name,
            plant.file,
            [*plant.then, *MEASURED],
            root=folder,
            seed=seed,
            iterations=plant.iterations + plant.further,
            goal=None,
        )
    told: dict[str, int] = {}
    errors = []
    for index in range(len(learned.curve)):
        text = (Path(folder) / f"{plant.name}-{seed}/iterations/{index:05d}/done.json").read_text("utf-8")
        done = json.loads(text)
        errors.append(done["metrics"]["return/std"] / math.sqrt(done["metrics"]["rollout/episodes"]))
        for alarm in done["alarms"]:
            if alarm["name"] in ALARMS:
                told.setdefault("/".join(filter(None, (alarm["name"], alarm["where"]))), index)
    kept = _keeps_its_peak(folder, plant.name, seed)
    return Told(plant.name, seed, plant.alarm, learned.curve, tuple(errors), told, kept)


def _keeps_its_peak(folder: str, name: str, seed: int) -> bool:
    run = Run(folder, f"{name}-{seed}")
    versions = run.read_info()["peak"]["versions"]
    return all(version == 0 or version in run.weights_versions(model) for model, version in versions.items())
