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

from stages.players.choices import Choice, Choosing, Row, chosen, counterfactual, episodes_of, key_of
from stages.players.selection import Scored, selected
from stages.players.shards import read_receipt
from stages.players.spans import Decode, message_span
from stages.tables.parquet import TableRef, TableSink, write_bytes
from workflows.credit_tables import MESSAGES
from workflows.errors import WorkflowError
from workflows.interventions import PLAYED_INTERVENTIONS
from workflows.playing.base_episode import BASE_COLUMNS, BaseEpisode
from workflows.playing.play import Player
from workflows.playing.record import Played
from workflows.trajectory import EPISODES, TURNS, rows_to_table
from workflows.vocabulary import Op, Status

TURNS_READ: Final = (
    *(*BASE_COLUMNS, "group_id", "turn_index", "parents", "act", "act_detail", "decided_by"),
)
_SAME: Final = (
    *("status", "context_hash", "response_text", "parsed", "tool", "tool_request", "tool_result"),
    "response_token_ids",
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
            _play_episode(player, slots, tasks[stored[e][0]["task_id"]], stored[e], of_episode)
            for e, of_episode in by_episode.items()
        )
    )
    outcomes = [pair for pairs in plays for pair in pairs]
    return await asyncio.to_thread(_write, job, outcomes, stored, messages)


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
        turn = each.candidate[0]
        key = (turn["episode_id"], turn["turn_index"])
        if key not in spans:
            acts = [row for row in episodes[key[0]] if row["act"] is not None and row["decided_by"] == key[1]]
            spans[key] = message_span(turn, acts, decode)
        rows.append(_message(each, spans[key]))
    return rows


def _message(scored: Scored, span: tuple[int, int] | None) -> dict[str, Any]:
    """A row of `MESSAGES`."""
    turn, intervention, recipient, cost = scored.candidate
    return {
        **{column: turn[column] for column in ("episode_id", "turn_index", "group_id", "role", "step")},
        "op": str(intervention.op),
        "alternative": intervention.alternative if intervention.op == Op.RESAMPLE else 0,
        "recipient": None if recipient is None else recipient["turn_index"],
        "reader": scored.reader,
        "select_probability": scored.probability,
        "is_chosen": scored.is_chosen,
        "tokens": cost,
        "spread": scored.spread,
        "influence": scored.influence,
        "cheap": scored.cheap,
        "first_token": None if span is None else span[0],
        "end_token": None if span is None else span[1],
    }


def _tasks(job: Job) -> list[dict[str, Any]]:
    rows = job.tasks.read_part(job.index, ["task_id", "split", "inputs"]).to_pylist()
    return [{**row, "inputs": json.loads(row["inputs"])} for row in rows]


Outcome = tuple[dict[str, Any], Played | None]
"""A row of `played_interventions`, and the play, if there was any."""


async def _play_episode(
    player: Player,
    slots: asyncio.Semaphore,
    task: Mapping[str, Any],
    rows: Sequence[Row],
    choices: Sequence[Choice],
) -> list[Outcome]:
    async def play(base: BaseEpisode) -> Played:
        async with slots:
            first = rows[0]
            return await player.play(
                task, iteration=first["iteration"], sample=first["sample"], block=first["block"], base=base
            )

    plain = await play(BaseEpisode.of(rows))
    outcomes = [_outcome(_row(rows[0], None), plain, rows)]
    same = outcomes[0][0]["first_difference"] is None and len(plain.turns) == len(rows)

    async def play_one(choice: Choice) -> Outcome:
        row = _row(choice.turn, choice)
        if not same:
            return {**row, "skipped": NOT_THE_SAME}, None
        try:
            return _outcome(row, await play(counterfactual(rows, choice)), rows)
        except WorkflowError as error:  # its only recipient is not asked at all
            return {**row, "skipped": str(error)}, None

    return outcomes + list(await asyncio.gather(*map(play_one, choices)))


def _row(turn: Row, choice: Choice | None) -> dict[str, Any]:
    """The columns that say what is done. Without a choice, it is the replay of the episode as it is."""
    row: dict[str, Any] = dict.fromkeys(PLAYED_INTERVENTIONS.names)
    of_turn = ("iteration", "block", "task_id", "group_id", "episode_id")
    row.update({name: turn[name] for name in of_turn}, op=str(Op.NONE), alternative=0, select_probability=1.0)
    if choice is None:
        return row
    intervention = choice.intervention
    row.update({c: turn[c] for c in ("turn_index", "step", "round", "branch", "role", "model_id")})
    row.update(
        op=str(intervention.op),
        alternative=intervention.alternative if intervention.op == Op.RESAMPLE else 0,
        recipient=None if choice.recipient is None else choice.recipient["turn_index"],
        delivered=intervention.text,
        select_probability=choice.probability,
    )
    return row


def _outcome(row: dict[str, Any], played: Played, rows: Sequence[Row]) -> Outcome:
    """What came of it. The play gets an id, and a group, of its own: it is compared with nothing but the
    stored episode."""
    words = [row["op"], row["turn_index"], row["alternative"] or None, row["recipient"]]
    play_id = f"{row['episode_id']}#{'.'.join(str(w) for w in words if w is not None)}"
    turns = [{**turn, "episode_id": play_id, "group_id": play_id} for turn in played.turns]
    episode = {**played.episode, "episode_id": play_id, "group_id": play_id}
    seed = None
    if row["op"] == Op.RESAMPLE:
        target = next((t for t in turns if key_of(t) == key_of(row)), None)
        seed = json.loads(target["sampling"])["seed"] if target and target["sampling"] else None
    row = {
        **row,
        "play_id": play_id,
        "seed": seed,
        "status": episode["status"],
        "first_difference": first_difference(turns, rows),
        "tokens": episode["num_response_tokens"],
    }
    return row, Played(turns, episode)


def first_difference(turns: Sequence[Row], stored: Sequence[Row]) -> int | None:
    """The `turn_index` of the first turn of a play that is not as stored; None where all are."""
    before = {key_of(row): row for row in stored}
    for turn in turns:
        then = before.get(key_of(turn))
        if then is None or any(turn[column] != then[column] for column in _SAME):
            index: int = turn["turn_index"]
            return index
    return None


def _write(
    job: Job,
    outcomes: Sequence[Outcome],
    episodes: Mapping[str, Sequence[Row]],
    messages: Sequence[dict[str, Any]] | None,
) -> dict[str, Any]:
    """Write the tables of a part, then its receipt, and return it."""
    rows = {
        "turns": rows_to_table([t for _, p in outcomes if p for t in p.turns], TURNS),
        "episodes": rows_to_table([p.episode for _, p in outcomes if p], EPISODES),
        "played_interventions": rows_to_table([row for row, _ in outcomes], PLAYED_INTERVENTIONS),
    }
    if messages is not None:
        rows["messages"] = rows_to_table(list(messages), MESSAGES)
    done = [row for row, _ in outcomes if row["op"] != Op.NONE]
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
        "tokens": sum(row["tokens"] or 0 for row, _ in outcomes),
        "skipped": _counted(row["skipped"] for row in done if row["skipped"] is not None),
        "failed": sum(row["status"] not in (None, Status.OK) for row in done),
        "unequal": sum(row["op"] == Op.NONE and row["first_difference"] is not None for row, _ in outcomes),
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
