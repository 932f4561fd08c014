"""Rewards and credit methods by name or import path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rewards.base import Credit, Reward
from workflows.loading import load_plugin

BUILTIN_REWARDS: Final = {
    "token_f1": "rewards.token_f1:TokenF1",
    "format": "rewards.format:Format",
}
BUILTIN_CREDIT: Final = {
    "group_relative": "rewards.credit.group_relative:GroupRelative",
}


def load_reward(use: str, options: Mapping[str, Any]) -> Reward:
    """The reward that `use` names: a built-in, or `package.module:name`.

    Raises:
        UsageError: it can't be found, or does not take these options.
    """
    reward: Reward = load_plugin(use, options, BUILTIN_REWARDS, "reward")
    return reward


def load_credit(use: str, options: Mapping[str, Any]) -> Credit:
    """The credit method that `use` names: a built-in, or `package.module:name`.

    Raises:
        UsageError: it can't be found, or does not take these options.
    """
    method: Credit = load_plugin(use, options, BUILTIN_CREDIT, "credit method")
    return method
