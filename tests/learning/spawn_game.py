"""When spawning pays (proof 9a): a lead that knows nothing learns which tasks to hand to helpers.

One word of the lead decides: `ba` spawns two helpers, `do` works alone, any other word is malformed. Tasks of
the verb "see" split: each helper fetches one half, and alone nothing comes of it. Tasks of the verb "hear" do
not: alone they are done, and helpers only cost. Each play that is spawned has its price. So the best is to
spawn where it pays, which earns more than always and more than never.

The lead is a random model of a few words (`tiny-words`); helpers are plays with turns of their own, which
fetch by a tool. Reached where the mean over the last iterations is above both always and never, with the
interval of the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from pipeline.run.cluster import start_ray
from rewards.base import PlayedEpisode
from tests.learning.train import train
from workflows.crew import Crew
from workflows.errors import WorkflowError
from workflows.pace import Spawning
from workflows.parsers import Parsed, ParserHooks, invalid
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.state import Output
from workflows.vocabulary import Act

SPAWN, ALONE = "ba", "do"
SPLITS, WHOLE = "see", "hear"
SYMBOLS: Final = ("red", "green", "blue", "yellow")
PRICE: Final = 0.2  # of one spawned play
ALWAYS: Final = 1.0 - 2 * PRICE
NEVER: Final = 0.5  # every second task splits
BEST: Final = 1.0 - PRICE  # spawn where it pays
ITERATIONS: Final = 40
WINDOW: Final = 5
STUDENT: Final = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}  # two-sided 95 %, by the number of seeds


class Decides(ParserHooks):
    """One of the two words that decide."""

    __slots__ = ()

    def parse(self, text: str) -> Parsed:
        word = text.strip()
        return Parsed(word, True) if word in (SPAWN, ALONE) else invalid(f"{word!r} decides nothing")


async def fetch(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """One half of a task that splits; a task that does not has none."""
    return {"half": request["half"] if request["verb"] == SPLITS else None}


def build() -> ScriptWorkflow:
    """The game, for a model of the words of `tiny-words`."""
    return ScriptWorkflow(
        "spawn_game",
        [
            Role("lead", "{verb} {symbol} say", parser=Decides(), max_response_tokens=1, fixed_length=True),
            Role("helper", "name {symbol} {brief}", max_response_tokens=1, fixed_length=True),
        ],
        _lead,
        tools={"fetch": fetch},
        steps={"lead": "lead", "helper": "helper", "fetch": "fetch", "final": None},
        answer_step="final",
        spawning=Spawning(max_depth=1, max_width=2),
    )


async def _lead(team: Crew, task: Mapping[str, Any]) -> None:
    async def half(helper: Crew, brief: Output) -> Output:
        await helper.call("helper", {"symbol": task["symbol"], "brief": brief})
        return await helper.tool("fetch", {"verb": task["verb"], "half": brief.value}, reads=[brief])

    decided = await team.call("lead", {"verb": task["verb"], "symbol": task["symbol"]})
    halves: list[Any] = []
    if decided.value == SPAWN:
        for brief in ("say", "hear"):
            team.spawn("helper", brief, half, by=decided)
        came = await team.join()
        halves = [each.output.value["half"] for each in came if each.output.valid]
        team.aggregate(halves, came, by=decided, how="both halves")
    split = task["verb"] == SPLITS
    done = all(halves) and len(halves) == 2 if split else decided.valid
    team.note("final", "done" if done else "not done", reads=[decided])


def tasks(path: str) -> Iterator[dict[str, Any]]:
    """One task for each verb and symbol. `path` says how many symbols: "4".

    Raises:
        WorkflowError: not a number from 1 to 4.
    """
    if not path.isdecimal() or not 1 <= int(path) <= len(SYMBOLS):
        raise WorkflowError(f"[data] path of spawn_game is a number from 1 to {len(SYMBOLS)}, got {path!r}")
    for split in ("train", "dev"):
        for verb in (SPLITS, WHOLE):
            for symbol in SYMBOLS[: int(path)]:
                inputs = {"verb": verb, "symbol": symbol}
                row = {"task_id": f"{verb}-{symbol}-{split}", "split": split, "inputs": inputs}
                yield {**row, "gold": {"answers": ["done"]}}


@dataclass(frozen=True, slots=True)
class Pay:
    """What the lead earns: 1 for a task that is done, less the price of each play that it spawned."""

    price: float = PRICE

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        done = any(turn["step"] == "final" and turn["parsed"] == "done" for turn in episode.turns)
        spawned = sum(turn["act"] == Act.SPAWN for turn in episode.turns)
        earned = float(done) - self.price * spawned
        trained = set(episode.trainable())
        return [
            earned if index in trained and turn["role"] == "lead" else None
            for index, turn in enumerate(episode.turns)
        ]


@dataclass(frozen=True, slots=True)
class Spawned:
    """The runs of all seeds: what they earn at their end, against always and never."""

    ends: tuple[float, ...]
    curves: tuple[tuple[float, ...], ...]
    iterations: int = ITERATIONS

    @property
    def half_width(self) -> float:
        """Of the interval of 95 % of the mean, Student's t over seeds; none for one seed."""
        number = len(self.ends)
        return STUDENT.get(number, 2.0) * stdev(self.ends) / math.sqrt(number) if number > 1 else 0.0

    @property
    def reached(self) -> bool:
        return fmean(self.ends) - self.half_width > max(ALWAYS, NEVER)

    def line(self) -> str:
        """What was earned, beside what fixed rules earn."""
        told = f"{fmean(self.ends):.3f} ± {self.half_width:.3f} over {len(self.ends)} seeds"
        rules = f"always {ALWAYS:.3f}, never {NEVER:.3f}, best {BEST:.3f}"
        return (
            f"{told} after {self.iterations} iterations; {rules}   {'reached' if self.reached else 'short'}"
        )

    def as_dict(self) -> dict[str, Any]:
        return {"name": "spawn game", **asdict(self), "reached": self.reached}


def run(folder: str, seeds: Sequence[int]) -> list[Spawned]:
    """Train the lead from every seed."""
    import ray

    start_ray("local", 0.2)
    curves = []
    try:
        for seed in seeds:
            learned = train(
                "spawn",
                Path(__file__).parent / "spawn_game.toml",
                [],
                root=folder,
                seed=seed,
                iterations=ITERATIONS,
                goal=None,
                window=WINDOW,
                metric="reward/pay/mean",
            )
            print(f"  {learned.line().strip()}", flush=True)
            curves.append(learned.curve)
    finally:
        ray.shutdown()
    return [Spawned(tuple(fmean(curve[-WINDOW:]) for curve in curves), tuple(curves))]
