"""How far a stage is, with rates: a live bar on a terminal, a plain line every ten seconds elsewhere.

Progress goes to stderr, so that `--json` output stays clean.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from pipeline.views.render import number, visible
from stages.base import Progress

WINDOW_SECONDS: Final = 30.0  # rates are those of the last half minute
LINE_SECONDS: Final = 10.0  # between two plain lines


class Meter:
    """Amounts over time, and their rate in the last `WINDOW_SECONDS`.

    `clock` gives seconds and never goes back; `started` is when it began, by default now.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, started: float | None = None) -> None:
        self._clock = clock
        self._started = clock() if started is None else started
        self._points: deque[tuple[float, float]] = deque([(self._started, 0.0)])  # time, total by then
        self.total = 0.0

    def add(self, amount: float) -> None:
        self.total += amount
        self._points.append((self._clock(), self.total))
        self._forget()

    def rate(self) -> float | None:
        """Per second; None before any time has passed."""
        self._forget()
        since, before = self._points[0]
        elapsed = self._clock() - since
        return (self.total - before) / elapsed if elapsed > 0 else None

    def mean(self) -> float | None:
        """Per second since the start; None before any time has passed."""
        elapsed = self._clock() - self._started
        return self.total / elapsed if elapsed > 0 else None

    def _forget(self) -> None:
        # the newest point outside the window stays: it is where the window's rate begins
        horizon = self._clock() - WINDOW_SECONDS
        while len(self._points) > 1 and self._points[1][0] <= horizon:
            self._points.popleft()


class RichProgress:
    """`stages.base.Progress` for people. Any thread may call it; a stage without a unit has only a time.

    `advance(amount, **rates)` counts `amount` of the stage's unit and, by name, of anything else:
    `advance(1, tokens=96)` shows episodes/s and tokens/s. Starting a stage ends the one before.

    Args:
        brief_seconds: a stage that is done sooner leaves no line: for trainings of many short
            iterations, which have a line of their own each.
        forecast: seconds that are left, where the caller knows better than the rate of the last half minute;
            it gives None while there is nothing to go by.
    """

    def __init__(
        self,
        file: IO[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        brief_seconds: float = 0.0,
        forecast: Callable[[], float | None] | None = None,
    ) -> None:
        self._forecast = forecast
        self._brief_seconds = brief_seconds
        self._console = Console(file=file or sys.stderr, highlight=False)
        self._clock = clock
        self._lock = threading.RLock()
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._label = ""  # of the stage that runs; empty between stages

    def start(self, label: str, total: int | None, unit: str) -> None:
        with self._lock:
            self.finish()
            self._label, self._total, self._unit = visible(label), total, unit
            self._meters = {unit: Meter(self._clock)}
            self._started = self._said = self._clock()
            if self._console.is_terminal:
                self._start_bar()
            elif not self._brief_seconds:
                size = f": {_count(total, unit)}" if total is not None else ""
                self._say(f"{self._label}{size}")

    def advance(self, amount: int = 1, **rates: float) -> None:
        with self._lock:
            if not self._label:
                return
            self._meters[self._unit].add(amount)
            for name, value in rates.items():
                self._meters.setdefault(name, Meter(self._clock, self._started)).add(value)
            if self._bar is not None and self._task is not None:
                self._bar.update(self._task, completed=self._meters[self._unit].total, rates=self._rates())
            elif self._clock() - self._said >= LINE_SECONDS:
                self._said = self._clock()
                self._say(f"{self._label}: {self._state()}")

    def finish(self) -> None:
        """End the stage and leave one line that says how much was done, how fast. Repeats do nothing."""
        with self._lock:
            if not self._label:
                return
            if self._bar is not None:
                self._bar.stop()
                self._bar = self._task = None
            seconds = f"{self._clock() - self._started:.1f} s"
            if self._unit:
                rates = "".join(f", {text}" for text in self._mean_rates())
                seconds = f"{_count(self._meters[self._unit].total, self._unit)} in {seconds}{rates}"
            if self._clock() - self._started >= self._brief_seconds:
                self._say(f"{self._label}: {seconds}")
            self._label = ""

    def say(self, line: str) -> None:
        """Print one line; a stage goes on under it."""
        with self._lock:
            self._say(visible(line))

    def print_line(self, line: str) -> None:
        """Print one line between two stages."""
        with self._lock:
            self.finish()
            self._say(visible(line))

    def _start_bar(self) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rates]}", markup=False),
            TimeElapsedColumn(),
        )
        # transient: the line of `finish` takes the bar's place
        self._bar = Bar(*columns, console=self._console, transient=True, refresh_per_second=4)
        self._task = self._bar.add_task(self._label, total=self._total, rates="")
        self._bar.start()

    def _state(self) -> str:
        done = self._meters[self._unit].total
        if self._total is None:
            return f"{_count(done, self._unit)}  {self._rates()}".rstrip()
        return f"{number(done)}/{_count(self._total, self._unit)}  {self._rates()}".rstrip()

    def _rates(self) -> str:
        texts = [f"{number(r)} {n}/s" for n, r in self._each(lambda meter: meter.rate())]
        if (left := self._left()) is not None:
            texts.append(f"about {duration(left)} left" if self._forecast else f"{duration(left)} left")
        return "  ".join(texts)

    def _left(self) -> float | None:
        """Seconds until all is done; None where nothing says."""
        if self._forecast is not None:
            return self._forecast()
        rate = self._meters[self._unit].rate()
        if self._total is None or not rate:
            return None
        return max(0.0, self._total - self._meters[self._unit].total) / rate

    def _mean_rates(self) -> list[str]:
        return [f"{number(r)} {n}/s" for n, r in self._each(lambda meter: meter.mean())]

    def _each(self, rate_of: Callable[[Meter], float | None]) -> list[tuple[str, float]]:
        rates = ((n if n != self._unit else f"{n}s", rate_of(m)) for n, m in self._meters.items() if n)
        return [(name, rate) for name, rate in rates if rate is not None]

    def _say(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


def _count(number_of: float, unit: str) -> str:
    plural = "s" if unit and number_of != 1 else ""
    return f"{number(number_of)} {unit}{plural}".rstrip()


def duration(seconds: float) -> str:
    """`42 s`, `3:07` (minutes) or `2:03:07` (hours)."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@dataclass(frozen=True, slots=True)
class Named:
    """A progress whose labels begin with a name: `iteration 3: credit`."""

    progress: Progress
    name: str

    def start(self, label: str, total: int | None, unit: str) -> None:
        self.progress.start(f"{self.name}: {label}", total, unit)

    def advance(self, amount: int = 1, **rates: float) -> None:
        self.progress.advance(amount, **rates)

    def finish(self) -> None:
        self.progress.finish()

    def say(self, line: str) -> None:
        self.progress.say(f"{self.name}: {line}")
