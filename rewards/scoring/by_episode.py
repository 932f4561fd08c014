"""One reward asked about one played episode, and its answer checked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from itertools import groupby
from numbers import Real
from types import MappingProxyType
from typing import Any, Final

import polars as pl

from rewards.base import PlayedEpisode
from rewards.part import PlayedPart, Rows
from rewards.scoring.weighted import WeightedReward
from workflows.errors import describe

_JSON_COLUMNS: Final = ("parsed", "tool_request", "tool_result")
_ROWS_AT_ONCE: Final = 512  # as Python objects, of which a turn has dozens


DETAIL: Final = 200  # characters of a cause, which every turn of an episode repeats


class RewardFailed(Exception):
    """One reward could not be computed: the text says which and why, details after ": "."""


def episodes_of(part: PlayedPart, which: Rows) -> Iterator[tuple[int, PlayedEpisode]]:
    """Some episodes of a part as rewards see them, with their positions, in the order of their turns.

    A task is decoded anew for every episode, so that no episode reads what a reward wrote into another's.
    """
    if not len(which):
        return
    turns = part.turns
    if len(which) < part.num_episodes:
        turns = turns.filter(pl.col("episode").is_in(which.tolist()))
    rows = turns.iter_rows(named=True, buffer_size=_ROWS_AT_ONCE)
    for position, turns_of_one in groupby(rows, lambda turn: turn["episode"]):
        yield position, _played(part, list(turns_of_one))


def _played(part: PlayedPart, turns: list[dict[str, Any]]) -> PlayedEpisode:
    task, status = turns[0]["task"], turns[0]["episode_status"]
    for turn in turns:
        for column in _JSON_COLUMNS:
            turn[column] = None if turn[column] is None else json.loads(turn[column])
        turn["metrics"] = {m["name"]: m["value"] for m in turn["metrics"] or ()}
        for column in ("episode", "task", "receives", "episode_status"):
            del turn[column]
    return PlayedEpisode(
        turns[0]["episode_id"],
        status,
        json.loads(part.tasks.inputs_json[task]),
        json.loads(part.tasks.gold_json[task]),
        [MappingProxyType(turn) for turn in turns],  # what a reward writes there, no other may read
    )


def values_of(item: WeightedReward, episode: PlayedEpisode) -> list[float | None]:
    """One number or null per turn from one reward, checked; null for turns that it does not go to.

    Raises:
        RewardFailed: the reward raised, or what it returned is something else.
    """
    addressed = item.addressed(episode.turns)
    try:
        given = item.reward(episode if addressed is None else replace(episode, addressed=addressed))
        if isinstance(given, str | Mapping | Set):
            raise TypeError(
                f"it returned a {type(given).__name__}, expected one value per turn in their order"
            )
        values = list(given)
    except Exception as error:  # a plug-in may raise anything; cancellation is no Exception and passes
        raise RewardFailed(f"reward {item.name!r} failed: {describe(error, DETAIL)}") from error
    if len(values) != len(episode.turns):
        raise RewardFailed(
            f"reward {item.name!r} gave the wrong number of values: {len(values)} for "
            f"{len(episode.turns)} turns"
        )
    numbers = [None if value is None else _finite(value, item.name) for value in values]
    if addressed is None:
        return numbers
    return [number if position in addressed else None for position, number in enumerate(numbers)]


def _finite(value: Any, name: str) -> float:
    """`value` as a float.

    Raises:
        RewardFailed: it is not a finite number.
    """
    try:
        if isinstance(value, Real) and math.isfinite(number := float(value)):
            return number
    except OverflowError:  # beyond all floats, and too long to show
        value = f"a number ({type(value).__name__}) that no float can hold"
    raise RewardFailed(f"reward {name!r} returned what is not a finite number or None: {value!r:.200}")
