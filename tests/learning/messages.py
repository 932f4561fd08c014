"""What a message was worth: credit from a tenth of the tokens against a reference, and how fast a team
learns.

    say 0 ─┐
    say 1 ─┼─ keep        one of the four messages decides what the team earns, another one in each task
    say 2 ─┤
    say 3 ─┘

`correlation`: a scripted policy, whose messages are random words of known worth, and a keeper who does not
listen in three of ten plays. The reference resamples every message 32 times; the stage's own choice, with 4
alternatives and a tenth of these tokens, must correlate with it by 0.6 and better than the team's credit.
`learning` (`tests.learning.courier_team`): a model of random weights, once with the credit of messages, and
once with the team's credit for as many tokens, those of replays counted. Both credits are the same gradient
on average, of the same size, so that they differ in noise alone. Compared are shares of right plays after as
many iterations, and after as many tokens.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any, Final

import numpy as np
import polars as pl

from stages.effects import effects
from stages.message_credit import fit_of, merged_fits, message_credit
from stages.players.choices import Choosing
from stages.players.counterfactuals import Job, play_job
from stages.tables.parquet import Part, TableSink
from tests.learning.courier_team import SAMPLED, learned
from tests.learning.couriers import COURIERS, WORDS, build
from tests.learning.spawn_game import STUDENT
from workflows.credit_tables import MESSAGES
from workflows.engine import Message, Sampling
from workflows.interventions import PLAYED_INTERVENTIONS
from workflows.models import Model, ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.playing.play import Player
from workflows.testing import ScriptedEngine
from workflows.trajectory import EPISODES, REWARDS, TASKS, TURNS, rows_to_table
from workflows.vocabulary import Op

DEAF: Final = 0.3  # share of plays in which the scripted keeper does not listen
GOAL_CORRELATION: Final = 0.6
ITERATIONS: Final = 14  # with message credit
WINDOW: Final = 3  # iterations whose mean share of right plays is compared
ALTERNATIVES: Final = 32  # of the reference
SHARE: Final = 0.1  # of its tokens


def scripted(messages: Sequence[Message], sampling: Sampling) -> str:
    """Couriers say any of the words; the keeper says whether he listens."""
    luck = random.Random(sampling.seed)
    if messages[-1]["content"].startswith("hear"):
        return "deaf" if luck.random() < DEAF else "listens"
    return luck.choice(WORDS)


def earned(turns: Sequence[Mapping[str, Any]], which: int) -> float:
    """What the scripted team earns: the place of the word that counts, from 0 to 1; deaf ones earn a half."""
    if any(t["step"] == "keep" and t["response_text"] == "deaf" for t in turns):
        return 0.5
    said = next(t for t in turns if t["step"] == "say" and t["branch"] == str(which))
    return WORDS.index(said["response_text"]) / (len(WORDS) - 1)


@dataclass(frozen=True, slots=True)
class Correlated:
    """Correlations with the reference over all messages; intervals are of a bootstrap over tasks."""

    seed: int
    messages: int
    tokens: int
    reference_tokens: int
    of_messages: float
    of_team: float
    low: float  # of the difference, 95 %
    high: float

    @property
    def reached(self) -> bool:
        cheap = self.tokens <= 1.1 * SHARE * self.reference_tokens
        return cheap and self.of_messages >= GOAL_CORRELATION and self.low > 0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "reached": self.reached}

    def line(self) -> str:
        share = self.tokens / self.reference_tokens
        return (
            f"  correlation seed {self.seed}: {self.of_messages:.3f} by {share:.1%} of the reference's "
            f"tokens, team credit {self.of_team:.3f}, difference {self.of_messages - self.of_team:+.3f} "
            f"[{self.low:+.3f}, {self.high:+.3f}], {self.messages} messages   "
            f"{'reached' if self.reached else 'short'}"
        )


def correlation(folder: str, seed: int, num_tasks: int = 24, plays: int = 4) -> Correlated:
    """Message credit of one budget against the reference, through the product's own choice and credit."""
    player = _player(seed)
    which = {f"t{k:03d}": k % COURIERS for k in range(num_tasks)}
    stored = []
    for task_id, place in which.items():
        task = {"task_id": task_id, "split": "train", "inputs": {"symbol": "red", "which": place}}
        stored += [asyncio.run(player.play(task, iteration=0, sample=sample)) for sample in range(plays)]
    reference, tokens = _credit(f"{folder}/reference-{seed}", player, stored, which, ALTERNATIVES, None, seed)
    budget = round(SHARE * tokens)
    found, spent = _credit(f"{folder}/budget-{seed}", player, stored, which, 4, budget, seed)
    keys = ["episode_id", "turn_index"]
    both = reference.select(*keys, "group_id", truth="effect").join(
        found.select(*keys, "credit", "team"), on=keys
    )
    ours, team = (_correlation(both, name) for name in ("credit", "team"))
    groups = both.partition_by("group_id", maintain_order=True)
    luck, gaps = random.Random(seed), []
    for _ in range(500):
        drawn = pl.concat(luck.choices(groups, k=len(groups)))
        gaps.append(_correlation(drawn, "credit") - _correlation(drawn, "team"))
    low, high = np.quantile(gaps, [0.025, 0.975])
    return Correlated(seed, both.height, spent, tokens, ours, team, float(low), float(high))


