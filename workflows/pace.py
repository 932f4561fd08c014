"""How long calls take where plays of one team run side by side: which of them is first depends on it alone.

- `logical`: each call of a role or tool takes one tick, whatever it says. Which play is first is known before
  any reply is.
- `modelled`: a call takes as long as its tokens do at stated rates. A play that thinks long comes late, on
  every machine alike.
- `clock`: what really comes first is first. Each event gets the next number, which its row keeps in
  `modelled_at`, so that a replay takes the same course; two plays of one task may differ.

By the first two an episode is the same in whatever order replies come back. The price is waiting: where a
play could still be ended by its spawner, it does not run ahead of what the spawner may decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Final

from workflows.errors import WorkflowError, did_you_mean

ORDERS: Final = ("logical", "modelled", "clock")


@dataclass(frozen=True, slots=True)
class Pace:
    """Which order holds, and the rates of the modelled one.

    Args:
        order: an entry of `ORDERS`.
        prompt_tokens_per_second, response_tokens_per_second: of one call.
        tool_seconds: of one call of a tool.
        message_seconds: until a message arrives; in ticks, one.

    Raises:
        WorkflowError: an unknown order, or a rate that is not a finite number above 0.
    """

    order: str = "logical"
    prompt_tokens_per_second: float = 2000.0
    response_tokens_per_second: float = 50.0
    tool_seconds: float = 1.0
    message_seconds: float = 0.01

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise WorkflowError(
                f"order is {self.order!r}{did_you_mean(str(self.order), ORDERS)}; use one of "
                f"{', '.join(ORDERS)}"
            )
        for each in fields(self)[1:]:
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise WorkflowError(f"{each.name} must be a finite number above 0, got {value!r}")

    @property
    def least(self) -> float:
        """The shortest that a call can take."""
        if self.order == "modelled":
            return min(1 / self.response_tokens_per_second, self.tool_seconds)
        return 1.0

    @property
    def latency(self) -> float:
        """How long a message is under way."""
        return {"logical": 1.0, "modelled": self.message_seconds, "clock": 0.5}[self.order]

    def lasts(self, prompt_tokens: int, response_tokens: int, is_tool: bool) -> float:
        """How long a call takes, in modelled seconds or ticks."""
        if self.order != "modelled":
            return 1.0
        if is_tool:
            return self.tool_seconds
        prompt = prompt_tokens / self.prompt_tokens_per_second
        return prompt + max(1, response_tokens) / self.response_tokens_per_second


@dataclass(frozen=True, slots=True)
class Budget:
    """What one spawned play may use: response tokens, turns (calls of roles and tools), and time by its pace.

    It counts the play's own calls and those of plays that it has joined. None sets no limit. A reply is cut
    off where the tokens end, and the first call after that ends the play.

    Raises:
        WorkflowError: a limit that is not a number above 0.
    """

    tokens: int | None = None
    turns: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and (isinstance(value, bool) or not 0 < value < math.inf):
                raise WorkflowError(f"budget: {each.name} must be a number above 0, or None; got {value!r}")

    def as_dict(self) -> dict[str, float]:
        """The limits that are set."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None}


@dataclass(frozen=True, slots=True)
class Spawning:
    """What plays of a workflow may spawn.

    Args:
        max_depth: 1: the trunk alone spawns; 2: those that it spawned may, too.
        max_width: how many plays of one spawner may be under way: spawned, and not yet joined or cancelled.
        pace: who is first.

    Raises:
        WorkflowError: a limit below 1.
    """

    max_depth: int = 1
    max_width: int = 8
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        for name in ("max_depth", "max_width"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise WorkflowError(f"{name} must be a whole number of at least 1, got {value!r}")
