"""Rewards and credit methods by name or import path."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, Final

from rewards.base import Credit, Reward
from workflows.errors import UsageError
from workflows.loading import load_object, load_plugin

BUILTIN_REWARDS: Final = {
    "token_f1": "rewards.token_f1:TokenF1",
    "format": "rewards.format:Format",
}
BUILTIN_CREDIT: Final = {
    "group_relative": "rewards.credit.group_relative:GroupRelative",
}


def load_reward(use: str, options: Mapping[str, Any]) -> Reward:
    """The reward that `use` names: a built-in, or `package.module:name`.

    The name is a class or a function that is called with the options and gives a reward, or a plain
    function of `episode` (and options), which is a reward already.

    Raises:
        UsageError: it can't be found, does not take these options, or is no reward.
    """
    reward: Reward = _load(use, options, BUILTIN_REWARDS, "reward", "episode")
    return reward


def load_credit(use: str, options: Mapping[str, Any]) -> Credit:
    """The credit method that `use` names: a built-in, or `package.module:name`.

    As for rewards, with a plain function of `turns`.

    Raises:
        UsageError: it can't be found, does not take these options, or is no credit method.
    """
    method: Credit = _load(use, options, BUILTIN_CREDIT, "credit", "turns")
    return method


def _load(use: str, options: Mapping[str, Any], builtins: Mapping[str, str], kind: str, takes: str) -> Any:
    found = load_object(use) if ":" in use else None
    if inspect.isfunction(found) and next(iter(inspect.signature(found).parameters), None) == takes:
        try:
            inspect.signature(found).bind(None, **options)
        except TypeError as error:
            raise UsageError(f"{kind} {use!r} does not take options {dict(options)}: {error}") from error
        return functools.partial(found, **options)
    plugin = load_plugin(use, options, builtins, kind)
    if not callable(plugin):
        raise UsageError(
            f"{kind} {use!r} gives a {type(plugin).__name__}, which can't be called with {takes}; "
            f"see rewards.base"
        )
    return plugin
