"""Optional hooks of plug-ins: each is declared with its default in one mixin, and asked for by one name.

A tool, a parser, a reward, a credit method or an engine may be any object, a plain function too. What it
may say and do beyond its one call stands in a mixin: `ToolHooks`, `workflows.parsers.ParserHooks`,
`workflows.engine.EngineHooks`, `rewards.base.RewardHooks`, `rewards.base.CreditHooks`. A class may inherit
from its mixin, or have some of the methods and attributes, or none: `hooks_of` answers for all three.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Mapping
from typing import Any, ClassVar, TypeVar

H = TypeVar("H")


class ToolHooks:
    """What a tool may say and do beyond being called; the defaults of tools that do not.

    A class of tools may inherit from it. Any other tool, a plain function too, may have some of these
    attributes and methods, or none: `hooks_of` reads them.
    """

    __slots__ = ()
    OLD_NAMES: ClassVar[Mapping[str, str]] = {"check_ready": "check"}

    keeps_time: bool = False
    """Whether each call bounds itself, on a clock of its own (as the code judge does by CPU time, so that a
    verdict does not depend on how busy the machine is); the player's `tool_timeout_seconds` then does not
    count."""

    deterministic: bool = False
    """Whether equal requests give equal results, and a call changes nothing. A replay of a stored episode
    then takes the stored result, as JSON has it, instead of a second call."""

    one_episode: bool = False
    """Whether each episode has one of its own: a game, a session on a machine. The tool is then called with a
    seed of the episode, before the episode's first request, and gives what answers its requests: a plain
    function, asked in threads, one request at a time. If that has `close()`, it is called once at the
    episode's end, whatever the end is. Its results depend on the requests before, so a replay makes them
    again."""

    def check_ready(self) -> None:
        """Called before a run starts.

        Raises:
            UsageError: what can't work here, and what to do about it.
        """

    def start(self) -> Awaitable[None] | None:
        """Called once in each player, to load what is heavy; may be an async function."""
        return None


def hooks_of(plugin: object, mixin: type[H]) -> H:
    """The hooks of `plugin` as `mixin` declares them: its own where it has them, else the defaults.

    A mixin may have `OLD_NAMES`, a mapping from a hook to its name in version 0.1. A plug-in that has the
    hook by its old name alone is asked by that name, with a note.
    """
    old_names: Mapping[str, str] = getattr(mixin, "OLD_NAMES", {})
    if isinstance(plugin, mixin) and not any(hasattr(plugin, old) for old in old_names.values()):
        return plugin
    names = {}
    for name in vars(mixin):
        if name.startswith("_") or name == "OLD_NAMES":
            continue
        old = old_names.get(name)
        if _has(plugin, name, mixin):
            names[name] = name
        elif old is not None and hasattr(plugin, old):
            kind = getattr(plugin, "__qualname__", type(plugin).__qualname__)
            note = f"{kind}.{old} is read as {name}, its name now; rename it before version 0.3"
            warnings.warn(note, stacklevel=2)
            names[name] = old
    return _view(plugin, mixin, names)


def _has(plugin: object, name: str, mixin: type) -> bool:
    """Whether a plug-in has a hook that is not the mixin's default."""
    if not hasattr(plugin, name):
        return False
    inherited = getattr(type(plugin), name, None) is getattr(mixin, name)
    return not (isinstance(plugin, mixin) and inherited)


def _view(plugin: object, mixin: type[H], names: Mapping[str, str]) -> H:
    """An object of the mixin's type that takes these of its hooks from the plug-in, by the names given."""

    def taken(name: str) -> property:
        return property(lambda _: getattr(plugin, name))

    hooks: dict[str, Any] = {name: taken(theirs) for name, theirs in names.items()}
    view: H = type(mixin.__name__, (mixin,), hooks)()
    return view
