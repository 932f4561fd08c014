"""Independent answers that vote: tasks, turns, episodes → votes, and what a majority is worth; no GPU.

It is the control that a team has to beat: as many tokens, spent on answers that know nothing of each other.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

import pyarrow as pa

from rewards.ballots import BallotBox
from rewards.preferences.best_of import majority
from rewards.scoring.joined import EPISODES_SEEN, TASKS_SEEN, TURNS_SEEN
from stages.base import Account, Context, StageResult
from stages.lease import Lease
from stages.parts import map_parts
from stages.tables.parquet import TableRef, TableSink, aligned_parts
from workflows.trajectory import EPISODES, VOTES

DRAWS: Final = 64  # orders in which answers are drawn where not all of them vote
_EPISODES: Final = pa.schema(
    [*EPISODES_SEEN, EPISODES.field("sample"), EPISODES.field("num_response_tokens")]
)


@dataclass(frozen=True, slots=True)
class VoteStage:
    """Write the ballot of every play."""

    box: BallotBox

    name: str = "vote"
    folder: str = "votes"
    lease: Lease = "none"

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {"tasks": TASKS_SEEN, "turns": TURNS_SEEN, "episodes": _EPISODES}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {"votes": VOTES}

    @property
    def places(self) -> dict[str, str]:
        return {"votes": ""}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        tables = {name: inputs[name] for name in self.inputs}
        indices = aligned_parts(tables)
        context.progress.start("vote", len(indices), "part")
        receipts = map_parts(
            vote_part,
            indices,
            on_done=lambda _: context.progress.advance(),
            tables=tables,
            sink=outputs["votes"],
            box=self.box,
        )
        context.progress.finish()
        rows = sum(r["part"].rows for r in receipts)
        account = Account("episodes to votes", "episode", inputs["episodes"].rows, rows)
        blank = float(sum(r["blank"] for r in receipts))
        return StageResult({"votes": [r["part"] for r in receipts]}, [account], {"episodes_blank": blank})


def vote_part(index: int, tables: Mapping[str, TableRef], sink: TableSink, box: BallotBox) -> dict[str, Any]:
    """Write the ballots of part `index`; the receipt has its part and how many plays cast none."""
    tasks, turns, episodes = (
        tables[name].read_part(index, schema.names)
        for name, schema in (("tasks", TASKS_SEEN), ("turns", TURNS_SEEN), ("episodes", _EPISODES))
    )
    votes = votes_table(episodes, box.ballots(tasks, turns, episodes))
    return {"part": sink.write_part(index, votes), "blank": votes["ballot"].null_count}


def votes_table(episodes: pa.Table, ballots: Mapping[str, str]) -> pa.Table:
    """One row of `VOTES` for every episode, sorted by id."""
    rows = [
        {
            "task_id": episode["task_id"],
            "sample": episode["sample"],
            "episode_id": episode["episode_id"],
            "ballot": ballots.get(episode["episode_id"]),
            "num_response_tokens": episode["num_response_tokens"] or 0,
        }
        for episode in sorted(episodes.to_pylist(), key=lambda e: e["episode_id"])
    ]
    return pa.Table.from_pylist(rows, schema=VOTES)


@dataclass(frozen=True, slots=True)
class Vote:
    """One independent answer: its ballot (None: it casts none), what it is worth, and its tokens."""

    ballot: str | None
    value: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Tally:
    """A majority vote on one task. `value`, `answers` and `tokens` are means over the draws."""

    value: float
    answers: float
    tokens: float
    short: bool  # whether there were fewer answers than the budget pays for


def votes_by_task(votes: pa.Table, evaluation: pa.Table, metric: str) -> dict[str, list[Vote]]:
    """The answers to each task, by its id, in the order of their samples. A failed play is worth 0."""
    worth = {
        row["episode_id"]: next((v["value"] for v in row["values"] if v["name"] == metric), None) or 0.0
        for row in evaluation.to_pylist()
    }
    by_task: dict[str, list[Vote]] = {}
    for row in sorted(votes.to_pylist(), key=lambda r: (r["task_id"], r["sample"])):
        vote = Vote(row["ballot"], worth.get(row["episode_id"], 0.0), row["num_response_tokens"])
        by_task.setdefault(row["task_id"], []).append(vote)
    return by_task


def tally(votes: Sequence[Vote], tokens: float | None = None, seed: str = "") -> Tally:
    """What a majority of independent answers to one task is worth, in expectation.

    Ballots that tie are drawn from evenly. Without a ballot the vote is worth 0.

    Args:
        votes: all answers that were sampled.
        tokens: the budget. Answers are drawn in random order for as long as they fit into it, and one is
            drawn in any case; the result is the mean over `DRAWS` orders. None: all answers vote.
        seed: of the orders, such as the task's id: equal seeds give equal results.

    Raises:
        ValueError: no votes.
    """
    if not votes:
        raise ValueError("a vote needs at least one answer")
    total = sum(vote.tokens for vote in votes)
    if tokens is None or tokens >= total:
        short = tokens is not None and tokens - total >= total / len(votes)  # one more would have fitted
        return Tally(majority(votes), float(len(votes)), float(total), short)
    order = random.Random(hashlib.blake2b(seed.encode(), digest_size=8).digest())
    drawn = [_within(order.sample(list(votes), len(votes)), tokens) for _ in range(DRAWS)]
    return Tally(
        fmean(majority(some) for some in drawn),
        fmean(len(some) for some in drawn),
        fmean(sum(vote.tokens for vote in some) for some in drawn),
        short=False,
    )


def _within(votes: Sequence[Vote], tokens: float) -> list[Vote]:
    """The first of the votes that fit into a budget; at least one."""
    taken, spent = [votes[0]], votes[0].tokens
    for vote in votes[1:]:
        if spent + vote.tokens > tokens:
            break
        taken.append(vote)
        spent += vote.tokens
    return taken
