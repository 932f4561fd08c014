"""Parts of stored tables that players play otherwise: one job for each part, one receipt for each job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from stages.base import Context
from stages.parts import Receipt, map_parts

AT_ONCE: Final = 8  # parts that are played at the same time

Job = TypeVar("Job")


def play_parts(
    context: Context,
    label: str,
    jobs: Mapping[int, Job],
    play: Callable[[Any, Job, float], Receipt],
    stall_seconds: float,
) -> list[Receipt]:
    """The receipts of `play(player, job, stall_seconds)` for all jobs, in their order; players take turns.

    Each is played once, whatever fails; a receipt has the `tokens` that progress tells.
    """
    players = context.fleet.players()

    def play_one(index: int) -> Receipt:
        return play(players[index % len(players)], jobs[index], stall_seconds)

    context.progress.start(label, len(jobs), "part")
    receipts = map_parts(
        play_one,
        list(jobs),
        num_cpus=0.01,
        retries=0,
        concurrency=min(AT_ONCE, len(jobs)),
        on_done=lambda done: context.progress.advance(tokens=done["tokens"]),
    )
    context.progress.finish()
    return receipts
