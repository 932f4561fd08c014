"""Channels that compare what a unit earned with what the same unit earned in the group's other plays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, get_args

import polars as pl

from rewards.answers import refuse_unknown
from rewards.channels.base import ChannelHooks, Frames, Unit
from workflows.trajectory import TURN_KEYS
from workflows.vocabulary import Event, Status

OutcomeUnit = Literal["team", "decision", "role", "agent", "turn"]


@dataclass(frozen=True, slots=True)
class FromCredit(ChannelHooks):
    """What the method of `[credit] use` gives each turn."""

    unit: ClassVar[Unit] = "turn"

    def __call__(self, frames: Frames) -> pl.DataFrame:
        return frames.usable.drop_nulls("advantage").select(
            *TURN_KEYS, member=turn_member(), value="advantage"
        )


@dataclass(frozen=True, slots=True)
class Outcome(ChannelHooks):
    """Mean return of the unit's turns in the episode, minus the mean of that over the group's episodes.

    Every turn of the unit gets the number. A unit that no other play of the group has gets 0.

    Options:
        unit: "team" is all turns; "role"; "agent" one instance of a role, which is a spawned member or the
            role in one branch; "turn"; "decision" a reply that decided who does what: spawns name it as
            `decided_by`, or replies in two or more branches read it. What a decision earned is what the team
            did.
    """

    unit: OutcomeUnit = "team"

    def __post_init__(self) -> None:
        refuse_unknown("unit", self.unit, get_args(OutcomeUnit))

    def __call__(self, frames: Frames) -> pl.DataFrame:
        turns = with_agents(frames)
        if self.unit == "decision":
            team = frames.episodes.select("episode_id", "team")
            turns = turns.join(decisions(frames), on=TURN_KEYS, how="semi", maintain_order="left")
            turns = turns.join(team, on="episode_id", maintain_order="left").with_columns(
                pl.col("team").alias("return")
            )
        keys, member = _OF_UNIT[self.unit]
        cell = ("group_id", "episode_id", *keys)
        return (
            turns.with_columns(_own=pl.col("return").mean().over(cell))
            .with_columns(_first=pl.struct(cell).is_first_distinct())
            .with_columns(_usual=pl.col("_own").filter(pl.col("_first")).mean().over("group_id", *keys))
            .select(*TURN_KEYS, member=member(), value=pl.col("_own") - pl.col("_usual"))
        )


@dataclass(frozen=True, slots=True)
class Siblings(ChannelHooks):
    """Leave-one-out among plays that were at the same point: team return minus the mean of the others'.

    Others are the group's plays in which the role was asked exactly the same (`context_hash`) at the same
    step and round; a reply without such a sibling gets 0. Unbiased, for the contexts are equal and the
    replies are samples of one policy. Source: sibling leave-one-out of C3, arXiv:2603.06859.
    """

    unit: ClassVar[Unit] = "message"

    def __call__(self, frames: Frames) -> pl.DataFrame:
        place = ("group_id", "role", "step", "round", "context_hash")
        turns = frames.usable.join(
            frames.episodes.select("episode_id", "team"), on="episode_id", maintain_order="left"
        )
        plays = turns.unique([*place, "episode_id"], keep="first", maintain_order=True)
        plays = plays.group_by(place, maintain_order=True).agg(_sum=pl.col("team").sum(), _plays=pl.len())
        others = (pl.col("_sum") - pl.col("team")) / (pl.col("_plays") - 1)
        value = pl.when(pl.col("_plays") > 1).then(pl.col("team") - others).otherwise(0.0)
        return turns.join(plays, on=place, how="left", maintain_order="left", nulls_equal=True).select(
            *TURN_KEYS, member=turn_member(), value=value
        )


@dataclass(frozen=True, slots=True)
class ToolCalls(ChannelHooks):
    """To the reply that asked for a call of a tool: 1 where the tool took it, 0 where it refused, minus the
    mean of that over the group's calls of the same tool.

    Each call is a member of its own. A call that failed through no doing of the policy has no value, and a
    call that no reply asked for goes to nobody.
    """

    unit: ClassVar[Unit] = "tool_call"

    def __call__(self, frames: Frames) -> pl.DataFrame:
        judged = pl.col("status").is_in([str(Status.OK), str(Status.TOOL_ERROR)])
        calls = frames.turns.filter((pl.col("event") == str(Event.TOOL)) & judged)
        took = (pl.col("status") == str(Status.OK)).cast(pl.Float64)
        calls = calls.with_columns(_took=took)
        calls = calls.with_columns(value=pl.col("_took") - pl.col("_took").mean().over("group_id", "tool"))
        rows = []
        asked_by = _requesters(frames.turns)
        for episode_id, index, value in calls.select(*TURN_KEYS, "value").iter_rows():
            for reply in asked_by.get((episode_id, index), ()):
                rows.append((episode_id, reply, f"tool_call {index}", value, index))
        columns = ("episode_id", "turn_index", "member", "value", "about")
        return pl.DataFrame(rows, schema={c: _TYPES[c] for c in columns}, orient="row")


_TYPES: Final[Mapping[str, Any]] = {
    **{"episode_id": pl.String, "turn_index": pl.Int32, "member": pl.String, "value": pl.Float64},
    "about": pl.Int32,
}


def turn_member() -> pl.Expr:
    return pl.format("turn {}", pl.col("turn_index"))


def with_agents(frames: Frames) -> pl.DataFrame:
    """The usable turns with `agent`: the spawned member that spoke, or else the role in its branch."""
    of_turn = frames.turns.select(*TURN_KEYS, "instance")
    branch = (
        pl.when(pl.col("branch").fill_null("") != "").then(pl.format("/{}", "branch")).otherwise(pl.lit(""))
    )
    agent = pl.coalesce("instance", pl.concat_str(pl.col("role").fill_null(""), branch))
    return frames.usable.join(of_turn, on=TURN_KEYS, how="left", maintain_order="left").with_columns(
        agent=agent
    )


_OF_UNIT: Final[Mapping[str, tuple[tuple[str, ...], Any]]] = {
    "team": ((), lambda: pl.lit("team")),
    "role": (("role",), lambda: pl.col("role").fill_null("")),
    "agent": (("agent",), lambda: pl.col("agent")),
    "turn": (("step", "round", "branch"), turn_member),
    "decision": (("step", "round", "branch"), turn_member),
}
"""By unit: what tells its members apart within an episode, and a member's name."""


