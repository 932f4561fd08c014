"""Rewards of how a team works together: time saved, split, choice among answers, cost (R7 of the survey).

    parallel_speedup      success · clip(log(work / span), ±most): to whom the critical path belongs
    split_quality         coverage + independence + completion - overlap - unused: to those who split the work
    aggregation_quality   y - λ · regret to the aggregate, its own rightness to each branch
    coordination_cost     minus the share of tokens that neither a branch nor the answer said
    spawn_bonus           success · branches / target, less in each iteration until it is 0

Time is modelled by stated rates (`workflows.dag.Rates`), so it is the same on every machine. What an episode
lacks has no value, and never a 0: without a branch there is no split and no choice, so these two give None
unless `alone` names a number. A team that does not work in parallel has a speed-up of 1, whose logarithm is a
real 0.

Every reward is of one episode. A reference span of the group (the median of its spans) would shift each
reward of the group alike, which group-relative credit takes out again; so none is needed. `team_measure`
gives the single numbers behind these rewards, for `weight = 0` and `[[evaluate.rewards]]`.
Sources: work and span, Brent 1974; the annealed bonus, Kimi K2.5, arXiv:2602.02276.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from rewards.answers import check_number, refuse_unknown
from rewards.base import PlayedEpisode
from rewards.grading import qa
from rewards.team.split import (
    Branch,
    branches_of,
    completion,
    deciders_of,
    independence,
    overlap,
    unused,
)
from rewards.team_grading import AnswersReward, Values
from workflows.dag import Dag, Rates, dag_of
from workflows.vocabulary import Event

_RATES: Final = Rates()

Measure = Literal[
    "work_seconds",
    "span_seconds",
    "speedup",
    "efficiency",
    "width",
    "branches",
    "coverage",
    "independence",
    "completion",
    "overlap",
    "unused",
    "regret",
    "gain_over_majority",
    "recovery",
    "corruption",
    "overhead",
]


@dataclass(frozen=True, slots=True)
class TeamReward(AnswersReward):
    """What rewards of a team's work share: modelled time, branches, and what is said where there are none.

    Options, beside those of `rewards.team_grading.AnswersReward`:
        token_seconds, prompt_token_seconds, tool_seconds, tools: see `workflows.dag.Rates`.
        alone: the value where an episode has no branch to look at; by default there is none.

    Raises:
        UsageError: an option out of its range.
    """

    token_seconds: float = _RATES.token_seconds
    prompt_token_seconds: float = _RATES.prompt_token_seconds
    tool_seconds: float = _RATES.tool_seconds
    tools: Mapping[str, float] = field(default_factory=dict)
    alone: float | None = None

    def __post_init__(self) -> None:
        AnswersReward.__post_init__(self)
        rates = {f"tools.{tool}": seconds for tool, seconds in self.tools.items()}
        for name in ("token_seconds", "prompt_token_seconds", "tool_seconds"):
            rates[name] = getattr(self, name)
        for name, value in rates.items():
            check_number(name, value, 0)
        if self.alone is not None:
            check_number("alone", self.alone)

    def dag(self, episode: PlayedEpisode) -> Dag:
        """The episode's turns in modelled time."""
        rates = Rates(self.token_seconds, self.prompt_token_seconds, self.tool_seconds, self.tools)
        return dag_of(episode.turns, rates)

    def branches(self, episode: PlayedEpisode) -> list[Branch]:
        return branches_of(episode.turns, self.branch_steps)

    def rights(self, episode: PlayedEpisode, branches: Sequence[Branch]) -> list[float]:
        """For each branch, whether its result is right."""
        return [self.right(episode, episode.turns[branch.result]) for branch in branches]

    def to(self, episode: PlayedEpisode, places: Sequence[int], value: float) -> Values:
        """`value` for those of these turns that may get it, None for all others."""
        mine = set(episode.trainable()) & set(places)
        return [value if place in mine else None for place in range(len(episode.turns))]


@dataclass(frozen=True, slots=True)
class ParallelSpeedup(TeamReward):
    """success · clip(log(work / span), -most, most).

    `success` is whether the team's answer is right, so that a wrong answer earns nothing by being quick.

    Options:
        most: the largest value.
        to_whom: who gets it. "critical" are the turns without slack, the only ones that can change the span;
            "deciders" those who split the work; "all" every turn.
    """

    most: float = 1.0
    to_whom: Literal["critical", "deciders", "all"] = "critical"

    def __post_init__(self) -> None:
        TeamReward.__post_init__(self)
        check_number("most", self.most, 0)
        refuse_unknown("to_whom", self.to_whom, ("critical", "deciders", "all"))

    def values(self, episode: PlayedEpisode) -> Values:
        dag = self.dag(episode)
        value = self.final(episode) * min(self.most, math.log(dag.speedup))
        if self.to_whom == "all":
            return self.to(episode, range(len(episode.turns)), value)
        if self.to_whom == "critical":
            return self.to(episode, dag.critical, value)
        return self.to(episode, deciders_of(episode.turns, self.branches(episode)), value)


