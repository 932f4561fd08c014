"""The tracker of a run, and the values that it takes: a record of each iteration or evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pipeline.metrics.signs import Alarm
    from pipeline.tracking.spans import Trace

Files = Mapping[str, bytes]  # by name


@dataclass(frozen=True, slots=True)
class Contents:
    """What stands beside the numbers of a record: files, episodes as traces, and a note.

    The note is Markdown and becomes the description of the whole run; None leaves the one that is there.
    """

    files: Files = field(default_factory=dict)
    traces: Sequence[Trace] = ()
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a record says of its settings.

    Args:
        given: nested; the settings that were set, each a parameter of its own.
        named: what people compare runs by, such as the regime; parameters too, whether set or not.
        whole: all settings, nested: one that changes later is noted though it was at its default.
        file: all settings as TOML, kept as a file.
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)
    whole: Mapping[str, Any] | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """One iteration as it is recorded.

    Args:
        index: of the iteration, which is also its step.
        metrics: numbers by name; the others are left out.
        at: when it ended, in seconds since the epoch; None: now.
        alarms: those that hold at this iteration; None leaves the ones that are recorded.
        contents: makes what stands beside the numbers, and is called only where it is needed.
    """

    index: int
    metrics: Mapping[str, float]
    at: float | None = None
    alarms: Sequence[Alarm] | None = None
    contents: Callable[[], Contents] = Contents


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """One evaluation on a split, after `index` iterations; the rest as in `IterationRecord`. `redone` is how
    often it was made again: what it was before stays in the tracker's history."""

    split: str
    index: int
    metrics: Mapping[str, float]
    at: float | None = None
    contents: Callable[[], Contents] = Contents
    redone: int = 0


class Tracker(Protocol):
    """Where a run is recorded. No method raises for what the tracker's back end does."""

    def start(
        self,
        run_name: str,
        run_id: str | None,
        settings: Mapping[str, Any] | Parameters,
        tags: Mapping[str, str],
        key: str | None = None,
        wait: bool = True,
    ) -> str | None:
        """Begin or continue the record; its id, to be kept, or None where there is none (yet)."""
        ...

    def log_iteration(self, record: IterationRecord) -> bool:
        """Record one iteration; True if all of it is there now."""
        ...

    def log_evaluation(self, record: EvaluationRecord) -> bool:
        """Record one evaluation; True if all of it is there now."""
        ...

    def log_files(self, folder: str, files: Files) -> bool:
        """Store files by name in a folder of the record; True if all of them are there now."""
        ...

    def link(self) -> str | None:
        """How to look at the record, for people."""
        ...

    def runs_link(self, key: str | None) -> str | None:
        """How to look at all training runs beside each other, as the view of this key shows them."""
        ...

    def close(self, failed: bool = False) -> None:
        """Say that the run has ended for now."""
        ...


class NoTracker:
    """A tracker that records nothing."""

    def start(self, *_: Any, **__: Any) -> None:
        return None

    def log_iteration(self, record: IterationRecord) -> bool:
        return False

    def log_evaluation(self, record: EvaluationRecord) -> bool:
        return False

    def log_files(self, folder: str, files: Files) -> bool:
        return False

    def link(self) -> None:
        return None

    def runs_link(self, key: str | None) -> None:
        return None

    def close(self, failed: bool = False) -> None:
        pass
