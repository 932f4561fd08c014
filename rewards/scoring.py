"""From played episodes to the rewards table: pure, one row for every turn.

A reward that fails on an episode costs that episode its rewards, never the run, and never becomes
a 0: its turns carry the reason. The same holds for episodes that something other than the policy
broke.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Real
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

import pyarrow as pa

from rewards.base import PlayedEpisode, Reward
from workflows.errors import SchemaError, UsageError
from workflows.trajectory import EPISODES, NOT_THE_POLICYS_DOING, REWARDS, TASKS, TRUNCATED, TURNS

Truncated = Literal["as_malformed", "exclude"]

_TASK_COLUMNS: Final = ("task_id", "inputs", "gold")
_EPISODE_COLUMNS: Final = ("episode_id", "task_id", "status")
_TURN_COLUMNS: Final = (
    "episode_id",
    "turn_index",
    "step",
    "round",
    "branch",
    "event",
    "act",
    "role",
    "model_id",
    "trainable",
    "num_response_tokens",
    "response_text",
    "parsed",
    "format_valid",
    "status",
    "finish_reason",
    "metrics",
    "tool",
    "tool_request",
    "tool_result",
)
TASKS_SEEN: Final = pa.schema([TASKS.field(c) for c in _TASK_COLUMNS])
EPISODES_SEEN: Final = pa.schema([EPISODES.field(c) for c in _EPISODE_COLUMNS])
TURNS_SEEN: Final = pa.schema([TURNS.field(c) for c in _TURN_COLUMNS])
"""What rewards see of the tables: no token lists, no prompts, no clocks."""

NOT_AN_LLM_TURN: Final = "not an llm turn"
FROZEN: Final = "model is frozen"
NO_VALUES: Final = "no reward values this turn"
NO_FAILURES: Final = frozenset({NOT_AN_LLM_TURN, FROZEN, NO_VALUES, TRUNCATED})
"""Reasons why a turn has no reward although its episode was scored."""

_JSON_COLUMNS: Final = ("parsed", "tool_request", "tool_result")


@dataclass(frozen=True, slots=True)
class WeightedReward:
    """One reward of a run, what it weighs, and whom it goes to: None for `roles` or `steps` means all."""

    name: str
    weight: float
    reward: Reward
    roles: frozenset[str] | None = None
    steps: frozenset[str] | None = None

    def addressed(self, turns: Sequence[Mapping[str, Any]]) -> frozenset[int] | None:
        """Positions of the turns that it goes to; None: all."""
        if self.roles is None and self.steps is None:
            return None
        return frozenset(
            i
            for i, turn in enumerate(turns)
            if (self.roles is None or turn["role"] in self.roles)
            and (self.steps is None or turn["step"] in self.steps)
        )


@dataclass(frozen=True, slots=True)
class WeightedRewards:
    """The rewards of a run; a turn's reward is the weighted sum of the parts that are not null.

    Whatever mix is wanted is a list of these. Per trajectory: a reward that gives all turns one number,
    such as `token_f1`. Per role or step: `roles` and `steps` say whom a reward goes to; the others'
    part is null, and a "split" share is divided among those named. Per turn: a reward that gives each
    turn its own, such as `f1_by_round`. A reward of weight 0 is a metric: its parts are kept, and it
    makes no reward out of null.

    Raises:
        UsageError: no reward, two of one name, or a weight that is not finite.
    """

    items: tuple[WeightedReward, ...]

    def __post_init__(self) -> None:
        if not self.items:
            raise UsageError("no reward is configured; add a [[rewards]] section")
        names = [item.name for item in self.items]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise UsageError(f"two rewards are named {twice[0]!r}; their parts would be one column")
        for item in self.items:
            if not math.isfinite(item.weight):
                raise UsageError(f"reward {item.name!r} has weight {item.weight}; use a finite number")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(item.name for item in self.items)


class _RewardFailed(Exception):
    """One reward could not be computed for one episode."""


def score_turns(
    tasks: pa.Table,
    turns: pa.Table,
    episodes: pa.Table,
    rewards: WeightedRewards,
    *,
    truncated: Truncated = "as_malformed",
) -> pa.Table:
    """Score every episode; one row of `REWARDS` for every turn, sorted by key.

    `reward` is null, with `no_reward_reason`, for

    - all turns of an episode that is, or has a turn that is, `infra_error`, `timeout` or `cancelled`;
    - all turns of an episode on which a reward raised, or gave a number that is not finite or not one
      value per turn (`kind_of` takes the details off such a reason);
    - tool and control turns, and turns of models that are not trained;
    - truncated turns, if `truncated` is "exclude". The rest of such an episode is scored.

    `reward_parts` are before weights. Other columns than `TASKS_SEEN`, `TURNS_SEEN` and
    `EPISODES_SEEN` are not looked at.

    Raises:
        SchemaError: a turn of an episode, or an episode of a task, that is not there, or two rows of one key.
    """
    return score_variants(tasks, turns, episodes, [(rewards, truncated)])[0]


def score_variants(
    tasks: pa.Table,
    turns: pa.Table,
    episodes: pa.Table,
    variants: Sequence[tuple[WeightedRewards, Truncated]],
) -> list[pa.Table]:
    """`score_turns` for several settings of rewards at once, a table each.

    Rows are read and decoded once. A reward object that several variants have, under the same name and
    for the same roles and steps, is called once for an episode.
    """
    for _, truncated in variants:
        if truncated not in get_args(Truncated):
            raise UsageError(f"truncated is {truncated!r}; use one of {', '.join(get_args(Truncated))}")
    task_of = _by_key(_rows(tasks, TASKS_SEEN), "task_id", "tasks")
    episode_of = _by_key(_rows(episodes, EPISODES_SEEN), "episode_id", "episodes")
    scored: list[list[dict[str, Any]]] = [[] for _ in variants]
    for episode_id, its_turns in _turns_by_episode(_rows(turns, TURNS_SEEN)):
        if episode_id not in episode_of:
            raise SchemaError(f"turns has episode {episode_id!r}, which episodes lacks")
        episode = episode_of[episode_id]
        if episode["task_id"] not in task_of:
            raise SchemaError(f"episode {episode_id!r} plays task {episode['task_id']!r}, which tasks lacks")
        task = task_of[episode["task_id"]]
        for rows, more in zip(scored, _score_episode(episode, task, its_turns, variants), strict=True):
            rows += more
    return [pa.Table.from_pylist(rows, schema=REWARDS) for rows in scored]


def kind_of(reason: str) -> str:
    """A reason without its details, so that reasons can be counted."""
    return reason.split(": ", 1)[0]


def _score_episode(
    episode: Mapping[str, Any],
    task: Mapping[str, Any],
    turns: list[dict[str, Any]],
    variants: Sequence[tuple[WeightedRewards, Truncated]],
) -> list[list[dict[str, Any]]]:
    """The rows of one episode, for each variant."""
    broken = _why_unusable(episode["status"], turns)
    played = None if broken is not None else _played(episode, task, turns)
    known: dict[tuple[Any, ...], list[float | None] | _RewardFailed] = {}
    scored = []
    for rewards, truncated in variants:
        reason, parts = broken, {}
        if played is not None:
            try:
                parts = {item.name: _values_once(item, played, known) for item in rewards.items}
            except _RewardFailed as failure:
                reason = str(failure)
        scored.append(
            [
                _row(turn, reason or _why_no_reward(turn, truncated), position, parts, rewards)
                for position, turn in enumerate(turns)
            ]
        )
    return scored


def _played(
    episode: Mapping[str, Any], task: Mapping[str, Any], turns: list[dict[str, Any]]
) -> PlayedEpisode:
    """The episode as rewards see it; decodes the JSON columns of `turns` in place."""
    for turn in turns:
        for column in _JSON_COLUMNS:
            turn[column] = None if turn[column] is None else json.loads(turn[column])
        turn["metrics"] = {m["name"]: m["value"] for m in turn["metrics"] or ()}
    return PlayedEpisode(
        episode["episode_id"],
        episode["status"],
        json.loads(task["inputs"]),
        json.loads(task["gold"]),
        [MappingProxyType(turn) for turn in turns],  # what a reward writes there, no other may read
    )


def _values_once(
    item: WeightedReward,
    episode: PlayedEpisode,
    known: dict[tuple[Any, ...], list[float | None] | _RewardFailed],
) -> list[float | None]:
    """`_values`, or what it gave or raised before for this reward of the episode."""
    key = (item.name, id(item.reward), item.roles, item.steps)
    if key not in known:
        try:
            known[key] = _values(item, episode)
        except _RewardFailed as failure:
            known[key] = failure
    found = known[key]
    if isinstance(found, _RewardFailed):
        raise found
    return found


def _why_unusable(status: str, turns: list[dict[str, Any]]) -> str | None:
    if status in NOT_THE_POLICYS_DOING:
        return f"episode {status}"
    bad = [turn["status"] for turn in turns if turn["status"] in NOT_THE_POLICYS_DOING]
    return f"episode with a turn {bad[0]}" if bad else None


def _why_no_reward(turn: Mapping[str, Any], truncated: Truncated) -> str | None:
    if turn["event"] != "llm":
        return NOT_AN_LLM_TURN
    if not turn["trainable"]:
        return FROZEN
    if truncated == "exclude" and turn["status"] == TRUNCATED:
        return TRUNCATED
    return None


def _row(
    turn: Mapping[str, Any],
    reason: str | None,
    position: int,
    parts: Mapping[str, list[float | None]],
    rewards: WeightedRewards,
) -> dict[str, Any]:
    row = {"episode_id": turn["episode_id"], "turn_index": turn["turn_index"], "reward_parts": []}
    if reason is not None:
        return row | {"reward": None, "no_reward_reason": reason}
    mine = {name: values[position] for name, values in parts.items()}
    weighted = [
        item.weight * value
        for item in rewards.items
        if item.weight and (value := mine[item.name]) is not None
    ]
    return row | {
        "reward": sum(weighted) if weighted else None,
        "reward_parts": [{"name": name, "value": value} for name, value in mine.items()],
        "no_reward_reason": None if weighted else NO_VALUES,
    }


def _values(item: WeightedReward, episode: PlayedEpisode) -> list[float | None]:
    """One number or null per turn from one reward, checked; null for turns that it does not go to.

    Raises:
        _RewardFailed: the reward raised, or what it returned is something else.
    """
    addressed = item.addressed(episode.turns)
    try:
        given = item.reward(episode if addressed is None else replace(episode, addressed=addressed))
        if isinstance(given, str | Mapping | Set):
            raise TypeError(f"it gave a {type(given).__name__}, expected one value per turn in their order")
        values = list(given)
    except Exception as error:  # a plug-in may raise anything; cancellation is no Exception and passes
        detail = " ".join(f"{type(error).__name__}: {error}".split())
        raise _RewardFailed(f"reward {item.name!r} failed: {detail[:200]}") from error
    if len(values) != len(episode.turns):
        raise _RewardFailed(
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
        _RewardFailed: it is no number, or none that is finite.
    """
    try:
        if isinstance(value, Real) and math.isfinite(number := float(value)):
            return number
    except OverflowError:  # beyond all floats, and too long to show
        value = f"a number ({type(value).__name__}) that no float can hold"
    raise _RewardFailed(f"reward {name!r} gave what is no finite number: {value!r:.200}")


def _rows(table: pa.Table, seen: pa.Schema) -> list[dict[str, Any]]:
    return table.select(seen.names).to_pylist()


def _by_key(rows: Iterable[dict[str, Any]], key: str, table: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row[key] in found:
            raise SchemaError(f"{table} has two rows of {key} {row[key]!r}")
        found[row[key]] = row
    return found


def _turns_by_episode(rows: list[dict[str, Any]]) -> Iterable[tuple[str, list[dict[str, Any]]]]:
    """Episodes in the order of their ids, turns in the order of their indices."""
    by_episode: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_episode.setdefault(row["episode_id"], []).append(row)
    for episode_id in sorted(by_episode):
        turns = sorted(by_episode[episode_id], key=lambda turn: turn["turn_index"])
        _refuse_twins(episode_id, turns)
        yield episode_id, turns


def _refuse_twins(episode_id: str, turns: Sequence[Mapping[str, Any]]) -> None:
    for one, other in pairwise(turns):
        if one["turn_index"] == other["turn_index"]:
            raise SchemaError(f"turns has two rows of turn {one['turn_index']} of episode {episode_id!r}")
