"""Channels whose values other stages found: what messages, and decisions to stop, were worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from rewards.answers import refuse_unknown
from rewards.channels.base import ChannelHooks, Frames, Unit
from rewards.channels.units import with_agents
from workflows.trajectory import TURN_KEYS
from workflows.vocabulary import Op

_OPS = tuple(str(op) for op in Op if op not in (Op.NONE, Op.PARAPHRASE, Op.SHAPLEY))


@dataclass(frozen=True, slots=True)
class Message(ChannelHooks):
    """What a message was worth against its replacement, doubly robust, on the tokens that readers got of it.

    Read from the table `message_credit` of the counterfactual stage. With `resample` it is a policy gradient
    without bias; other ops compare with what the policy would never say.

    Options:
        op: whose effects: one of `[counterfactuals] ops`.
    """

    unit: ClassVar[Unit] = "message"
    tables: ClassVar[tuple[str, ...]] = ("message_credit",)
    has_spans: ClassVar[bool] = True

    op: str = "resample"

    def __post_init__(self) -> None:
        refuse_unknown("op", self.op, _OPS)

    @property
    def needs_ops(self) -> tuple[str, ...]:
        return (self.op,)

    def __call__(self, frames: Frames) -> pl.DataFrame:
        worth = frames.tables["message_credit"].filter(pl.col("op") == self.op)
        return on_senders(frames, worth).select(
            "episode_id",
            turn_index="sender",
            member=pl.format("message {}", pl.col("turn_index")),
            value="credit",
            first_token="first_token",
            end_token="end_token",
            about="about",
        )


def on_senders(frames: Frames, worth: pl.DataFrame) -> pl.DataFrame:
    """Rows of `message_credit` with `sender`, the reply whose tokens they are: of an act, the one that
    decided it, and then `about` is the act."""
    of_turns = frames.turns.select(*TURN_KEYS, "act", "decided_by")
    joined = worth.join(of_turns, on=TURN_KEYS, how="left", maintain_order="left")
    is_act = pl.col("act").is_not_null() & pl.col("decided_by").is_not_null()
    return joined.with_columns(
        sender=pl.when(is_act).then("decided_by").otherwise("turn_index"),
        about=pl.when(is_act).then("turn_index"),
    )


@dataclass(frozen=True, slots=True)
class ShapleyReplayed(ChannelHooks):
    """A reply's Shapley value among all that the reply after it reads, less what such a reply usually gets.

    By replays of the reply that reads them, with sets of its inputs nulled (`op = "shapley"`), and so for any
    reward. The values of an episode add up to its return less that with nothing read. What is taken off is
    the mean of these sums over the group's episodes, an equal part for each input: where a play with nothing
    read earns the same in all of them, what is left adds up to the team's credit. On the tokens that readers
    got of the reply.
    """

    unit: ClassVar[Unit] = "message"
    tables: ClassVar[tuple[str, ...]] = ("message_credit",)
    has_spans: ClassVar[bool] = True

    @property
    def needs_ops(self) -> tuple[str, ...]:
        return (str(Op.SHAPLEY),)

    def __call__(self, frames: Frames) -> pl.DataFrame:
        values = frames.tables["message_credit"].filter(pl.col("op") == str(Op.SHAPLEY))
        groups = frames.turns.select(*TURN_KEYS, "group_id")
        values = values.join(groups, on=TURN_KEYS, maintain_order="left")
        total = pl.col("credit").sum().over("episode_id")
        first = pl.col("episode_id").is_first_distinct()
        values = values.with_columns(_total=total, _first=first, _count=pl.len().over("episode_id"))
        usual = pl.col("_total").filter(pl.col("_first")).mean().over("group_id")
        return values.select(
            *TURN_KEYS,
            member=pl.format("message {}", pl.col("turn_index")),
            value=pl.col("credit") - usual / pl.col("_count"),
            first_token="first_token",
            end_token="end_token",
        )


@dataclass(frozen=True, slots=True)
class Difference(ChannelHooks):
    """What the team earned beyond what it earns without one agent: the sum of what its messages were worth
    against nothing (`op = "drop"`), on all turns of the agent.

    Off the policy's own distribution: shaping beside other channels, not an advantage by itself.
    Source: difference rewards, Wolpert and Tumer 2002.
    """

    unit: ClassVar[Unit] = "agent"
    tables: ClassVar[tuple[str, ...]] = ("message_credit",)

    @property
    def needs_ops(self) -> tuple[str, ...]:
        return (str(Op.DROP),)

    def __call__(self, frames: Frames) -> pl.DataFrame:
        worth = frames.tables["message_credit"].filter(pl.col("op") == str(Op.DROP))
        turns = with_agents(frames).select(*TURN_KEYS, "agent")
        joined = turns.join(
            worth.select(*TURN_KEYS, "credit"), on=TURN_KEYS, how="left", maintain_order="left"
        )
        total = pl.col("credit").sum().over("episode_id", "agent")
        known = pl.col("credit").is_not_null().any().over("episode_id", "agent")
        return joined.filter(known).select(*TURN_KEYS, member="agent", value=total.filter(known))


@dataclass(frozen=True, slots=True)
class Stop(ChannelHooks):
    """What a decision to stop, or to go on, was worth against what the policy does there on average.

    With u the utility of a stop, c that of going on and p the probability of a stop (table `stops`):
    (1 - p) (u - c) for a stop, -p (u - c) for going on. Decisions that were not the policy's, or of which one
    side is not known, have no value.
    """

    unit: ClassVar[Unit] = "decision"
    tables: ClassVar[tuple[str, ...]] = ("stops",)

    def __call__(self, frames: Frames) -> pl.DataFrame:
        known = pl.col("excluded").is_null() & pl.col("turn_index").is_not_null()
        rows = frames.tables["stops"].filter(known).drop_nulls(["advantage", "stop_logprob"])
        stop = pl.col("stop_logprob").exp()
        share = pl.when("stop_taken").then(1 - stop).otherwise(-stop)
        return rows.select(
            *TURN_KEYS, member=pl.format("turn {}", pl.col("turn_index")), value=share * pl.col("advantage")
        )
