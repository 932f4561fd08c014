"""Numbers and reasons of a part's turns as the rewards table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from rewards.part import Flags, Numbers, Rows
from workflows.trajectory import REWARDS
from workflows.vocabulary import Event, Status

NOT_AN_LLM_TURN: Final = "not an llm turn"
FROZEN: Final = "model is frozen"
NO_VALUES: Final = "no reward values this turn"


@dataclass(frozen=True, slots=True)
class RewardPart:
    """One reward's numbers for all turns of the table, before its weight; none where not `given`."""

    name: str
    weight: float
    values: Numbers
    given: Flags


@dataclass(slots=True)
class Reasons:
    """Why turns have no reward: for each turn a position in `texts`, -1 for none."""

    code: npt.NDArray[np.int32]
    texts: dict[str, int] = field(default_factory=dict)

    def add(self, text: str, where: Flags) -> None:
        """Give these turns a reason, in place of what they had."""
        self.code[where] = self.texts.setdefault(text, len(self.texts))

    def add_whole(self, of_episode: Mapping[int, str], episode: Rows) -> None:
        """Give all turns of some episodes a reason, each episode its own."""
        if not of_episode:
            return
        codes = np.full(int(episode[-1]) + 1, -1, np.int32)
        for position, text in of_episode.items():
            codes[position] = self.texts.setdefault(text, len(self.texts))
        of_turns = codes[episode]
        self.code = np.where(of_turns < 0, self.code, of_turns)

    def to_arrow(self) -> pa.Array:
        return pa.array(list(self.texts), pa.string()).take(pa.array(self.code, mask=self.code < 0))


def reasons_of_turns(turns: pl.DataFrame, exclude_truncated: bool) -> Reasons:
    """Why turns get no reward whatever their episode did."""
    reasons = Reasons(np.full(turns.height, -1, np.int32))
    conditions = turns.select(
        cut=(pl.col("status").eq_missing(Status.TRUNCATED)) & exclude_truncated,
        called_off=pl.col("status").eq_missing(Status.CALLED_OFF),
        frozen=~pl.col("trainable").fill_null(False),
        other=pl.col("event").ne_missing(Event.LLM),
    )
    for text, name in (
        (Status.TRUNCATED, "cut"),
        (Status.CALLED_OFF, "called_off"),
        (FROZEN, "frozen"),
        (NOT_AN_LLM_TURN, "other"),
    ):  # the last counts
        reasons.add(text, conditions[name].to_numpy())
    return reasons


def rewards_table(keys: pa.Table, parts: Sequence[RewardPart], reasons: Reasons) -> pa.Table:
    """One row of `REWARDS` for each of `keys`: the weighted sum of the parts, or why there is none.

    A turn without a reason whose parts of some weight are all null gets the reason `NO_VALUES`. A turn of a
    frozen model keeps its parts where a reward measures it (`rewards.team_answers.BranchRight` does), but
    never has a reward.
    """
    has_parts = reasons.code < 0
    total, weighted = np.zeros(len(has_parts)), np.zeros(len(has_parts), np.bool_)
    for part in parts:
        if part.weight:
            counts = part.given & has_parts
            total[counts] += part.weight * part.values[counts]  # in this order: the sum is the same bits
            weighted |= counts
    reasons.add(NO_VALUES, has_parts & ~weighted)
    columns = {
        "episode_id": keys["episode_id"],
        "turn_index": keys["turn_index"],
        "reward": pa.array(total, mask=~weighted),
        "reward_parts": _named(parts, has_parts | _measured(parts, reasons)),
        "no_reward_reason": reasons.to_arrow(),
    }
    return pa.table(columns).cast(REWARDS)


def _measured(parts: Sequence[RewardPart], reasons: Reasons) -> Flags:
    """Turns of frozen models that a reward gave a number."""
    frozen = reasons.code == reasons.texts.get(FROZEN, -2)
    return frozen & np.any([part.given for part in parts], axis=0)


def _named(parts: Sequence[RewardPart], has_parts: Flags) -> pa.Array:
    """`reward_parts`: all parts by name, for each turn that has them."""
    where, width = np.flatnonzero(has_parts), len(parts)
    values = np.stack([part.values[where] for part in parts], axis=1).ravel()
    given = np.stack([part.given[where] for part in parts], axis=1).ravel()
    names = pa.array([part.name for part in parts]).take(pa.array(np.tile(np.arange(width), len(where))))
    offsets = np.concatenate([[0], np.cumsum(has_parts * width)]).astype(np.int32)
    structs = pa.StructArray.from_arrays([names, pa.array(values, mask=~given)], ["name", "value"])
    return pa.ListArray.from_arrays(pa.array(offsets), structs)
