"""Stored runs of a game of spawning, played by chance: which play of a task is better is known.

As in `tests.learning.spawn_game`, helpers pay off where the task's verb is "see" and only cost where it is
"hear". But no turn says whether the task is done: it takes the task and what the lead did to tell.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.settings.reading import parse_settings
from pipeline.store.run import Run
from rewards.base import PlayedEpisode
from rewards.scoring.score import score_turns
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from stages.base import StageResult
from tests.learning.spawn_game import ALONE, PRICE, SPAWN, SPLITS, SYMBOLS, WHOLE, Decides
from tests.support.stored_runs import ROLLOUT, SAMPLE, Made, write_run
from workflows.crew import Crew
from workflows.pace import Spawning
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.state import Output
from workflows.testing import play_once
from workflows.trajectory import EPISODES, REWARDS, TASKS, TURNS, rows_to_table, seed_for, to_json
from workflows.vocabulary import Act

REWARD: Final = Made("reward", "rewards", {"rewards": REWARDS}, {"rewards": ""})
NAMES: Final = ("black", "white", "brown", "pink", "me", "no", "pa", "ti")
SAID: Final = (SPAWN, SPAWN, SPAWN, ALONE, ALONE, ALONE, "ki")  # by the lead; the last one decides nothing


def build() -> ScriptWorkflow:
    """A lead that spawns two helpers or none; the team's answer is the task's symbol in any case."""
    roles = [
        Role("lead", "{verb} {symbol} say", parser=Decides(), max_response_tokens=1, fixed_length=True),
        Role("helper", "name {symbol} {brief}", max_response_tokens=1, fixed_length=True),
    ]
    steps = {"lead": "lead", "helper": "helper", "final": None}
    return ScriptWorkflow(
        "spawned", roles, _lead, steps=steps, answer_step="final", spawning=Spawning(max_depth=1, max_width=2)
    )


async def _lead(team: Crew, task: Mapping[str, Any]) -> None:
    async def help(helper: Crew, brief: Output) -> Output:
        return await helper.call("helper", {"symbol": task["symbol"], "brief": brief})

    decided = await team.call("lead", {"verb": task["verb"], "symbol": task["symbol"]})
    if decided.value == SPAWN:
        for brief in ("say", "hear"):
            team.spawn("helper", brief, help, by=decided)
        team.aggregate("both", await team.join(), by=decided, how="both halves")
    team.note("final", task["symbol"], reads=[decided])


@dataclass(frozen=True, slots=True)
class Fit:
    """1 for a task that is done, less the price of each helper; a lead that decides nothing earns nothing."""

    price: float = PRICE

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        spawned = sum(turn["act"] == Act.SPAWN for turn in episode.turns)
        decided = any(turn["format_valid"] for turn in episode.turns if turn["role"] == "lead")
        done = spawned > 0 or (decided and episode.inputs["verb"] == WHOLE)
        trained = set(episode.trainable())
        return [
            float(done) - self.price * spawned if i in trained else None for i in range(len(episode.turns))
        ]


def tasks_of(number: int) -> list[dict[str, Any]]:
    """Inputs of so many different tasks, of both verbs in turn."""
    inputs = [
        {"verb": verb, "symbol": symbol, "name": f"{one} {other}"}
        for one in NAMES
        for other in NAMES
        for symbol in SYMBOLS
        for verb in (SPLITS, WHOLE)
    ]
    return inputs[:number]


def game_run(
    root: str, name: str, *, tasks: Sequence[dict[str, Any]], plays: int, seed: int = 0, **settings: Any
) -> Run:
    """A run with one iteration of plays, whose lead says a word by chance, and their rewards."""
    raw: dict[str, Any] = {
        "run": {"name": name, "root": root, "seed": seed},
        "data": {"path": "4", "format": "tests.learning.spawn_game:tasks"},
        "workflow": {"use": "tests.support.stored_games:build"},
        "models": {"team": {"checkpoint": "tiny-words", "engine": "scripted"}},
        "rewards": [{"use": "tests.support.stored_games:Fit", "name": "fit"}],
        "tracking": {"uri": "none"},
        "cluster": {"object_store_gib": 0.2},
    }
    run = write_run(parse_settings(raw | settings))
    rows: dict[str, list[dict[str, Any]]] = {"tasks": [], "turns": [], "episodes": []}
    for number, inputs in enumerate(tasks):
        task = {"task_id": f"t{number:03d}", "split": "train", "inputs": to_json(inputs), "gold": "{}"}
        rows["tasks"].append(task)
        for sample in range(plays):
            turns, episode = _play(inputs, task["task_id"], sample, seed)
            rows["turns"] += turns
            rows["episodes"].append(episode)
    schemas = {"tasks": TASKS, "turns": TURNS, "episodes": EPISODES}
    tables = {name: rows_to_table(rows[name], schema) for name, schema in schemas.items()}
    fit = WeightedRewards((WeightedReward("fit", 1.0, Fit()),))
    scored = score_turns(tables["tasks"], tables["turns"], tables["episodes"], fit)
    place = run.iteration(0)
    for stage, names in ((SAMPLE, ["tasks"]), (ROLLOUT, ["turns", "episodes"]), (REWARD, ["rewards"])):
        sinks = place.sinks(stage)  # type: ignore[arg-type]
        of_stage = tables | {"rewards": scored}
        parts = {table: [sinks[table].write_part(0, of_stage[table])] for table in names}
        place.commit(stage, StageResult(parts), {}, {}, 0.0)  # type: ignore[arg-type]
    return run


def _play(
    inputs: dict[str, Any], task: str, sample: int, seed: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    word = random.Random(seed_for(seed, task, sample)).choice(SAID)
    played = play_once(build(), inputs, {"lead": word, "helper": "me"}, sample=sample)
    identity = {
        "task_id": task,
        "group_id": f"00000/{task}",
        "episode_id": f"00000/{task}/{sample}",
        "sample": sample,
    }
    team = {"model_id": "team", "base_id": "team"}
    turns = [turn | identity | (team if turn["model_id"] else {}) for turn in played.turns]
    return turns, played.episode | identity
