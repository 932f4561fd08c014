"""Playing the chosen interventions of a part of the tables, after a replay of each episode as it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from stages.players.choices import (
    Choice,
    Choosing,
    Row,
    chosen,
    counterfactual,
    episodes_of,
    inputs_of,
    key_of,
)
from stages.players.games import play_game
from stages.players.outcomes import Outcomes, came_of, intervention_row, merged, named, share_of
from stages.players.selection import Scored, selected
from stages.players.shards import read_receipt
from stages.players.spans import Decode, sent_span
from stages.tables.parquet import TableRef, TableSink, write_bytes
from workflows.credit_tables import MESSAGES
from workflows.errors import WorkflowError
from workflows.interventions import PLAYED_COALITIONS, PLAYED_INTERVENTIONS
from workflows.playing.base_episode import BASE_COLUMNS, BaseEpisode
from workflows.playing.play import Player
from workflows.playing.record import Played
from workflows.trajectory import EPISODES, TURNS, rows_to_table
from workflows.vocabulary import Op, Status

TURNS_READ: Final = (
    *(*BASE_COLUMNS, "group_id", "turn_index", "parents", "act", "act_detail", "decided_by"),
)


def _no_text(model_id: str, token_ids: Sequence[int]) -> str | None:
    """What an engine that can't decode says."""
    return None


NOT_THE_SAME: Final = "a replay without any intervention differs from the stored episode"


@dataclass(frozen=True, slots=True)
class Job:
    """One part of stored tables whose episodes are played otherwise, and where the plays go."""

    index: int
    tasks: TableRef
    turns: TableRef
    episodes: TableRef
    sinks: Mapping[str, TableSink]
    choosing: Choosing
    receipt_uri: str
    rewards: TableRef | None = None  # with them, messages are chosen by what their replays may teach
    explore: float = 1.0


async def play_job(
    player: Player, job: Job, slots: asyncio.Semaphore, decode: Decode = _no_text
) -> dict[str, Any]:
    """Play the interventions that are chosen in a part, write its tables, and return a receipt.

    An episode with anything chosen is first replayed as it is, which samples nothing. Where that gives other
    rows, the workflow or a tool depends on more than the replies, so an effect would be that: its
    interventions are skipped, and say so. A part that has a receipt is not played again.
    """
    if (receipt := await asyncio.to_thread(read_receipt, job.receipt_uri)) is not None:
        return receipt
    stored = await asyncio.to_thread(_read, job)
    messages: list[dict[str, Any]] | None = None
    if job.rewards is None:
        choices = chosen(stored, job.choosing)
    else:
        returns = await asyncio.to_thread(_returns, job.rewards, job.index)
        scored = selected(stored, returns, job.choosing, job.explore)
        choices = [each.choice for each in scored if each.is_chosen]
        messages = await asyncio.to_thread(_messages, scored, stored, decode)
    by_episode: dict[str, list[Choice]] = {}
    for choice in choices:
        by_episode.setdefault(choice.turn["episode_id"], []).append(choice)
    tasks = {row["task_id"]: row for row in await asyncio.to_thread(_tasks, job)}
    plays = await asyncio.gather(
        *(
            _play_episode(player, slots, tasks[stored[e][0]["task_id"]], stored[e], of_episode, job.choosing)
            for e, of_episode in by_episode.items()
        )
    )
    return await asyncio.to_thread(_write, job, merged(plays), stored, messages)


def _read(job: Job) -> dict[str, list[Row]]:
    """The stored turns of a part by episode, of episodes that are ok."""
    ends = job.episodes.read_part(job.index, ["episode_id", "status"])
    ok = ends.filter(pc.equal(ends["status"], str(Status.OK)))["episode_id"]
    turns = job.turns.read_part(job.index, TURNS_READ)
    return episodes_of(turns.filter(pc.is_in(turns["episode_id"], value_set=ok)).to_pylist())


def _returns(rewards: TableRef, index: int) -> dict[str, float]:
    """The mean reward of each episode of a part that has one."""
    given: dict[str, list[float]] = {}
    for episode_id, reward in zip(
        *rewards.read_part(index, ["episode_id", "reward"]).to_pydict().values(), strict=True
    ):
        if reward is not None:
            given.setdefault(episode_id, []).append(reward)
    return {episode_id: fmean(values) for episode_id, values in given.items()}


def _messages(
    scored: Sequence[Scored], episodes: Mapping[str, Sequence[Row]], decode: Decode
) -> list[dict[str, Any]]:
    """The rows of `MESSAGES`."""
    spans: dict[tuple[str, int], tuple[int, int] | None] = {}
    rows = []
    for each in scored:
        of_episode = episodes[each.candidate[0]["episode_id"]]
        turns = inputs_of(of_episode, each.candidate[1])
        for place, turn in enumerate(turns):
            key = (turn["episode_id"], turn["turn_index"])
            if key not in spans:
                spans[key] = sent_span(turn, of_episode, decode)
            rows.append(_message(each, turn, spans[key], (place, len(turns))))
    return rows