def _player(seed: int) -> Player:
    """The game with scripted models."""
    workflow = build()
    engines: Any = {role: ScriptedEngine(scripted, model_id=role) for role in workflow.roles}
    models = {role: Model(role, engine.base_id, "scripted") for role, engine in engines.items()}
    return Player(workflow, engines, ModelMap(models, {r: r for r in models}), {}, PlayLimits(), seed)


def _credit(
    folder: str,
    player: Player,
    stored: Sequence[Any],
    which: Mapping[str, int],
    alternatives: int,
    tokens: int | None,
    seed: int,
) -> tuple[pl.DataFrame, int]:
    """`message_credit` with the team's credit and the group, and the tokens that its replays took."""
    rows = {
        "tasks": [
            {
                **dict.fromkeys(TASKS.names, ""),
                "task_id": t,
                "inputs": json.dumps({"symbol": "red", "which": k}),
            }
            for t, k in which.items()
        ],
        "turns": [turn for play in stored for turn in play.turns],
        "episodes": [play.episode for play in stored],
        "rewards": [row for play in stored for row in _rewarded(play.turns, which)],
    }
    schemas = {"tasks": TASKS, "turns": TURNS, "episodes": EPISODES, "rewards": REWARDS}
    refs = {}
    for name, schema in schemas.items():
        sink = TableSink(name, f"{folder}/{name}", schema)
        refs[name] = sink.ref([sink.write_part(0, rows_to_table(rows[name], schema))])
    plays = {"turns": TURNS, "episodes": EPISODES, "played_interventions": PLAYED_INTERVENTIONS}
    sinks = {
        name: TableSink(name, f"{folder}/plays/{name}", schema)
        for name, schema in {**plays, "messages": MESSAGES}.items()
    }
    choosing = Choosing([Op.RESAMPLE], alternatives=alternatives, tokens=tokens, seed=seed)
    job = Job(
        *(0, refs["tasks"], refs["turns"], refs["episodes"], sinks, choosing, f"{folder}/plays/0.json"),
        rewards=refs["rewards"],
        explore=0.2,
    )
    receipt = asyncio.run(play_job(player, job, asyncio.Semaphore(64)))
    made = {name: sink.ref([Part(**receipt["parts"][name])]).read() for name, sink in sinks.items()}
    of_plays: dict[str, list[dict[str, Any]]] = {}
    for turn in made["turns"].to_pylist():
        of_plays.setdefault(turn["episode_id"], []).append(turn)
    rewards = [row for turns in of_plays.values() for row in _rewarded(turns, which)]
    played = pl.DataFrame(effects(made["played_interventions"], rows_to_table(rewards, REWARDS)))
    messages = pl.DataFrame(made["messages"])
    credit = message_credit(messages, played, "fitted", merged_fits([fit_of(messages, played)]))
    keys = ["episode_id", "turn_index"]
    of_team = messages.select(*keys, "group_id", team="cheap").unique(keys, maintain_order=True)
    return pl.DataFrame(credit.table).join(of_team, on=keys), receipt["tokens"]


def _rewarded(turns: Sequence[Mapping[str, Any]], which: Mapping[str, int]) -> list[dict[str, Any]]:
    value = earned(turns, which[turns[0]["task_id"]])
    keys = ("episode_id", "turn_index")
    return [{**{key: turn[key] for key in keys}, "reward": value} for turn in turns]


