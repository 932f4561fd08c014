"""A game of when to stop, from random weights: held against the game's own optimal rule.

A draft is bad, fair or good, and every round makes another one of it, which may be worse: red, yellow or
green is all that the stopper sees, with a word for the round. A stop earns 1 if the draft is right, with the
chance of its colour, less a price for each round. Stopping at one fixed round loses at least 0.1 to the
optimal rule, which dynamic programming gives; what is learned must lose at most half of that.

The value of a learned rule is exact: its probabilities of a stop are stored with every decision, and the
chain of colours is known. Nothing is sampled to judge it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any, Final

import numpy as np

from rewards.base import PlayedEpisode
from workflows.errors import WorkflowError
from workflows.graph import ControlStep, Edge, LlmStep, Workflow
from workflows.roles import Role
from workflows.state import State
from workflows.vocabulary import Act

COLOURS: Final = ("red", "yellow", "green")
RIGHT: Final = (0.05, 0.6, 0.95)  # the chance that a draft of a colour is right
FIRST: Final = (0.6, 0.3, 0.1)
NEXT: Final = ((0.6, 0.25, 0.15), (0.25, 0.45, 0.3), (0.35, 0.15, 0.5))
ROUNDS: Final = 6
PRICE: Final = 0.04
WORDS: Final = ("black", "white", "blue", "ba", "do", "ki")  # of the rounds: words that the model knows
TASKS: Final = 1024


def build() -> Workflow:
    """The game, for a model of the words of `tiny-words`."""
    stopper = Role(
        "stopper",
        prompt="see {colour} hear {number} say",
        options=("pink", "brown"),
        decides=Act.STOP,
        max_response_tokens=1,
        fixed_length=True,
    )
    return Workflow(
        "stop_game",
        roles=[stopper],
        steps=[
            ControlStep("draft", draft),
            LlmStep("halt", "stopper", {"colour": "draft.colour", "number": number}),
        ],
        edges=[
            Edge("draft", "halt", when=lambda state: state.round + 1 < ROUNDS),
            Edge("halt", "draft", when=lambda state: state["halt"].value == "brown", limit=ROUNDS - 1),
        ],
        answer_step="draft",
    )


def draft(state: State) -> dict[str, Any]:
    """The draft of this round: its colour, and whether it is right."""
    return {
        "colour": COLOURS[state.task["colours"][state.round]],
        "right": state.task["right"][state.round],
    }


def number(state: State) -> str:
    """The word of the round."""
    return WORDS[state.round]


def tasks(path: str) -> Iterator[dict[str, Any]]:
    """Paths of colours, drawn by the number in `path`.

    Raises:
        WorkflowError: not a number.
    """
    if not path.isdecimal():
        raise WorkflowError(f"[data] path of stop_game is a number, got {path!r}")
    luck = random.Random(f"stop game {path}")
    for index in range(TASKS):
        (colour,) = luck.choices(range(3), FIRST)
        colours = [colour]
        while len(colours) < ROUNDS:
            colours += luck.choices(range(3), NEXT[colours[-1]])
        right = [int(luck.random() < RIGHT[colour]) for colour in colours]
        inputs = {"colours": colours, "right": right}
        yield {"task_id": f"{index:04d}", "split": "train", "inputs": inputs, "gold": {"answers": ["right"]}}


def right(episode: PlayedEpisode) -> list[float]:
    """1 where the last draft is right, else 0, for every turn."""
    last = [turn for turn in episode.turns if turn["step"] == "draft"][-1]
    value = float(last["parsed"]["right"])
    return [value] * len(episode.turns)


def value_of(stop: Mapping[tuple[int, int], float]) -> float:
    """The exact value of a rule: the probability of a stop by colour and round, from 0; 1 at the last one."""
    ahead = np.zeros(3)
    for turn in reversed(range(ROUNDS)):
        p = np.array([1.0 if turn == ROUNDS - 1 else stop.get((c, turn), 0.5) for c in range(3)])
        now = np.array(RIGHT) - PRICE * turn
        ahead = p * now + (1 - p) * (np.array(NEXT) @ ahead)
    return float(np.array(FIRST) @ ahead)


def optimal() -> tuple[float, dict[tuple[int, int], float]]:
    """The value of the best rule, and the rule, by dynamic programming."""
    rule: dict[tuple[int, int], float] = {}
    ahead = np.array(RIGHT) - PRICE * (ROUNDS - 1)
    for turn in reversed(range(ROUNDS - 1)):
        now, later = np.array(RIGHT) - PRICE * turn, np.array(NEXT) @ ahead
        rule |= {(c, turn): float(now[c] >= later[c]) for c in range(3)}
        ahead = np.maximum(now, later)
    return float(np.array(FIRST) @ ahead), rule


def best_fixed() -> tuple[float, int]:
    """The value of the best fixed round, and the round."""
    values = [
        value_of({(c, t): float(t == at) for c in range(3) for t in range(ROUNDS)}) for at in range(ROUNDS)
    ]
    return max(values), int(np.argmax(values))


@dataclass(frozen=True, slots=True)
class Stopped:
    """One run: the exact value of its rule after each iteration."""

    seed: int
    curve: tuple[float, ...]
    seconds: float

    @property
    def lost(self) -> float:
        """What the rule of the last iterations loses to the optimal one."""
        return optimal()[0] - fmean(self.curve[-5:])

    @property
    def reached(self) -> bool:
        loses = optimal()[0] - best_fixed()[0]
        return loses >= 0.1 and self.lost <= loses / 2

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "lost": self.lost, "reached": self.reached}

    def line(self) -> str:
        best, (fixed, at) = optimal()[0], best_fixed()
        return (
            f"  seed {self.seed}: value {self.curve[0]:.3f} → {fmean(self.curve[-5:]):.3f} in "
            f"{len(self.curve)} iterations, {self.seconds:.0f} s; optimal {best:.3f}, best fixed round "
            f"({at + 1}) {fixed:.3f}: loses {self.lost:.3f} of its {best - fixed:.3f}   "
            f"{'reached' if self.reached else 'short'}"
        )


def run(folder: str, seeds: Sequence[int]) -> list[Any]:
    """Train once for each seed, and print an interval over seeds."""
    import ray

    from pipeline.run.cluster import start_ray

    start_ray("local", 0.2)
    try:
        runs = [play(folder, seed) for seed in seeds]
    finally:
        ray.shutdown()
    return [*runs, OverSeeds(runs)] if len(runs) > 1 else runs


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """What is lost to the optimal rule over seeds: the mean, and Student's interval of 95 %."""

    runs: Sequence[Stopped]

    @property
    def interval(self) -> tuple[float, float]:
        from scipy.stats import t

        lost = [one.lost for one in self.runs]
        half = float(t.ppf(0.975, len(lost) - 1)) * stdev(lost) / len(lost) ** 0.5
        return fmean(lost) - half, fmean(lost) + half

    @property
    def reached(self) -> bool:
        return all(one.reached for one in self.runs)

    def as_dict(self) -> dict[str, Any]:
        return {"lost": fmean(one.lost for one in self.runs), "interval": self.interval}

    def line(self) -> str:
        low, high = self.interval
        lost = fmean(one.lost for one in self.runs)
        return f"  {len(self.runs)} seeds: loses {lost:.3f} on average ({low:.3f} to {high:.3f} at 95 %)"


