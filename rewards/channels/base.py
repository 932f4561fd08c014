"""What a channel of credit is: numbers for units of a team's work, each on the turns and tokens that made it.

    channel: frames of whole groups → rows (turn, member, value, span of tokens, what it is about)

A channel says what one unit earned against what it could be expected to, so that its values are centred: what
everybody earns anyway teaches nothing. Channels are pure, and see whole groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, Protocol

import polars as pl
import pyarrow as pa

from workflows.credit_tables import MESSAGE_CREDIT
from workflows.stop_tables import STOPS
from workflows.trajectory import TURNS

Unit = Literal["team", "decision", "role", "agent", "turn", "message", "tool_call", "token"]
"""From coarse to fine: the episode; one decision of who does what; all turns of a role; one instance of a
role; one reply; what others read of it; one call of a tool; a token."""

ROWS: Final = {
    "episode_id": pl.String,
    "turn_index": pl.Int32,
    "member": pl.String,
    "value": pl.Float64,
    "first_token": pl.Int32,
    "end_token": pl.Int32,
    "about": pl.Int32,
}
"""The columns of a channel's rows; the last three may be left out."""

_TURN_COLUMNS: Final = (
    *("episode_id", "turn_index", "group_id", "step", "round", "branch", "parents", "event", "act", "role"),
    *("instance", "decided_by", "status", "tool", "num_prompt_tokens", "num_response_tokens"),
)
TURNS_OF_CHANNELS: Final = pa.schema([TURNS.field(c) for c in _TURN_COLUMNS])
LOGPROBS: Final = pa.schema([TURNS.field(c) for c in ("episode_id", "turn_index", "behaviour_logprobs")])
TABLES: Final[Mapping[str, pa.Schema]] = {"message_credit": MESSAGE_CREDIT, "stops": STOPS}
"""The tables that channels may need beside those that every credit has."""


PARTS: Final = {"episode_id": pl.String, "turn_index": pl.Int32, "name": pl.String, "value": pl.Float64}


@dataclass(frozen=True)
class Frames:
    """What channels see of whole groups.

    - `usable`: the turns that have a reward, sorted by key: what a credit method gets, with `return` and
      `advantage` as the credit method gave them.
    - `turns`: all turns of the same episodes, tools and notes too, with `TURNS_OF_CHANNELS`, sorted by key.
    - `parts`: of each usable turn, the parts of its reward: keys, `name`, `value`.
    - `tables`: those of `TABLES` that a channel needs, by name.
    - `logprobs`: behaviour logprobs of the usable turns, where a channel needs them.
    """

    usable: pl.DataFrame
    turns: pl.DataFrame
    parts: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=PARTS))
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    logprobs: pl.DataFrame | None = None

    @property
    def episodes(self) -> pl.DataFrame:
        """Of each episode with a usable turn: `team`, its mean return, and `team_credit`, that less the mean
        of its group."""
        return (
            self.usable.sort("episode_id", maintain_order=True)
            .group_by("group_id", "episode_id", maintain_order=True)
            .agg(team=pl.col("return").mean())
            .with_columns(team_credit=pl.col("team") - pl.col("team").mean().over("group_id"))
        )


class Channel(Protocol):
    """One channel; a class whose attributes are its options."""

    @property
    def unit(self) -> Unit: ...

    def __call__(self, frames: Frames) -> pl.DataFrame:
        """The rows of the channel: the columns of `ROWS`."""


class ChannelHooks:
    """What a channel may say of itself; the defaults of channels that do not."""

    __slots__ = ()

    tables: ClassVar[tuple[str, ...]] = ()
    """Names of `TABLES` that the channel reads."""
    needs_logprobs: ClassVar[bool] = False
    needs_parts: ClassVar[bool] = False
    has_spans: ClassVar[bool] = False
    """Whether its rows may name spans of tokens."""

    @property
    def needs_ops(self) -> tuple[str, ...]:
        """Interventions that must be among those that are replayed."""
        return ()


@dataclass(frozen=True, slots=True)
class WeightedChannel:
    """One channel of a run: its name in tables and metrics, and its weight in the advantage."""

    name: str
    weight: float
    channel: Channel


Mix = Sequence[WeightedChannel]
