"""The parts of a declared graph: steps that call a role or a tool or compute, and the edges between them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from workflows.state import State
from workflows.vocabulary import Event

Source = str | Callable[[State], Any]
"""Where an input comes from: a dotted path (`task.question`, `item`, `<step>.<key>`) or a function."""

Tool = Callable[[Any], Any] | Callable[[Any], Awaitable[Any]]
"""`await tool(request)` gives a JSON value. A plain function runs in a thread.

Raises `ToolRefusal` for a request that is the policy's fault, `InfraError` for a failure that is worth a
retry. A plain function needs a time limit of its own where it may hang: a thread can't be stopped, and is
counted and kept apart when its call is given up. Tools are built in each player. What a tool may say and do
beyond being called: see `workflows.hooks.ToolHooks`.
"""


@dataclass(frozen=True, slots=True)
class LlmStep:
    """One call of a role. `inputs` gives each variable of the role's prompt, by name."""

    event: ClassVar[Event] = Event.LLM

    name: str
    role: str
    inputs: Mapping[str, Source]
    for_each: Callable[[State], Sequence[Any]] | None = field(default=None, kw_only=True)
    same_branch: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class ToolStep:
    """One call of a tool with what `request` returns (a JSON value)."""

    event: ClassVar[Event] = Event.TOOL

    name: str
    tool: str
    request: Callable[[State], Any]
    for_each: Callable[[State], Sequence[Any]] | None = field(default=None, kw_only=True)
    same_branch: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class ControlStep:
    """A pure function of the state, for example building a context. Its value must be JSON."""

    event: ClassVar[Event] = Event.CONTROL

    name: str
    compute: Callable[[State], Any]
    for_each: Callable[[State], Sequence[Any]] | None = field(default=None, kw_only=True)
    same_branch: bool = field(default=False, kw_only=True)


Step = LlmStep | ToolStep | ControlStep


@dataclass(frozen=True, slots=True)
class Edge:
    """`target` follows `source` where `when` holds (None: always). With a `limit` it leads back."""

    source: str
    target: str
    when: Callable[[State], bool] | None = None
    limit: int | None = None
