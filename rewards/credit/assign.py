"""From rewards to the credit table: pure, one row for every turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl
import pyarrow as pa

from rewards.base import Credit
from rewards.credit.silent import SILENT, LeaveOutSilent
from workflows.errors import SchemaError
from workflows.trajectory import CREDIT, EPISODES, REWARDS, TURN_KEYS, TURNS

_IDENTITY: Final = ("iteration", "split", "task_id", "group_id", "sample", "episode_id")
_TURN_COLUMNS: Final = (*TURN_KEYS, "step", "round", "branch", "role", "model_id", "context_hash")
_REWARD_COLUMNS: Final = (*TURN_KEYS, "reward", "reward_parts", "no_reward_reason")
EPISODES_SEEN: Final = pa.schema([EPISODES.field(c) for c in _IDENTITY])
TURNS_SEEN: Final = pa.schema([TURNS.field(c) for c in _TURN_COLUMNS])
REWARDS_SEEN: Final = pa.schema([REWARDS.field(c) for c in _REWARD_COLUMNS])


def assign_credit(
    turns: pa.Table,
    episodes: pa.Table,
    rewards: pa.Table,
    method: Credit,
    leave_out: LeaveOutSilent | None = None,
) -> pa.Table:
    """Return and advantage of every turn that has a reward; one row of `CREDIT` per turn, sorted by key.

    A turn without a reward is `excluded` for the reason that it has none, and no part of any baseline:
    its group goes on with the others. Turns of silent groups are excluded where `leave_out` is given,
    after the credit, so that they count in a baseline over all groups.

    Raises:
        SchemaError: the tables do not hold the same turns, or `method` returned other turns than it
            got, or a number that is not finite.
    """
    frame = join_turns(turns, episodes, rewards)
    usable = usable_turns(frame)
    credited = _checked(method(usable), usable, method) if usable.height else _no_credit()
    silent = credited.select(TURN_KEYS).clear()
    if leave_out is not None:
        keyed = usable.join(credited.select(*TURN_KEYS, "return"), on=TURN_KEYS, maintain_order="left")
        silent = leave_out.silent(keyed, rewards, group_keys_of(method))
    table = (
        frame.select(*TURN_KEYS, pl.col("no_reward_reason").alias("excluded"))
        .join(credited, on=TURN_KEYS, how="left", maintain_order="left")
        .join(silent.with_columns(_silent=pl.lit(True)), on=TURN_KEYS, how="left", maintain_order="left")
        .with_columns(excluded=pl.when("_silent").then(pl.lit(SILENT)).otherwise("excluded"))
        .with_columns(channels=pl.lit([], dtype=pl.List(pl.Struct({"name": pl.String, "value": pl.Float64}))))
        .select(CREDIT.names)
    )
    return table.to_arrow().cast(CREDIT)


def usable_turns(frame: pl.DataFrame) -> pl.DataFrame:
    """What a credit method gets of `join_turns`: the turns that have a reward."""
    return frame.filter(pl.col("reward").is_not_null()).drop("no_reward_reason", "reward_parts")


def group_keys_of(method: Credit) -> Sequence[str]:
    """The columns by which a method compares turns; those of one task, where it does not say."""
    keys: Sequence[str] = getattr(method, "group_keys", ("group_id",))
    return keys


def join_turns(turns: pa.Table, episodes: pa.Table, rewards: pa.Table) -> pl.DataFrame:
    """Turns with their episode's identity and their reward, sorted by key.

    Raises:
        SchemaError: see `assign_credit`.
    """
    left, middle, right = (
        _frame(table, seen)
        for table, seen in ((turns, TURNS_SEEN), (episodes, EPISODES_SEEN), (rewards, REWARDS_SEEN))
    )
    for name, frame, keys in (
        ("turns", left, TURN_KEYS),
        ("episodes", middle, ("episode_id",)),
        ("rewards", right, TURN_KEYS),
    ):
        if twice := frame.filter(pl.struct(keys).is_duplicated()).height:
            raise SchemaError(f"{name} has {twice} rows whose {', '.join(keys)} another row has too")
    joined = left.join(middle, on="episode_id", how="inner").join(right, on=TURN_KEYS, how="inner")
    if not joined.height == left.height == right.height:
        raise SchemaError(
            f"turns ({left.height} rows) and rewards ({right.height}) share only {joined.height} turns of "
            f"the {middle.height} episodes; these tables are not of one rollout"
        )
    return joined.sort(TURN_KEYS)


def group_metrics(
    turns: pa.Table, episodes: pa.Table, rewards: pa.Table, credit: pa.Table, keys: Sequence[str]
) -> dict[str, int]:
    """How many groups (by `keys`) can teach: `groups`, `groups_without_signal`, `groups_of_one_episode`.

    A group without signal has usable turns whose advantages are all 0; `groups` counts those that
    have usable turns at all.
    """
    usable = _frame(credit, CREDIT).filter(pl.col("excluded").is_null())
    groups = (
        join_turns(turns, episodes, rewards)
        .join(usable.select(*TURN_KEYS, "advantage"), on=TURN_KEYS)
        .group_by(keys)
        .agg(
            silent=(pl.col("advantage").fill_null(1.0) == 0).all(),  # null: given later, token by token
            alone=pl.col("episode_id").n_unique() == 1,
        )
    )
    return {
        "groups": groups.height,
        "groups_without_signal": int(groups["silent"].sum()),
        "groups_of_one_episode": int(groups["alone"].sum()),
    }


def _checked(credited: Any, given: pl.DataFrame, method: Credit) -> pl.DataFrame:
    """What a method returned, narrowed to keys, return and advantage."""
    function = getattr(method, "func", method)  # a plain function comes as a partial
    who = f"credit method {getattr(function, '__name__', type(function).__name__)}"
    wanted = [*TURN_KEYS, "return", "advantage"]
    if not isinstance(credited, pl.DataFrame):
        raise SchemaError(f"{who} returned {type(credited).__name__}; return the frame with two columns more")
    if missing := set(wanted) - set(credited.columns):
        raise SchemaError(f"{who} returned no column {', '.join(sorted(missing))}; add it to every turn")
    narrow = credited.select(*TURN_KEYS, pl.col("return", "advantage").cast(pl.Float64))
    same = narrow.join(given, on=TURN_KEYS, how="semi").height
    if not same == narrow.height == given.height or narrow.select(TURN_KEYS).is_duplicated().any():
        raise SchemaError(
            f"{who} returned {narrow.height} rows, {same} of them turns that it got, for {given.height} "
            "turns; return each turn once, with its keys"
        )
    for column in ("return", "advantage"):
        if bad := narrow.filter(~pl.col(column).is_finite()).height:
            raise SchemaError(f"{who}: {column} is not finite in {bad} turns; use null where there is none")
    return narrow


def _no_credit() -> pl.DataFrame:
    return pl.DataFrame(
        schema={
            "episode_id": pl.String,
            "turn_index": pl.Int32,
            "return": pl.Float64,
            "advantage": pl.Float64,
        }
    )


def _frame(table: pa.Table, seen: pa.Schema) -> pl.DataFrame:
    return pl.DataFrame(table.select(seen.names))