def _correlation(rows: pl.DataFrame, name: str) -> float:
    return float(np.corrcoef(rows[name].to_numpy(), rows["truth"].to_numpy())[0, 1])


@dataclass(frozen=True, slots=True)
class Curve:
    """Shares of right plays by iteration, and the tokens sampled until then, those of replays too."""

    shares: tuple[float, ...]
    tokens: tuple[int, ...]

    def at(self, iteration: int) -> float:
        """The mean share of the `WINDOW` iterations until one, counted from 1."""
        return fmean(self.shares[max(0, iteration - WINDOW) : iteration])

    def within(self, tokens: int) -> int:
        """How many iterations so many tokens were enough for."""
        return sum(spent <= tokens for spent in self.tokens)


@dataclass(frozen=True, slots=True)
class Faster:
    """Two runs of one seed: with the team's credit alone, and with the credit of messages in its place."""

    seed: int
    team: Curve
    messages: Curve

    @property
    def iterations(self) -> int:
        return len(self.messages.shares)

    @property
    def by_iterations(self) -> float:
        """What message credit is ahead of team credit after as many iterations."""
        return self.messages.at(self.iterations) - self.team.at(self.iterations)

    @property
    def by_tokens(self) -> float:
        """What message credit is ahead of team credit after as many sampled tokens."""
        same = self.team.within(self.messages.tokens[-1])
        return self.messages.at(self.iterations) - self.team.at(same)

    @property
    def reached(self) -> bool:
        return self.by_iterations > 0

    def as_dict(self) -> dict[str, Any]:
        ahead = {"by_iterations": self.by_iterations, "by_tokens": self.by_tokens}
        runs = {"team": asdict(self.team), "messages": asdict(self.messages)}
        return {"seed": self.seed, **runs, **ahead, "reached": self.reached}

    def line(self) -> str:
        spent = self.messages.tokens[-1]
        same = self.team.within(spent)
        return (
            f"  learning seed {self.seed}: message credit {self.messages.at(self.iterations):.3f} after "
            f"{self.iterations} iterations and {spent:,} tokens; team credit "
            f"{self.team.at(self.iterations):.3f} after as many iterations ({self.by_iterations:+.3f}), "
            f"{self.team.at(same):.3f} after as many tokens, {same} iterations ({self.by_tokens:+.3f})"
        )


@dataclass(frozen=True, slots=True)
class Ahead:
    """What message credit is ahead of team credit over seeds, with intervals of 95 % (Student's t)."""

    of_iterations: tuple[float, ...]
    of_tokens: tuple[float, ...]

    @property
    def reached(self) -> bool:
        mean, half = _interval(self.of_iterations)
        return mean - half > 0

    def as_dict(self) -> dict[str, Any]:
        return {"name": "learning speed", **asdict(self), "reached": self.reached}

    def line(self) -> str:
        (same_steps, step_half), (same_tokens, token_half) = map(
            _interval, (self.of_iterations, self.of_tokens)
        )
        return (
            f"  learning, {len(self.of_iterations)} seeds: message credit is ahead by {same_steps:+.3f} ± "
            f"{step_half:.3f} at equal iterations, {same_tokens:+.3f} ± {token_half:.3f} at equal tokens   "
            f"{'reached' if self.reached else 'short'}"
        )


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its interval; without one for a single value."""
    number = len(values)
    half = STUDENT.get(number, 2.0) * stdev(values) / number**0.5 if number > 1 else 0.0
    return fmean(values), half


def learning(folder: str, seed: int, iterations: int = ITERATIONS) -> Faster:
    """Both teams of a seed: with message credit for so many iterations, then with team credit for as many
    tokens."""
    messages = Curve(*map(tuple, learned(f"{folder}/replays-{seed}", "messages", seed, iterations)))
    as_many = -(-messages.tokens[-1] // SAMPLED)  # iterations
    return Faster(seed, Curve(*map(tuple, learned("", "team", seed, max(iterations, as_many)))), messages)


def run(folder: str, seeds: Sequence[int]) -> Iterator[Correlated | Faster | Ahead]:
    """Correlations of all seeds, then what is learned."""
    for seed in seeds:
        yield correlation(f"{folder}/correlation", seed)
    runs = []
    for seed in seeds:
        runs.append(learning(f"{folder}/learning", seed))
        yield runs[-1]
    yield Ahead(tuple(r.by_iterations for r in runs), tuple(r.by_tokens for r in runs))
