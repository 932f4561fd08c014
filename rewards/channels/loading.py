"""Channels by name or import path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rewards.channels.base import Channel
from workflows.errors import UsageError
from workflows.plugins import load_plugin

BUILTIN_CHANNELS: Final = {
    "credit": "rewards.channels.units:FromCredit",
    "outcome": "rewards.channels.units:Outcome",
    "siblings": "rewards.channels.units:Siblings",
    "tool_calls": "rewards.channels.units:ToolCalls",
    "critical_path": "rewards.channels.paths:CriticalPath",
    "shapley": "rewards.channels.paths:Shapley",
    "surprise": "rewards.channels.paths:Surprise",
    "message": "rewards.channels.replayed:Message",
    "shapley_replayed": "rewards.channels.replayed:ShapleyReplayed",
    "difference": "rewards.channels.replayed:Difference",
    "stop": "rewards.channels.replayed:Stop",
}


def load_channel(use: str, options: Mapping[str, Any]) -> Channel:
    """The channel that `use` names: a built-in, or `package.module:Class`.

    Raises:
        UsageError: it can't be found, does not take these options, or can't be called with frames.
    """
    channel = load_plugin(use, options, BUILTIN_CHANNELS, "channel")
    if not callable(channel):
        raise UsageError(
            f"channel {use!r} gives a {type(channel).__name__}, which can't be called with frames; see "
            "rewards.channels.base"
        )
    made: Channel = channel
    return made
