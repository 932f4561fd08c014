"""Stored plays as a reward model reads them: their text, what they earned, and why others are left out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.store.episodes import values_of
from pipeline.store.finished import RESULT, Finished
from pipeline.store.run import Run
from rewards.base import PlayedEpisode
from rewards.preferences.render import render
from rewards.scoring.by_episode import episodes_of
from rewards.scoring.joined import EPISODES_SEEN, TASKS_SEEN, TURNS_SEEN, join
from rewards.scoring.reasons import kind_of
from stages.base import Account
from stages.tables.parquet import TableRef
from workflows.errors import UsageError
from workflows.trajectory import to_json
from workflows.vocabulary import Event, Status

NO_VALUE: Final = "no return"
NO_TEXT: Final = "no reply with text"
CALLED_OFF: Final = "called off"
NO_TURN: Final = "no turn"
_NEEDED: Final = ("tasks", "turns", "episodes")


@dataclass(frozen=True, slots=True)
class StoredPlay:
    """One stored play that can be compared with others."""

    play: str  # "{number of the run}:{episode_id}"
    run: str
    episode_id: str
    task: str  # see `task_key`
    value: float
    text: str
    num_turns: int
    format: float  # share of its replies that keep their role's format


@dataclass(slots=True)
class Collected:
    """The plays of some runs, and an account of all episodes that there are."""

    plays: list[StoredPlay]
    account: Account
    hashes: dict[str, str]  # by run: of the tables that were read


@dataclass(frozen=True, slots=True)
class Where:
    """Where plays are looked for, and what they earned there.

    Attributes:
        value: the name of a reward; None: the mean return of a play's turns, or of an evaluation its first
            metric.
        split: evaluations on this split, in the place of iterations.
    """

    value: str | None = None
    split: str | None = None


def task_key(inputs: Mapping[str, Any]) -> str:
    """A hash of what a task asks: equal for equal tasks, whatever their ids and runs."""
    return hashlib.blake2b(to_json(dict(inputs)).encode(), digest_size=16).hexdigest()


def collect(runs: list[Run], answer_steps: Mapping[str, str | None], where: Where) -> Collected:
    """All plays of finished iterations, or evaluations, of some runs.

    Args:
        runs: with their info read.
        answer_steps: by the URL of each run, the step that gives its team's answer.
        where: what is read.

    Raises:
        UsageError: a run has nothing of the kind.
    """
    plays: list[StoredPlay] = []
    excluded: Counter[str] = Counter()
    total, hashes = 0, {}
    for number, run in enumerate(runs):
        places = list(_places(run, where.split))
        if not places:
            what = "finished iteration" if where.split is None else f"evaluation on {where.split!r}"
            raise UsageError(f"run {run.name!r} has no {what}, so it has no plays to compare")
        names = [place.tables[name].hash for place in places for name in sorted(place.tables)]
        hashes[run.folder.url] = hashlib.blake2b("".join(names).encode(), digest_size=16).hexdigest()
        for place in places:
            tables = place.measured
            for index in range(len(tables["episodes"].parts)):
                found, missing = _of_part(tables, index, answer_steps[run.folder.url], where)
                total += len(found) + missing.total()
                excluded += missing
                plays += [_stored(number, run, *each) for each in found]
    account = Account("episodes to plays", "episode", total, len(plays), dict(sorted(excluded.items())))
    account.check()
    return Collected(plays, account, hashes)


def _places(run: Run, split: str | None) -> Iterator[Finished]:
    """The finished iterations of a run, or its evaluations on a split."""
    if split is None:
        places = [Finished.read(run.iteration(index)) for index in run.iterations()]
    else:
        numbers = run.folder.child(f"evaluations/{split}").names()
        places = [Finished.read(run.evaluation(split, int(n)), RESULT) for n in numbers if n.isdigit()]
    for place in places:
        if all(name in place.tables for name in _NEEDED):
            yield place


def _stored(number: int, run: Run, episode: PlayedEpisode, value: float, text: str) -> StoredPlay:
    kept = [turn["format_valid"] for turn in episode.turns if turn["event"] == Event.LLM]
    return StoredPlay(
        play=f"{number}:{episode.episode_id}",
        run=run.folder.url,
        episode_id=episode.episode_id,
        task=task_key(episode.inputs),
        value=value,
        text=text,
        num_turns=len(episode.turns),
        format=fmean(valid is not False for valid in kept) if kept else 1.0,
    )


def _of_part(
    tables: Mapping[str, TableRef], index: int, answer_step: str | None, where: Where
) -> tuple[list[tuple[PlayedEpisode, float, str]], Counter[str]]:
    """The plays of one part with what they earned and their text; and how many have none, by reason."""
    seen = {"tasks": TASKS_SEEN, "turns": TURNS_SEEN, "episodes": EPISODES_SEEN}
    tasks, turns, episodes = (tables[name].read_part(index, schema.names) for name, schema in seen.items())
    joined = join(tasks, turns, episodes)
    values = earned(tables, index, where)
    excluded = Counter(kind_of(reason) for reason in joined.broken if reason is not None)
    if silent := episodes.num_rows - len(joined.broken):
        excluded[NO_TURN] += silent
    found = []
    for _, episode in episodes_of(joined.part, np.arange(joined.part.num_episodes)):
        value = values.get(episode.episode_id)
        if episode.status == Status.CALLED_OFF:
            excluded[CALLED_OFF] += 1
        elif value is None or not np.isfinite(value):
            excluded[NO_VALUE] += 1
        elif not any(turn["response_text"] for turn in episode.turns if turn["event"] == Event.LLM):
            excluded[NO_TEXT] += 1
        else:
            found.append((episode, value, render(episode, answer_step)))
    return found, excluded


def earned(tables: Mapping[str, TableRef], index: int, where: Where) -> dict[str, float]:
    """By episode of a part, what it earned; without those that earned nothing that is known."""
    if "evaluation" in tables:
        return values_of(tables, index, where.value)
    if where.value is None and "credit" in tables:
        return values_of({"credit": tables["credit"]}, index)
    if "rewards" not in tables:
        return {}
    rewards = tables["rewards"].read_part(index, ["episode_id", "reward", "reward_parts"])
    return _mean_rewards(rewards, where.value)


def _mean_rewards(rewards: pa.Table, name: str | None) -> dict[str, float]:
    by_episode: dict[str, list[float]] = {}
    for row in rewards.to_pylist():
        parts = {part["name"]: part["value"] for part in row["reward_parts"] or ()}
        value = row["reward"] if name is None else parts.get(name)
        if value is not None:
            by_episode.setdefault(row["episode_id"], []).append(value)
    return {episode: fmean(values) for episode, values in by_episode.items()}
