"""From rewards to the credit table: pure, one row for every turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from rewards.base import Credit, CreditHooks
from rewards.credit.silent import SILENT, LeaveOutSilent
from rewards.part import Flags
from rewards.scoring.key_order import by_key, same_keys
from workflows.errors import SchemaError
from workflows.hooks import hooks_of
from workflows.trajectory import CREDIT, EPISODES, REWARDS, TURN_KEYS, TURNS
from workflows.vocabulary import Status

_IDENTITY: Final = ("iteration", "split", "task_id", "group_id", "sample", "episode_id")
_TURN_COLUMNS: Final = (
    *(*TURN_KEYS, "step", "round", "branch", "role", "model_id", "context_hash", "num_response_tokens"),
    "status",
)
_REWARD_COLUMNS: Final = (*TURN_KEYS, "reward", "reward_parts", "no_reward_reason")
EPISODES_SEEN: Final = pa.schema([EPISODES.field(c) for c in _IDENTITY])
TURNS_SEEN: Final = pa.schema([TURNS.field(c) for c in _TURN_COLUMNS])
REWARDS_SEEN: Final = pa.schema([REWARDS.field(c) for c in _REWARD_COLUMNS])


Tables = tuple[pa.Table, pa.Table, pa.Table]
NO_GREEDY: Final = "no greedy turn to compare with"


@dataclass(frozen=True, slots=True)
class Credited:
    """The credit table, and how many groups can teach.

    `groups` counts those (by the method's keys) that have usable turns: all of them as "groups",
    "groups_without_signal", whose advantages are all 0, and "groups_of_one_episode".
    """

    table: pa.Table
    groups: dict[str, int]


@dataclass(frozen=True, slots=True)
class Remixed:
    """Other advantages of the usable turns, and what they are made of, both in the order of these turns."""

    advantage: pl.Series
    channels: pl.Series  # lists of (name, value), as in `CREDIT`; null is none


Remix = Callable[[pl.DataFrame], Remixed]
"""Makes other advantages of usable turns that have `return` and `advantage`."""


def credit_turns(
    turns: pa.Table,
    episodes: pa.Table,
    rewards: pa.Table,
    method: Credit,
    leave_out: LeaveOutSilent | None = None,
    *,
    mask_truncated: bool = False,
    greedy: Tables | None = None,
    remix: Remix | None = None,
) -> Credited:
    """Return and advantage of every turn that has a reward; one row of `CREDIT` per turn, sorted by key.

    A turn without a reward is `excluded` for the reason that it has none, and no part of any baseline:
    its group goes on with the others. Turns of silent groups are excluded where `leave_out` is given,
    after the credit, so that they count in a baseline over all groups. Of `rewards`, the parts are looked
    at by `leave_out` only.

    With `mask_truncated`, replies that the token limit cut off are rewarded, count in baselines, and are then
    excluded: what they would have become is not known, so they teach nothing. Source: overlong filtering,
    DAPO, arXiv:2503.14476, section 3.4.

    `greedy` are the turns, episodes and rewards of greedy plays of the same tasks, for a method that needs
    them (`CreditHooks.needs_greedy`). A turn that then has no advantage is excluded.

    With `remix`, the advantages that are trained on are what it makes of the method's.

    Raises:
        SchemaError: the tables do not hold the same turns, or `method` returned other turns than it
            got, or a number that is not finite.
    """
    frame = join_turns(turns, episodes, rewards)
    usable, keys = usable_turns(frame), hooks_of(method, CreditHooks).group_keys
    credited = _credited(method, usable, greedy) if usable.height else _no_credit()
    usable = usable.with_columns(credited["return"], credited["advantage"])
    left_out: dict[str, Flags] = {
        Status.TRUNCATED: (usable["status"] == Status.TRUNCATED).fill_null(False).to_numpy()
    }
    if not mask_truncated:
        left_out.clear()
    channels = None
    if greedy is not None:
        left_out[NO_GREEDY] = usable["advantage"].is_null().to_numpy()
    if remix is not None and usable.height:
        remixed = remix(usable)
        usable = usable.with_columns(remixed.advantage.alias("advantage"))
        credited = credited.with_columns(remixed.advantage.alias("advantage"))
        channels = remixed.channels
    if leave_out is not None:
        silent = leave_out.silent(usable.drop("advantage"), rewards, keys).with_columns(_silent=True)
        marked = usable.join(silent, on=TURN_KEYS, how="left", maintain_order="left")
        left_out[SILENT] = marked["_silent"].fill_null(False).to_numpy()
    kept = ~np.any([np.zeros(usable.height, np.bool_), *left_out.values()], axis=0)
    return Credited(
        _table(frame, credited, left_out, channels), _groups(usable.filter(pl.Series(kept)), keys)
    )


def _credited(method: Credit, usable: pl.DataFrame, greedy: Tables | None) -> pl.DataFrame:
    """Keys, return and advantage of the usable turns, in their order."""
    if greedy is None:
        return _checked(method(usable), usable, method)
    beside = usable_turns(join_turns(*greedy)).with_columns(greedy=True)
    every = by_key(pl.concat([usable.with_columns(greedy=False), beside]))
    credited = _checked(method(every), every, method)
    return usable.select(TURN_KEYS).join(credited, on=TURN_KEYS, how="left", maintain_order="left")


def usable_turns(frame: pl.DataFrame) -> pl.DataFrame:
    """What a credit method gets of `join_turns`: the turns that have a reward."""
    return frame.lazy().filter(pl.col("reward").is_not_null()).drop("no_reward_reason").collect()


def join_turns(turns: pa.Table, episodes: pa.Table, rewards: pa.Table) -> pl.DataFrame:
    """Turns with their episode's identity and their reward, sorted by key.

    Raises:
        SchemaError: see `credit_turns`.
    """
    left, middle = _frame(turns, TURNS_SEEN), _frame(episodes, EPISODES_SEEN)
    right = pl.DataFrame(rewards.select([*TURN_KEYS, "reward", "no_reward_reason"]))
    for name, frame, keys in (
        ("turns", left, TURN_KEYS),
        ("episodes", middle, ("episode_id",)),
        ("rewards", right, TURN_KEYS),
    ):
        if twice := int(frame[list(keys)].is_duplicated().sum()):
            raise SchemaError(f"{name} has {twice} rows whose {', '.join(keys)} another row has too")
    left, right = by_key(left), by_key(right)
    joined = left.join(middle, on="episode_id", how="inner", maintain_order="left")
    if not (joined.height == left.height and same_keys(left, right)):
        shared = joined.join(right, on=TURN_KEYS, how="semi").height
        raise SchemaError(
            f"turns ({left.height} rows) and rewards ({right.height}) share only {shared} turns of "
            f"the {middle.height} episodes; these tables are not of one rollout"
        )
    return joined.with_columns(right["reward"], right["no_reward_reason"])


def _table(
    frame: pl.DataFrame,
    credited: pl.DataFrame,
    left_out: Mapping[str, Flags],
    channels: pl.Series | None = None,
) -> pa.Table:
    """`CREDIT` for all turns of the frame; `credited` has those with a reward, in the same order, and
    `left_out`, by reason, says which of them are not trained on."""
    usable = frame["reward"].is_not_null().to_numpy()
    excluded = frame["no_reward_reason"]
    for reason, flags in left_out.items():
        where = np.zeros(frame.height, np.bool_)
        where[usable] = flags
        if where.any():
            excluded = excluded.zip_with(~pl.Series(where), pl.Series([str(reason)]))
    nothing = CREDIT.field("channels").type.value_type
    none = pa.ListArray.from_arrays(np.zeros(frame.height + 1, np.int32), pa.array([], nothing))
    columns = {
        **{key: frame[key].to_arrow() for key in TURN_KEYS},
        **{name: _spread(credited[name], usable) for name in ("return", "advantage")},
        "excluded": excluded.to_arrow(),
        "channels": none if channels is None else _spread_lists(channels, usable),
    }
    return pa.table(columns).cast(CREDIT)


def _spread(numbers: pl.Series, where: Flags) -> pa.Array:
    """The numbers at the rows where they belong, null elsewhere."""
    values, given = np.zeros(len(where)), np.zeros(len(where), np.bool_)
    values[where] = numbers.to_numpy()  # null is NaN
    given[where] = numbers.is_not_null().to_numpy()
    return pa.array(values, mask=~given)


def _spread_lists(lists: pl.Series, where: Flags) -> pa.Array:
    """The lists at the rows where they belong, empty ones elsewhere."""
    rows: list[Any] = [[] for _ in where]
    for place, listed in zip(np.flatnonzero(where), lists.to_list(), strict=True):
        rows[place] = listed or []
    return pa.array(rows, CREDIT.field("channels").type)


def _groups(usable: pl.DataFrame, keys: Sequence[str]) -> dict[str, int]:
    groups = usable.group_by(keys).agg(
        silent=(pl.col("advantage").fill_null(1.0) == 0).all(),  # null: given later, token by token
        alone=pl.col("episode_id").n_unique() == 1,
    )
    return {
        "groups": groups.height,
        "groups_without_signal": int(groups["silent"].sum()),
        "groups_of_one_episode": int(groups["alone"].sum()),
    }


def _checked(credited: Any, given: pl.DataFrame, method: Credit) -> pl.DataFrame:
    """What a method returned, narrowed to keys, return and advantage, in the order of `given`."""
    function = getattr(method, "func", method)  # a plain function comes as a partial
    who = f"credit method {getattr(function, '__name__', type(function).__name__)}"
    wanted = [*TURN_KEYS, "return", "advantage"]
    if not isinstance(credited, pl.DataFrame):
        raise SchemaError(f"{who} returned {type(credited).__name__}; return the frame with two columns more")
    if missing := set(wanted) - set(credited.columns):
        raise SchemaError(f"{who} returned no column {', '.join(sorted(missing))}; add it to every turn")
    narrow = credited.select(*TURN_KEYS, pl.col("return", "advantage").cast(pl.Float64))
    if not same_keys(narrow, given):
        narrow = by_key(narrow)
    if not same_keys(narrow, given):
        same = narrow.join(given, on=TURN_KEYS, how="semi").height
        raise SchemaError(
            f"{who} returned {narrow.height} rows, {same} of them turns that it got, for {given.height} "
            "turns; return each turn once, with its keys"
        )
    for column in ("return", "advantage"):
        if bad := int((~np.isfinite(narrow[column].drop_nulls().to_numpy())).sum()):
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
