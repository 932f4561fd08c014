"""Playing the probes of a part: what each stop decision of its episodes would have come to otherwise.

Where an episode went on, it is played again with a stop there, some times; where it stopped, a chosen share
is played again going on. What comes before the decision is served from the stored turns, so a probe costs
what the team says after a stop, and nothing where the answer stands already.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.compute as pc

from stages.players.choices import Row, episodes_of
from stages.players.counterfactuals import TURNS_READ
from stages.tables.parquet import TableRef, TableSink
from workflows.playing.decision import is_stop_decision
from workflows.playing.play import Player
from workflows.playing.record import Played
from workflows.playing.stopped import Stopped
from workflows.state import TurnKey
from workflows.stop_tables import PLAYED_PROBES
from workflows.trajectory import EPISODES, TURNS, rows_to_table, seed_for
from workflows.vocabulary import Event, Origin, Status

STOP: Final = "stop"
CONTINUE: Final = "continue"
DIFFERS: Final = "what comes before the decision is other when it is played again"


@dataclass(frozen=True, slots=True)
class ProbeJob:
    """One part of an iteration's episodes that are to be probed, and where the plays go.

    `samples` probes answer at each decision that went on; a stop goes on with probability `epsilon`.
    """

    index: int
    tasks: TableRef
    turns: TableRef
    episodes: TableRef
    sinks: Mapping[str, TableSink]
    samples: int
    epsilon: float
    seed: int


async def play_probes(player: Player, job: ProbeJob, slots: asyncio.Semaphore) -> dict[str, Any]:
    """Play the probes of a part, write its tables, and return a receipt."""
    stored = await asyncio.to_thread(_read, job)
    tasks = {row["task_id"]: row for row in await asyncio.to_thread(_tasks, job)}

    async def play(rows: Sequence[Row], base: Stopped) -> Played:
        first = rows[0]
        async with slots:
            return await player.play(
                tasks[first["task_id"]],
                iteration=first["iteration"],
                sample=first["sample"],
                block=first["block"],
                base=base,
            )

    async def at(rows: Sequence[Row], decision: Row) -> list[Probe]:
        key = TurnKey(decision["step"], decision["round"], decision["branch"])
        if json.loads(decision["parsed"]) == _option(decision, 0):  # it stopped
            if not _goes_on(job, decision):
                return []
            return [
                _probe(decision, CONTINUE, 0, job, await play(rows, Stopped.after(rows, key, stops=False)))
            ]
        base = Stopped.after(rows, key)
        probes = [_probe(decision, STOP, 0, job, await play(rows, base))]
        if _asks(probes[0].played, base):  # else the answer stands, and every sample of it is the same
            more = [play(rows, Stopped.after(rows, key, sample=k)) for k in range(1, job.samples)]
            for number, played in enumerate(await asyncio.gather(*more), 1):
                probes.append(_probe(decision, STOP, number, job, played))
        return probes

    found = await asyncio.gather(
        *(at(rows, row) for rows in stored.values() for row in rows if is_stop_decision(row))
    )
    return await asyncio.to_thread(_write, job, [probe for probes in found for probe in probes])


@dataclass(frozen=True, slots=True)
class Probe:
    """A row of `played_probes`, and its play."""

    row: dict[str, Any]
    played: Played


def _read(job: ProbeJob) -> dict[str, list[Row]]:
    """The stored turns of a part by episode, of episodes that are ok and decided anything."""
    ends = job.episodes.read_part(job.index, ["episode_id", "status"])
    ok = ends.filter(pc.equal(ends["status"], str(Status.OK)))["episode_id"]
    turns = job.turns.read_part(job.index, TURNS_READ)
    episodes = episodes_of(turns.filter(pc.is_in(turns["episode_id"], value_set=ok)).to_pylist())
    return {name: rows for name, rows in episodes.items() if any(map(is_stop_decision, rows))}


def _tasks(job: ProbeJob) -> list[dict[str, Any]]:
    rows = job.tasks.read_part(job.index, ["task_id", "split", "inputs"]).to_pylist()
    return [{**row, "inputs": json.loads(row["inputs"])} for row in rows]


def _option(decision: Row, number: int) -> str:
    name: str = decision["option_logprobs"][number]["name"]
    return name


def _goes_on(job: ProbeJob, decision: Row) -> bool:
    """Whether a stop is one of the share that goes on: by a hash of its place, the same in a rerun."""
    draw = seed_for(job.seed, "stop goes on", decision["episode_id"], decision["turn_index"])
    return draw / 2**63 < job.epsilon


def _asks(played: Played, base: Stopped) -> bool:
    """Whether a role is asked anything after the decision, from which samples could differ."""
    keys = [(t["event"], TurnKey(t["step"], t["round"], t["branch"])) for t in played.turns]
    return any(event == Event.LLM and key not in base.before for event, key in keys)


def _probe(decision: Row, kind: str, sample: int, job: ProbeJob, played: Played) -> Probe:
    """The row of a probe; its play gets an id of its own, and what it sampled is marked as a probe's."""
    play_id = f"{decision['episode_id']}#{kind}.{decision['turn_index']}.{sample}"
    names = {"episode_id": play_id, "group_id": play_id}
    turns = [{**t, **names, "origin": _origin(t)} for t in played.turns]
    row: dict[str, Any] = dict.fromkeys(PLAYED_PROBES.names)
    of_turn = ("iteration", "block", "task_id", "group_id", "episode_id", "turn_index", "context_hash")
    row.update({name: decision[name] for name in of_turn})
    row.update(
        kind=kind,
        sample=sample,
        select_probability=job.epsilon if kind == CONTINUE else 1.0,
        play_id=play_id,
        status=played.episode["status"],
        origin=str(Origin.PROBE),
        prompt_tokens=played.episode["num_prompt_tokens"],
        tokens=played.episode["num_response_tokens"],
        skipped=None if _begins_alike(turns, decision) else DIFFERS,
    )
    return Probe(row, Played(turns, {**played.episode, **names}))


def _origin(turn: Row) -> str:
    copied = turn["origin"] in (Origin.COPIED, Origin.REPLAYED)
    return str(turn["origin"] if copied else Origin.PROBE)


def _begins_alike(turns: Iterable[Row], decision: Row) -> bool:
    """Whether the play came to the decision with the same context, from stored replies alone."""
    for turn in turns:
        if all(turn[name] == decision[name] for name in ("step", "round", "branch")):
            same: bool = turn["context_hash"] == decision["context_hash"]
            return same and turn["origin"] == Origin.COPIED
        if turn["event"] == Event.LLM and turn["origin"] != Origin.COPIED:
            return False
    return False


def _write(job: ProbeJob, probes: Sequence[Probe]) -> dict[str, Any]:
    plays = [probe.played for probe in probes]
    tables = {
        "probe_turns": rows_to_table([turn for play in plays for turn in play.turns], TURNS),
        "probe_episodes": rows_to_table([play.episode for play in plays], EPISODES),
        "played_probes": rows_to_table([probe.row for probe in probes], PLAYED_PROBES),
    }
    return {
        "parts": {name: job.sinks[name].write_part(job.index, table) for name, table in tables.items()},
        "probes": len(probes),
        "tokens": sum(probe.row["tokens"] for probe in probes),
        "failed": sum(play.episode["status"] != Status.OK for play in plays),
        "differ": sum(probe.row["skipped"] is not None for probe in probes),
    }
