"""An episode's course: who acts when, what leads to what, and which turns decide how long it takes. Pure.

Times are modelled: tokens and calls of tools at stated rates, with as many agents as there is work for. They
say what the shape of the team costs, whatever else the machine did. Nothing of it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pipeline.traces.episode import WORKFLOW, Row, agents_of, sources_of
from workflows.dag import Dag, Rates, in_play
from workflows.vocabulary import Act, Event

Kind = Literal["spawn", "message", "return", "read"]
KINDS: Final[tuple[Kind, ...]] = ("spawn", "message", "return", "read")
_OF_SOURCE: Final[dict[str, Kind]] = {
    Act.SPAWN: "spawn",
    Act.MESSAGE: "message",
    Act.DELEGATE: "message",
    Act.RETURN: "return",
}
_CLOSE: Final = 1e-9  # share of the span below which two times are one


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a turn stands: its agent's lane, when it begins and ends, and how much later it could end."""

    lane: int
    begin: float
    end: float
    slack: float

    @property
    def critical(self) -> bool:
        """Whether the episode would take longer if the turn did."""
        return not self.slack


@dataclass(frozen=True, slots=True)
class Arrow:
    """What leads from one turn to another: a reply that is read, a message, a spawn, or a result."""

    source: int  # turn_index
    target: int
    kind: Kind
    critical: bool  # the second begins when the first ends, and both are critical


@dataclass(frozen=True, slots=True)
class Course:
    """`lanes` are agents in the order of their first turns; `marks` are by turn_index."""

    lanes: tuple[str, ...]
    marks: dict[int, Mark]
    arrows: tuple[Arrow, ...]
    unit: Literal["seconds", "turns"]  # of all times: turns where none has a length
    span: float
    work: float
    width: int  # the most turns that run at the same time


def course_of(turns: Sequence[Row], rates: Rates = Rates()) -> Course:  # noqa: B008 (frozen)
    """The course of an episode's turns, which are in the order of `turn_index`."""
    places = {turn["turn_index"]: place for place, turn in enumerate(turns)}
    sources = [
        [places[s] for s in sources_of(turn) if s in places and places[s] < place]
        for place, turn in enumerate(turns)
    ]
    sources = [sorted({*data, *order}) for data, order in zip(sources, in_play(turns), strict=True)]
    weights = [rates.seconds(turn) for turn in turns]
    timed = any(weights)
    if not timed:  # as in traces that tell no tokens
        weights = [float(turn["event"] != Event.CONTROL) for turn in turns]
    dag = Dag(sources, weights)
    agents = _lanes(turns)
    lanes = list(dict.fromkeys(agents.values()))
    marks = {
        turn["turn_index"]: Mark(lanes.index(agents[turn["turn_index"]]), end - weight, end, slack)
        for turn, weight, end, slack in zip(turns, weights, dag.ends, dag.slack, strict=True)
    }
    arrows = [
        _arrow(turns[source], turn, marks, dag.span)
        for turn, before in zip(turns, sources, strict=True)
        for source in before
    ]
    unit: Literal["seconds", "turns"] = "seconds" if timed else "turns"
    return Course(tuple(lanes), marks, tuple(arrows), unit, dag.span, dag.work, dag.max_width)


def _lanes(turns: Sequence[Row]) -> dict[int, str]:
    """Whose lane each turn is in: its agent's; a call of a tool in a branch is in that of who reads it there,
    so that calls side by side stand side by side."""
    agents = agents_of(turns)
    readers: dict[int, str] = {}
    for turn in turns:
        for source in turn.get("parents") or ():
            readers.setdefault(source, agents[turn["turn_index"]] if turn.get("branch") else "")
    lanes = dict(agents)
    of_trunk = (agents[t["turn_index"]] for t in turns if t.get("role") and not t.get("instance"))
    trunk = next(of_trunk, WORKFLOW)
    spawns = any(turn.get("instance") for turn in turns)
    for turn in turns:
        if spawns and agents[turn["turn_index"]] == WORKFLOW:  # what the trunk waited for, or noted
            lanes[turn["turn_index"]] = trunk
        if turn["event"] == Event.TOOL and turn.get("branch"):
            lanes[turn["turn_index"]] = readers.get(turn["turn_index"]) or agents[turn["turn_index"]]
    return lanes


def _arrow(source: Row, target: Row, marks: dict[int, Mark], span: float) -> Arrow:
    first, second = marks[source["turn_index"]], marks[target["turn_index"]]
    kind: Kind = "read"
    if first.lane != second.lane:
        kind = _OF_SOURCE.get(source.get("act") or "", "message")
    elif target.get("act") == Act.SPAWN and target.get("decided_by") == source["turn_index"]:
        kind = "spawn"
    meets = abs(second.begin - first.end) <= _CLOSE * max(span, _CLOSE)
    return Arrow(
        source["turn_index"], target["turn_index"], kind, first.critical and second.critical and meets
    )