def _message(
    scored: Scored, turn: Row, span: tuple[int, int] | None, part: tuple[int, int]
) -> dict[str, Any]:
    """A row of `MESSAGES`, of one of the turns that are replaced: `part` says which one, of how many."""
    _, intervention, recipient, cost = scored.candidate
    place, parts = part
    return {
        **{column: turn[column] for column in ("episode_id", "turn_index", "group_id", "role", "step")},
        "op": str(intervention.op),
        "alternative": intervention.alternative if intervention.op == Op.RESAMPLE else 0,
        "recipient": None if recipient is None else recipient["turn_index"],
        "reader": scored.reader,
        "select_probability": scored.probability,
        "is_chosen": scored.is_chosen,
        "tokens": share_of(cost, place, parts),
        "spread": scored.spread,
        "influence": scored.influence / parts,
        "cheap": scored.cheap / parts,
        "first_token": None if span is None else span[0],
        "end_token": None if span is None else span[1],
    }


def _tasks(job: Job) -> list[dict[str, Any]]:
    rows = job.tasks.read_part(job.index, ["task_id", "split", "inputs"]).to_pylist()
    return [{**row, "inputs": json.loads(row["inputs"])} for row in rows]


async def _play_episode(
    player: Player,
    slots: asyncio.Semaphore,
    task: Mapping[str, Any],
    rows: Sequence[Row],
    choices: Sequence[Choice],
    choosing: Choosing,
) -> Outcomes:
    async def play(base: BaseEpisode) -> Played:
        async with slots:
            first = rows[0]
            return await player.play(
                task, iteration=first["iteration"], sample=first["sample"], block=first["block"], base=base
            )

    plain, row = await play(BaseEpisode.of(rows)), intervention_row(rows[0])
    as_it_is = _played(row, plain, rows)
    same = as_it_is.interventions[0]["first_difference"] is None and len(plain.turns) == len(rows)

    async def play_one(choice: Choice) -> Outcomes:
        skipped = None if same else NOT_THE_SAME
        if choice.intervention.op == Op.SHAPLEY:
            return await play_game(play, rows, choice, choosing, skipped)
        row = intervention_row(choice.turn, choice)
        if skipped is not None:
            return Outcomes([{**row, "skipped": skipped}])
        try:
            return _played(row, await play(counterfactual(rows, choice)), rows)
        except WorkflowError as error:  # its only recipient is not asked at all
            return Outcomes([{**row, "skipped": str(error)}])

    return merged([as_it_is, *await asyncio.gather(*map(play_one, choices))])


def _played(row: dict[str, Any], played: Played, rows: Sequence[Row]) -> Outcomes:
    """What came of an intervention."""
    words = [row["op"], row["turn_index"], row["alternative"] or None, row["recipient"]]
    play = named(played, f"{row['episode_id']}#{'.'.join(str(w) for w in words if w is not None)}")
    seed = None
    if row["op"] == Op.RESAMPLE:
        target = next((t for t in play.turns if key_of(t) == key_of(row)), None)
        seed = json.loads(target["sampling"])["seed"] if target and target["sampling"] else None
    return Outcomes([{**row, **came_of(play, rows), "seed": seed}], plays=[play])


def _write(
    job: Job,
    outcomes: Outcomes,
    episodes: Mapping[str, Sequence[Row]],
    messages: Sequence[dict[str, Any]] | None,
) -> dict[str, Any]:
    """Write the tables of a part, then its receipt, and return it."""
    interventions = outcomes.interventions
    rows = {
        "turns": rows_to_table([turn for play in outcomes.plays for turn in play.turns], TURNS),
        "episodes": rows_to_table([play.episode for play in outcomes.plays], EPISODES),
        "played_interventions": rows_to_table(interventions, PLAYED_INTERVENTIONS),
    }
    if Op.SHAPLEY in job.choosing.ops:
        rows["played_coalitions"] = rows_to_table(outcomes.coalitions, PLAYED_COALITIONS)
    if messages is not None:
        rows["messages"] = rows_to_table(list(messages), MESSAGES)
    done = [row for row in interventions if row["op"] != Op.NONE]
    stored_tokens = sum(
        int(row["num_response_tokens"] or 0) for of_one in episodes.values() for row in of_one
    )
    receipt = {
        "parts": {
            name: job.sinks[name].write_part(job.index, _sorted(table)).as_dict()
            for name, table in rows.items()
        },
        "episodes": len(episodes),
        "stored_tokens": stored_tokens,
        "chosen": len(done),
        "tokens": sum(row["tokens"] or 0 for row in interventions),
        "skipped": _counted(row["skipped"] for row in done if row["skipped"] is not None),
        "failed": sum(row["status"] not in (None, Status.OK) for row in done),
        "unequal": sum(row["op"] == Op.NONE and row["first_difference"] is not None for row in interventions),
    }
    write_bytes(job.receipt_uri, json.dumps(receipt, indent=1, sort_keys=True).encode())
    return receipt


def _counted(values: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def _sorted(table: pa.Table) -> pa.Table:
    keys = ("episode_id", "turn_index", "op", "alternative", "recipient")
    return table.sort_by([(k, "ascending") for k in keys if k in table.column_names])
