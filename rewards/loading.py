"""Rewards and credit methods by name or import path."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from rewards.base import Credit, Reward
from workflows.errors import UsageError
from workflows.plugins import first_parameter, load_object, load_plugin

BUILTIN_REWARDS: Final = {
    "token_f1": "rewards.token_f1:TokenF1",
    "exact_match": "rewards.exact_match:ExactMatch",
    "f1_by_round": "rewards.f1_by_round:F1ByRound",
    "format": "rewards.format:Format",
    "judge": "rewards.judge:Judge",
    "learned": "rewards.learned:Learned",
    "length": "rewards.length:Length",
    "pass_rate_by_round": "rewards.pass_rate_by_round:PassRateByRound",
    "math_correct": "rewards.math_correct:MathCorrect",
    "branch_right": "rewards.team_answers:BranchRight",
    "final_right": "rewards.team_answers:FinalRight",
    "satisfied": "rewards.team_answers:Satisfied",
    "branch_measure": "rewards.team_answers:BranchMeasure",
    "team_right": "rewards.team_answers:TeamRight",
    "right_by_role": "rewards.team_answers:RightByRole",
    "right_rubric": "rewards.team_answers:RightRubric",
    "parallel_speedup": "rewards.orchestration:ParallelSpeedup",
    "split_quality": "rewards.orchestration:SplitQuality",
    "aggregation_quality": "rewards.orchestration:AggregationQuality",
    "coordination_cost": "rewards.orchestration:CoordinationCost",
    "spawn_bonus": "rewards.orchestration:SpawnBonus",
    "game_score": "rewards.game_score:GameScore",
    "reasoning_gym": "rewards.reasoning_gym:ReasoningGym",
    "team_measure": "rewards.orchestration:TeamMeasure",
}
BUILTIN_CREDIT: Final = {
    "group_relative": "rewards.credit.group_relative:GroupRelative",
    "dr_grpo": "rewards.credit.group_relative:GroupRelative",
    "grpo": "rewards.credit.grpo:Grpo",
    "rloo": "rewards.credit.rloo:Rloo",
    "opo": "rewards.credit.opo:Opo",
    "remax": "rewards.credit.remax:Remax",
    "reinforce_pp": "rewards.credit.reinforce_pp:ReinforcePP",
    "rank_normal": "rewards.credit.rank_normal:RankNormal",
    "running_baseline": "rewards.credit.running_baseline:RunningBaseline",
    "rejection": "rewards.credit.rejection:Rejection",
    "none": "rewards.credit.none:NoAdvantage",
}


def load_reward(use: str, options: Mapping[str, Any]) -> Reward:
    """The reward that `use` names: a built-in, or `package.module:name`.

    The name is a class or a function that is called with the options and gives a reward, or anything that
    is called with `episode` (and options), which is a reward already: a function, a partial, a bound method,
    an instance.

    Raises:
        UsageError: it can't be found, does not take these options, or is not a reward.
    """
    reward: Reward = _load(use, options, BUILTIN_REWARDS, "reward", "episode")
    return reward


def reward_takes(use: str, option: str) -> bool:
    """Whether the reward that `use` names has such an option. False for what can't be loaded."""
    try:
        return option in inspect.signature(load_object(BUILTIN_REWARDS.get(use, use))).parameters
    except (UsageError, TypeError, ValueError):
        return False


def load_credit(use: str, options: Mapping[str, Any]) -> Credit:
    """The credit method that `use` names: a built-in, or `package.module:name`.

    As for rewards, with `turns` in the place of `episode`.

    Raises:
        UsageError: it can't be found, does not take these options, or is not a credit method.
    """
    method: Credit = _load(use, options, BUILTIN_CREDIT, "credit", "turns")
    return method


def _load(use: str, options: Mapping[str, Any], builtins: Mapping[str, str], kind: str, takes: str) -> Any:
    named = load_object(use) if ":" in use else None
    if callable(named) and not inspect.isclass(named):
        first = first_parameter(named)
        if first == takes:
            return _with_options(named, use, options, kind)
        if first is not None and first not in options and _is_needed(named, first):
            raise UsageError(
                f"{kind} {use!r} needs {first!r} first; a function that is a {kind} itself calls its first "
                f"parameter {takes!r}, and one that makes a {kind} takes options alone: set "
                f"options.{first}, or rename the parameter"
            )
    plugin = load_plugin(use, options, builtins, kind)
    if not callable(plugin):
        raise UsageError(
            f"{kind} {use!r} gives a {type(plugin).__name__}, which can't be called with {takes}; "
            f"see rewards.base"
        )
    return plugin


def _with_options(function: Callable[..., Any], use: str, options: Mapping[str, Any], kind: str) -> Any:
    """A function that is a plug-in itself, with its options filled in."""
    try:
        inspect.signature(function).bind(None, **options)
    except TypeError as error:
        raise UsageError(f"{kind} {use!r} does not take options {dict(options)}: {error}") from error
    # an object keeps its hooks where nothing is filled in
    return functools.partial(function, **options) if options or inspect.isfunction(function) else function


def _is_needed(function: Callable[..., Any], name: str) -> bool:
    parameter = inspect.signature(function).parameters[name]
    return parameter.default is parameter.empty
