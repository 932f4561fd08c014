"""An episode's course for a terminal: a line for each agent, its turns as bars in modelled time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from pipeline.store.episodes import Row
from pipeline.traces.course import Course, course_of
from pipeline.views.render import number, visible

WIDTH: Final = 56  # characters of the bars
NAMES: Final = 18
MOST_LANES: Final = 24
_CRITICAL, _OTHER, _MOMENT = "█", "▒", "◆"


def course_lines(turns: Sequence[Row]) -> Text | None:
    """Lanes of agents in modelled time, full where a turn is on the critical path, ◆ where it takes no time.

    None where a single agent acts: its turns stand below each other anyway.
    """
    course = course_of(sorted(turns, key=lambda turn: turn["turn_index"]))
    if len(course.lanes) < 2 or not course.span:
        return None
    text = Text()
    for lane, name in enumerate(course.lanes[:MOST_LANES]):
        text.append(f"{_short(name):>{NAMES}} ", "dim").append(_bars(course, lane)).append("\n")
    if len(course.lanes) > MOST_LANES:
        text.append(f"{'…':>{NAMES}} {len(course.lanes) - MOST_LANES} more agents\n", "dim")
    unit = "s modelled" if course.unit == "seconds" else "turns"
    path = f"critical path {number(course.span)} of {number(course.work)} {unit}"
    return text.append(f"{'':>{NAMES}} {_CRITICAL} {path}, at most {course.width} at a time", "dim")


def _bars(course: Course, lane: int) -> Text:
    cells = [" "] * (WIDTH + 1)
    scale = WIDTH / course.span
    for mark in sorted(course.marks.values(), key=lambda m: (m.critical, m.end == m.begin)):
        if mark.lane != lane:
            continue
        first = min(WIDTH, int(mark.begin * scale))
        if mark.end == mark.begin:
            cells[first] = _MOMENT
            continue
        last = max(first + 1, min(WIDTH, round(mark.end * scale)))
        cells[first:last] = (_CRITICAL if mark.critical else _OTHER) * (last - first)
    return Text("".join(cells).rstrip())


def _short(name: str) -> str:
    name = visible(name)
    return name if len(name) <= NAMES else f"{name[: NAMES - 1]}…"