@dataclass(frozen=True, slots=True)
class SplitQuality(TeamReward):
    """coverage + independence + completion - overlap - unused, each by its option's weight, to the deciders.

    - coverage: share of the requirements that some branch's result meets: the texts of
      `gold["requirements"]`, whose words it has; of a task without that list, whether some branch is right.
    - independence: 1 minus the share of pairs of branches of which one has read the other.
    - completion: share of branches whose result is whole and keeps its format.
    - overlap: mean Jaccard similarity of two results' words.
    - unused: share of branches whose result nobody outside has read.
    """

    coverage: float = 1.0
    independence: float = 0.5
    completion: float = 0.5
    overlap: float = 0.5
    unused: float = 0.5

    def __post_init__(self) -> None:
        TeamReward.__post_init__(self)
        for name in ("coverage", "independence", "completion", "overlap", "unused"):
            check_number(name, getattr(self, name), 0)

    def values(self, episode: PlayedEpisode) -> Values:
        branches, dag = self.branches(episode), self.dag(episode)
        deciders = deciders_of(episode.turns, branches)
        if not branches:
            return _alone(self, episode)
        value = (
            self.coverage * coverage_of(self, episode, branches)
            + self.independence * independence(branches, dag)
            + self.completion * completion(episode.turns, branches)
            - self.overlap * overlap(episode.turns, branches)
            - self.unused * unused(branches, dag)
        )
        return self.to(episode, deciders, value)


@dataclass(frozen=True, slots=True)
class AggregationQuality(TeamReward):
    """To the team's answer y - regret · (the best branch - y), to each branch's result whether it is right.

    y is whether the team's answer is right. An episode without branches has no choice to judge: `alone`.

    Options:
        regret: the weight λ of what the best branch would have earned beyond y.
        branches_too: whether branches are paid here; false where another reward does.
    """

    regret: float = 1.0
    branches_too: bool = True

    def __post_init__(self) -> None:
        TeamReward.__post_init__(self)
        check_number("regret", self.regret, 0)

    def values(self, episode: PlayedEpisode) -> Values:
        branches = self.branches(episode)
        if not branches:
            return _alone(self, episode)
        rights, y = self.rights(episode, branches), self.final(episode)
        answers = [i for i, turn in enumerate(episode.turns) if turn["step"] == self.answer_step]
        values = self.to(episode, answers[-1:], y - self.regret * (max(rights) - y))
        mine = set(episode.trainable())
        for branch, right in zip(branches, rights, strict=True):
            if self.branches_too and branch.result in mine and values[branch.result] is None:
                values[branch.result] = right
        return values


@dataclass(frozen=True, slots=True)
class CoordinationCost(TeamReward):
    """Every turn: minus `cost` times the share of response tokens that coordinate.

    These are all that neither a branch nor the turn of the team's answer sampled: plans, briefs, messages,
    verdicts. An episode without a sampled token has no share, and no value.
    """

    cost: float = 0.1

    def __post_init__(self) -> None:
        TeamReward.__post_init__(self)
        check_number("cost", self.cost, 0)

    def values(self, episode: PlayedEpisode) -> Values:
        share = overhead(episode, self.branches(episode), self.answer_step)
        if share is None:
            return [None] * len(episode.turns)
        return self.to(episode, range(len(episode.turns)), -self.cost * share)


@dataclass(frozen=True, slots=True)
class SpawnBonus(TeamReward):
    """To the deciders: success · min(1, branches / target) · max(0, 1 - iteration / iterations).

    A push towards parallel work early on; it is gone by iteration `iterations`, and a wrong answer never gets
    it, or the team would spawn for its own sake. The iteration is that of the episode's id.

    Options:
        target: branches that earn all of it.
        iterations: until it is 0.
    """

    target: int = 3
    iterations: int = 50

    def __post_init__(self) -> None:
        TeamReward.__post_init__(self)
        check_number("target", self.target, 1)
        check_number("iterations", self.iterations, 1)

    def values(self, episode: PlayedEpisode) -> Values:
        branches = self.branches(episode)
        left = max(0.0, 1 - iteration_of(episode.episode_id) / self.iterations)
        deciders = deciders_of(episode.turns, branches)
        if (
            not deciders
        ):  # nobody was spawned: the bonus of those who could have, which is what it compares with
            inside = {place for branch in branches for place in branch.turns}
            spoken = [i for i, turn in enumerate(episode.turns) if turn["event"] == Event.LLM]
            deciders = tuple(place for place in spoken[:1] if place not in inside)
        value = self.final(episode) * min(1.0, len(branches) / self.target) * left
        return self.to(episode, deciders, value)