def play(folder: str, seed: int, iterations: int = 40) -> Stopped:
    """One run of the game."""
    import time
    from pathlib import Path

    from pipeline.plan.assemble import assemble
    from pipeline.run.session import session
    from pipeline.settings.reading import load_settings
    from pipeline.store.finished import Finished
    from stages.base import Quiet

    own = [f"run.root={folder}", f"run.name=stop-{seed}", f"run.seed={seed}", f'data.path="{seed}"']
    settings = load_settings(Path(__file__).with_suffix(".toml"), [*own, "tracking.uri=none"])
    curve: list[float] = []

    def on_done(finished: Finished) -> bool:
        curve.append(value_of(rule_of(finished.tables["stops"].read().to_pylist(), finished)))
        return False

    started = time.monotonic()
    with session(assemble(settings), Quiet(), signals=False) as runner:
        runner.train(iterations, on_done=on_done)
    return Stopped(seed, tuple(curve), time.monotonic() - started)


def rule_of(stops: Sequence[Mapping[str, Any]], finished: Any) -> dict[tuple[int, int], float]:
    """The mean probability of a stop by colour and round, from stored decisions."""
    colours = {
        (turn["episode_id"], turn["round"]): COLOURS.index(json.loads(turn["parsed"])["colour"])
        for turn in finished.tables["turns"].read(["episode_id", "round", "step", "parsed"]).to_pylist()
        if turn["step"] == "draft"
    }
    found: dict[tuple[int, int], list[float]] = {}
    for stop in stops:
        if stop["stop_logprob"] is not None:
            key = (colours[stop["episode_id"], stop["round"]], stop["round"])
            found.setdefault(key, []).append(float(np.exp(stop["stop_logprob"])))
    return {key: fmean(values) for key, values in found.items()}