def decisions(frames: Frames) -> pl.DataFrame:
    """The keys of the replies that decided who does what."""
    turns = frames.turns
    named = turns.drop_nulls("decided_by").select("episode_id", turn_index="decided_by")
    reads = turns.filter(pl.col("branch").fill_null("") != "").select("episode_id", "branch", "parents")
    reads = reads.explode("parents").drop_nulls("parents").rename({"parents": "turn_index"})
    origin = turns.select(*TURN_KEYS, _from="branch")
    # a reply of the trunk, or of another branch, that two branches read
    split = (
        reads.join(origin, on=TURN_KEYS, maintain_order="left")
        .filter(pl.col("_from").fill_null("") != pl.col("branch"))
        .group_by(*TURN_KEYS, maintain_order=True)
        .agg(pl.col("branch").n_unique().alias("_branches"))
        .filter(pl.col("_branches") > 1)
        .select(TURN_KEYS)
    )
    return pl.concat([named.cast({"turn_index": pl.Int32}), split.cast({"turn_index": pl.Int32})]).unique(
        maintain_order=True
    )


def _requesters(turns: pl.DataFrame) -> dict[tuple[str, int], list[int]]:
    """For each call of a tool, the replies that asked for it: its parents, through notes of the workflow."""
    rows = turns.select(*TURN_KEYS, "event", "parents").rows()
    at = {(episode, index): (event, parents or ()) for episode, index, event, parents in rows}
    found = {}
    for (episode, index), (event, parents) in at.items():
        if event != Event.TOOL:
            continue
        replies, ahead, seen = set[int](), list(parents), set[int]()
        while ahead:
            parent = ahead.pop()
            if parent in seen or (episode, parent) not in at:
                continue
            seen.add(parent)
            kind, before = at[episode, parent]
            if kind == Event.LLM:
                replies.add(parent)
            elif kind == Event.CONTROL:
                ahead += before
        found[episode, index] = sorted(replies)
    return found
