"""Waiting for Ray, in one place: in slices, with a limit, and with a name for what is waited for.

A wait in slices lets a stop by a signal through, whatever the actor does that is waited for; a limit ends
a wait for something that never comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from workflows.errors import RunFailed

SLICE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """How long each kind of wait may take, in seconds; the names are those of the settings in [cluster]."""

    engine_start_seconds: float = 600.0
    player_start_seconds: float = 600.0
    engine_call_seconds: float = 600.0  # new weights, sleep, wake
    player_call_seconds: float = 300.0  # a sign of life, new versions


LIMITS: Final = Limits()


class Overdue(RunFailed):
    """A wait has reached its limit; `unfinished` are the positions of the references without an answer."""

    def __init__(self, message: str, unfinished: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.unfinished = tuple(unfinished)


def answers(
    references: Sequence[Any],
    what: str,
    seconds: float,
    *,
    setting: str | None = None,
    tick: Callable[[], None] | None = None,
) -> list[Any]:
    """The answers of all references, in their order; the first that fails ends the wait.

    Args:
        references: of Ray.
        what: what is waited for, for the message: "the start of engine 'team'".
        seconds: the limit.
        setting: its name in the settings, for the message.
        tick: called after every slice without an answer.

    Raises:
        Overdue: the limit has passed; it names what was waited for, and the setting.
        ray.exceptions.RayError: as the reference failed.
    """
    import ray

    began, waiting = time.monotonic(), list(references)
    while waiting:
        left = began + seconds - time.monotonic()
        done, waiting = ray.wait(waiting, timeout=max(0.0, min(left, SLICE_SECONDS)))
        if done:
            ray.get(done)  # raises what failed
        elif left <= 0:
            raise _overdue(references, waiting, what, seconds, setting)
        elif tick is not None:
            tick()
    return list(ray.get(list(references)))


def answer(reference: Any, what: str, seconds: float, *, setting: str | None = None) -> Any:
    """The answer of one reference; see `answers`."""
    return answers([reference], what, seconds, setting=setting)[0]


def came(reference: Any, seconds: float) -> bool:
    """Whether an answer, or a failure, has come within some seconds."""
    import ray

    ends = time.monotonic() + seconds
    while True:
        left = max(0.0, ends - time.monotonic())
        if ray.wait([reference], timeout=min(left, SLICE_SECONDS))[0]:
            return True
        if not left:
            return False


def _overdue(
    references: Sequence[Any], waiting: Sequence[Any], what: str, seconds: float, setting: str | None
) -> Overdue:
    remedy = f"; raise {setting} if it only needs more time" if setting else ""
    return Overdue(
        f"{what} did not finish within {seconds:g} s{remedy}", [list(references).index(w) for w in waiting]
    )
