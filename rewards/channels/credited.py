"""The credit table of turns whose advantages are a mix of channels, and the table of the channels. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl
import pyarrow as pa

from rewards.base import Credit
from rewards.channels.base import PARTS, TURNS_OF_CHANNELS, ChannelHooks, Frames, Mix
from rewards.channels.mix import Mixed, channel_sums, mixed
from rewards.credit.assign import Credited, Remixed, Tables, credit_turns
from rewards.credit.silent import LeaveOutSilent
from rewards.scoring.key_order import by_key
from workflows.credit_tables import CREDIT_CHANNELS
from workflows.hooks import hooks_of
from workflows.trajectory import TURN_KEYS


@dataclass(frozen=True, slots=True)
class InChannels:
    """The credit of a part, and what it is made of."""

    credited: Credited
    channels: pa.Table  # CREDIT_CHANNELS
    gaps: dict[str, tuple[float, float, int]] = field(default_factory=dict)  # see `mix.Mixed`


def credit_in_channels(
    turns: pa.Table,
    episodes: pa.Table,
    rewards: pa.Table,
    method: Credit,
    mix: Mix,
    tables: Mapping[str, pa.Table],
    leave_out: LeaveOutSilent | None = None,
    *,
    mask_truncated: bool = False,
    greedy: Tables | None = None,
) -> InChannels:
    """`credit_turns` with the advantage that is the weighted sum of `mix`.

    Args:
        turns: with `TURNS_OF_CHANNELS` beside what credit sees, and `behaviour_logprobs` where a channel
            needs them.
        tables: those that channels need, by name.

    Raises:
        SchemaError: see `credit_turns` and `mix.mixed`.
    """
    made: list[Mixed] = []
    hooks = [hooks_of(weighted.channel, ChannelHooks) for weighted in mix]
    groups = pl.DataFrame(episodes.select(["episode_id", "group_id"]))
    every = pl.DataFrame(turns.select([c for c in TURNS_OF_CHANNELS.names if c != "group_id"]))
    every = by_key(every.join(groups, on="episode_id", maintain_order="left"))
    named = {name: pl.DataFrame(table) for name, table in tables.items()}

    def remix(usable: pl.DataFrame) -> Remixed:
        keys = usable.select(TURN_KEYS)
        logprobs = None
        if any(h.needs_logprobs for h in hooks):
            columns = pl.DataFrame(turns.select([*TURN_KEYS, "behaviour_logprobs"]))
            logprobs = keys.join(columns, on=TURN_KEYS, maintain_order="left")
        parts = _parts(rewards, keys) if any(h.needs_parts for h in hooks) else pl.DataFrame(schema=PARTS)
        played = usable["episode_id"].unique(maintain_order=True).to_list()
        of_played = every.filter(pl.col("episode_id").is_in(played))
        at_hand = {name: table.filter(pl.col("episode_id").is_in(played)) for name, table in named.items()}
        made.append(mixed(mix, Frames(usable, of_played, parts, at_hand, logprobs)))
        return Remixed(made[0].advantage, channel_sums(made[0].rows, keys)["channels"])

    credited = credit_turns(
        *(turns, episodes, rewards, method, leave_out),
        mask_truncated=mask_truncated,
        greedy=greedy,
        remix=remix,
    )
    if not made:
        return InChannels(credited, CREDIT_CHANNELS.empty_table())
    return InChannels(credited, made[0].table, made[0].gaps)


def _parts(rewards: pa.Table, keys: pl.DataFrame) -> pl.DataFrame:
    """The parts of the usable turns' rewards, one row each."""
    listed = pl.DataFrame(rewards.select([*TURN_KEYS, "reward_parts"]))
    listed = keys.join(listed, on=TURN_KEYS, maintain_order="left").explode("reward_parts")
    listed = listed.drop_nulls("reward_parts")
    return listed.unnest("reward_parts").select(list(PARTS)).cast(PARTS)  # type: ignore[arg-type]
