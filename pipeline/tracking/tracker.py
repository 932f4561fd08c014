"""What a run asks of whoever records it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pipeline.metrics.alarms import Alarm
    from pipeline.tracking.spans import Trace

Files = Mapping[str, bytes]


class Tracker(Protocol):
    """Where a run is recorded. No method raises for what the tracker's back end does."""

    def start(
        self,
        run_name: str,
        run_id: str | None,
        settings: Mapping[str, Any],
        tags: Mapping[str, str],
        key: str | None = None,
        wait: bool = True,
    ) -> str | None:
        """Begin or continue the record; its id, to be kept, or None where there is none (yet)."""
        ...

    def log_iteration(
        self,
        iteration: int,
        metrics: Mapping[str, float],
        files: Callable[[], Files] | None = None,
        at: float | None = None,
        alarms: Sequence[Alarm] | None = None,
        traces: Callable[[], Sequence[Trace]] | None = None,
        note: Callable[[], str] | None = None,
    ) -> bool:
        """Record one iteration; True if all of it is there now. `at` is its time, epoch seconds."""
        ...

    def log_evaluation(
        self,
        split: str,
        step: int,
        metrics: Mapping[str, float],
        files: Callable[[], Files] | None = None,
        at: float | None = None,
        traces: Callable[[], Sequence[Trace]] | None = None,
    ) -> bool:
        """Record one evaluation at the number of iterations that were finished before it."""
        ...

    def log_files(self, folder: str, files: Files) -> bool:
        """Store files by name in a folder of the record; True if all of them are there now."""
        ...

    def link(self) -> str | None:
        """How to look at the record, for people."""
        ...

    def close(self, failed: bool = False) -> None:
        """Say that the run has ended for now."""
        ...


class NoTracker:
    """Records nothing."""

    def start(self, *_: Any, **__: Any) -> None:
        return None

    def log_iteration(self, *_: Any, **__: Any) -> bool:
        return False

    def log_evaluation(self, *_: Any, **__: Any) -> bool:
        return False

    def log_files(self, *_: Any, **__: Any) -> bool:
        return False

    def link(self) -> None:
        return None

    def close(self, failed: bool = False) -> None:
        pass