_OF_BRANCHES: Final = frozenset(
    ("coverage", "independence", "completion", "overlap", "unused", "regret", "gain_over_majority")
) | {"recovery", "corruption"}


@dataclass(frozen=True, slots=True)
class TeamMeasure(TeamReward):
    """Every turn: one number of how the team worked, for `weight = 0` or an [[evaluate.rewards]].

    Options:
        measure: "work_seconds" and "span_seconds" of the graph of turns; "speedup", work over span;
            "efficiency", speedup over the largest width; "width", the mean number of turns at the same time;
            "branches", their number; the parts of `split_quality`; "regret", what the best branch earns
            beyond the team; "gain_over_majority", what the team earns beyond the verdict of more than half of
            the branches; "recovery", no branch is right and the team is; "corruption", some branch is right
            and the team is not; "overhead", the share of tokens that coordinate.
    """

    measure: Measure = "speedup"

    def __post_init__(self) -> None:
        TeamReward.__post_init__(self)
        refuse_unknown("measure", self.measure, get_args(Measure))

    def values(self, episode: PlayedEpisode) -> Values:
        branches = self.branches(episode)
        if self.measure in _OF_BRANCHES and not branches:
            return _alone(self, episode)
        value = self._value(episode, branches)
        if value is None:
            return [None] * len(episode.turns)
        return self.to(episode, range(len(episode.turns)), value)

    def _value(self, episode: PlayedEpisode, branches: Sequence[Branch]) -> float | None:
        dag = self.dag(episode)
        match self.measure:
            case "branches":
                return float(len(branches))
            case "overhead":
                return overhead(episode, branches, self.answer_step)
            case "work_seconds":
                return dag.work
            case "span_seconds":
                return dag.span
            case "speedup" | "width":  # the mean width is work over span
                return dag.speedup
            case "efficiency":
                return dag.speedup / max(1, dag.max_width)
            case "coverage":
                return coverage_of(self, episode, branches)
            case "independence":
                return independence(branches, dag)
            case "completion":
                return completion(episode.turns, branches)
            case "overlap":
                return overlap(episode.turns, branches)
            case "unused":
                return unused(branches, dag)
        rights, y = self.rights(episode, branches), self.final(episode)
        match self.measure:
            case "regret":
                return max(rights) - y
            case "gain_over_majority":
                return y - float(sum(rights) > len(rights) / 2)
            case "recovery":
                return float(not any(rights) and y > 0)
        return float(any(rights) and y == 0)


def coverage_of(reward: AnswersReward, episode: PlayedEpisode, branches: Sequence[Branch]) -> float:
    """The share of a task's requirements that some branch's result meets."""
    wanted = episode.gold.get("requirements")
    results = [episode.turns[branch.result] for branch in branches]
    if not wanted:
        return max(reward.right(episode, turn) for turn in results)
    if isinstance(wanted, str) or not all(isinstance(text, str) for text in wanted):
        raise ValueError(f"gold.requirements is {wanted!r:.80}; give a list of texts")
    said = [f" {' '.join(qa.normalised(turn['response_text'] or ''))} " for turn in results]
    met = [any(f" {' '.join(qa.normalised(text))} " in text_of for text_of in said) for text in wanted]
    return sum(met) / len(met)


def overhead(episode: PlayedEpisode, branches: Sequence[Branch], answer_step: str) -> float | None:
    """The share of response tokens that neither a branch nor the answer said; None without a token."""
    inside = {place for branch in branches for place in branch.turns}
    said: dict[bool, int] = {True: 0, False: 0}
    for place, turn in enumerate(episode.turns):
        if turn["event"] == Event.LLM:
            coordinates = place not in inside and turn["step"] != answer_step
            said[coordinates] += turn["num_response_tokens"] or 0
    total = said[True] + said[False]
    return said[True] / total if total else None


def iteration_of(episode_id: str) -> int:
    """The iteration in the id of an episode: see `workflows.trajectory.group_id_of`.

    Raises:
        ValueError: the id has none, as in hand-made tables.
    """
    head = episode_id.partition("/")[0].partition(".")[0]
    if not head.isdecimal():
        raise ValueError(f"the id of episode {episode_id!r} does not begin with the number of an iteration")
    return int(head)


def _alone(reward: TeamReward, episode: PlayedEpisode) -> Values:
    """The stated value of an episode without branches."""
    if reward.alone is None:
        return [None] * len(episode.turns)
    return reward.to(episode, range(len(episode.turns)), reward.alone)
