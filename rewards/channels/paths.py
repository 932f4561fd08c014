"""Channels that look at the graph of an episode, at its branches, and at single tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np
import polars as pl

from rewards.answers import check_number
from rewards.channels.base import ChannelHooks, Frames, Unit
from workflows.dag import Dag, Rates, dag_of
from workflows.errors import UsageError
from workflows.trajectory import TURN_KEYS

BRANCH_PART: Final = "branch_right"


@dataclass(frozen=True, slots=True)
class CriticalPath(ChannelHooks):
    """To turns without slack: clip(log(median span of the group / span), ±most) where the team succeeded.

    Time is modelled (`workflows.dag.Rates`). A play succeeded whose mean return is above `above`; one that
    did not gets 0, and so does a turn whose length changes nothing.

    Options:
        most: the largest value.
        above: the return above which a play succeeded.
        token_seconds, prompt_token_seconds, tool_seconds, tools: see `workflows.dag.Rates`.
    """

    unit: ClassVar[Unit] = "turn"

    most: float = 1.0
    above: float = 0.0
    token_seconds: float = 0.02
    prompt_token_seconds: float = 0.0
    tool_seconds: float = 1.0
    tools: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_number("above", self.above)
        for name in ("most", "token_seconds", "prompt_token_seconds", "tool_seconds"):
            check_number(name, getattr(self, name), 0)

    def __call__(self, frames: Frames) -> pl.DataFrame:
        rates = Rates(self.token_seconds, self.prompt_token_seconds, self.tool_seconds, self.tools)
        dags: dict[str, tuple[Dag, list[int]]] = {}
        for (episode_id,), of_one in frames.turns.group_by("episode_id", maintain_order=True):
            turns = of_one.to_dicts()
            dags[str(episode_id)] = (dag_of(turns, rates), [turn["turn_index"] for turn in turns])
        episodes = frames.episodes.with_columns(
            span=pl.col("episode_id").map_elements(lambda e: dags[e][0].span, return_dtype=pl.Float64)
        ).with_columns(usual=pl.col("span").median().over("group_id"))
        rows = []
        for episode_id, team, span, usual in episodes.select(
            "episode_id", "team", "span", "usual"
        ).iter_rows():
            dag, indices = dags[episode_id]
            critical = {indices[node] for node in dag.critical}
            value = 0.0
            if team > self.above and span > 0 and usual > 0:
                value = max(-self.most, min(self.most, math.log(usual / span)))
            rows += [(episode_id, index, value if index in critical else 0.0) for index in indices]
        schema = {"episode_id": pl.String, "turn_index": pl.Int32, "value": pl.Float64}
        values = pl.DataFrame(rows, schema=schema, orient="row")
        return (
            frames.usable.select(TURN_KEYS)
            .join(values, on=TURN_KEYS, maintain_order="left")
            .select(*TURN_KEYS, member=pl.format("turn {}", pl.col("turn_index")), value="value")
        )


@dataclass(frozen=True, slots=True)
class Shapley(ChannelHooks):
    """Shapley values of the branches in the game of their majority, less what a branch of the group gets.

    A coalition of branches is worth 1 where more than half of it is right, 1/2 where exactly half is, else 0;
    nobody is worth 0. So the values of an episode add up to what a majority of its branches would answer, to
    the last bit of rounding, and the channel's gap is what the aggregate made of them beyond that. Exact for
    any number of branches, and without a single replay: the values only depend on how many are right. Whether
    a branch is right is the part `branch_right` of its reward, which is stored for workflows that declare
    `branch_steps` and `task`.
    """

    unit: ClassVar[Unit] = "message"
    needs_parts: ClassVar[bool] = True

    def __call__(self, frames: Frames) -> pl.DataFrame:
        right = frames.parts.filter(pl.col("name") == BRANCH_PART).drop_nulls("value")
        group = frames.usable.select(*TURN_KEYS, "group_id")
        right = group.join(right, on=TURN_KEYS, maintain_order="left").with_columns(
            _right=pl.col("value") > 0
        )
        values = []
        for _, of_one in right.group_by("episode_id", maintain_order=True):
            flags = of_one["_right"].to_list()
            of_right, of_wrong = majority_values(sum(flags), len(flags) - sum(flags))
            values += [of_right if flag else of_wrong for flag in flags]
        right = right.with_columns(_phi=pl.Series(values, dtype=pl.Float64))
        # what a branch gets on average: the mean of the episodes' sums, shared out
        total = pl.col("_phi").sum().over("episode_id")
        first = pl.col("episode_id").is_first_distinct()
        right = right.with_columns(_total=total, _first=first)
        usual = pl.col("_total").filter(pl.col("_first")).mean().over("group_id")
        count = pl.len().over("episode_id")
        return right.select(
            *TURN_KEYS,
            member=pl.format("message {}", pl.col("turn_index")),
            value=pl.col("_phi") - usual / count,
        )


def majority_values(right: int, wrong: int) -> tuple[float, float]:
    """The Shapley values of a branch that is right and of one that is wrong, in the majority game.

    The mean over the place k of a branch among all, and over how many of the k branches before it are right
    (hypergeometric), of what it adds. The value of a kind that nobody is of is 0.
    """
    count = right + wrong

    def worth(of_right: int, size: int) -> float:
        return 0.5 * ((2 * of_right > size) + (2 * of_right >= size)) if size else 0.0

    def value(is_right: int) -> float:
        others_right, others = right - is_right, count - 1
        parts = []
        for before in range(count):
            ways = math.comb(others, before)
            for among in range(max(0, before - (others - others_right)), min(others_right, before) + 1):
                chance = (
                    math.comb(others_right, among) * math.comb(others - others_right, before - among) / ways
                )
                parts.append(chance * (worth(among + is_right, before + 1) - worth(among, before)))
        return math.fsum(parts) / count

    return (value(1) if right else 0.0), (value(0) if wrong else 0.0)


@dataclass(frozen=True, slots=True)
class Surprise(ChannelHooks):
    """A turn's own credit once more, on its most surprising tokens alone: where the policy really chose.

    The tokens are the `share` of the response with the largest -log p by the sampler. Beside the channel
    `credit` it raises these tokens over the others; alone it trains on nothing but them.
    Source: forking tokens, arXiv:2506.01939, with the surprise of the sampled token in place of the entropy.
    """

    unit: ClassVar[Unit] = "token"
    needs_logprobs: ClassVar[bool] = True
    has_spans: ClassVar[bool] = True

    share: float = 0.2

    def __post_init__(self) -> None:
        check_number("share", self.share, 0)
        if not 0 < self.share <= 1:
            raise UsageError(f"option share is {self.share}; use a share of the tokens above 0, at most 1")

    def __call__(self, frames: Frames) -> pl.DataFrame:
        assert frames.logprobs is not None, "the credit stage reads them for this channel"
        turns = frames.usable.select(*TURN_KEYS, "advantage").drop_nulls("advantage")
        turns = turns.join(frames.logprobs, on=TURN_KEYS, maintain_order="left")
        rows = []
        for episode_id, index, advantage, logprobs in turns.iter_rows():
            for first, end in _runs(_most_surprising(logprobs or (), self.share)):
                rows.append((episode_id, index, f"token {index}:{first}", advantage, first, end))
        names = ("episode_id", "turn_index", "member", "value", "first_token", "end_token")
        types = (pl.String, pl.Int32, pl.String, pl.Float64, pl.Int32, pl.Int32)
        return pl.DataFrame(rows, schema=dict(zip(names, types, strict=True)), orient="row")


def _most_surprising(logprobs: object, share: float) -> list[int]:
    """The places of the share of tokens with the lowest logprobs, ascending; the earlier of equal ones."""
    values = np.asarray(logprobs, dtype=np.float64)
    count = math.ceil(share * len(values) - 1e-9)
    return sorted(np.argsort(values, kind="stable")[:count].tolist())


def _runs(places: list[int]) -> list[tuple[int, int]]:
    """Ascending places as runs [first, end)."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return runs
