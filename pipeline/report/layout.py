"""Where the steps and edges of a graph go on paper: in columns, left to right.

A step stands one column after the last of those before it. Edges that pass a column get a place in it,
so they run between the steps there, not through them; places within a column are ordered by where
their neighbours are (the barycentre heuristic of Sugiyama, Tagawa and Toda, 1981).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Final

WIDTH: Final = 172  # of a step's box, in pixels
HEIGHT: Final = 50
COLUMN_GAP: Final = 70  # at least
ROW_GAP: Final = 26
BEND: Final = 34  # how far below everything the first edge that leads back runs
_SWEEPS: Final = 4

Point = tuple[float, float]
_Place = str | tuple[int, int]  # a step, or edge number and column where a long edge passes


@dataclass(frozen=True, slots=True)
class Layout:
    """Centres of the steps' boxes, and for each edge the points that it goes through, ends included.

    The edges whose numbers are in `back` lead back, through four points: the middle two below all boxes.
    """

    width: float
    height: float
    centres: Mapping[str, Point]
    paths: Sequence[Sequence[Point]]
    back: frozenset[int]


def lay_out(steps: Sequence[str], edges: Sequence[tuple[str, str]], column_gap: float = COLUMN_GAP) -> Layout:
    """Lay out `steps`, given so that a step comes after those before it. An edge to an earlier step, or
    to itself, leads back."""
    rank = {step: i for i, step in enumerate(steps)}
    forward = [i for i, (source, target) in enumerate(edges) if rank[source] < rank[target]]
    column = dict.fromkeys(steps, 0)
    for step in steps:
        for source, target in (edges[i] for i in forward):
            if target == step:
                column[step] = max(column[step], column[source] + 1)
    chains = {i: _chain(i, edges[i], column) for i in forward}
    columns = _ordered(steps, column, chains.values())
    at = _placed(columns, column_gap)
    low = max((y for _, y in at.values()), default=0) + HEIGHT / 2
    paths: list[list[Point]] = []
    bends = 0
    for i, (source, target) in enumerate(edges):
        if i in chains:
            points = [at[place] for place in chains[i]]
            (x0, y0), (x1, y1) = points[0], points[-1]
            paths.append([(x0 + WIDTH / 2, y0), *points[1:-1], (x1 - WIDTH / 2, y1)])
        else:
            paths.append(_back(at[source], at[target], low + BEND + bends * 18))
            bends += 1
    width = max((x for x, _ in at.values()), default=0) + WIDTH / 2 + 4
    height = low + (BEND + bends * 18 + 6 if bends else 4)
    back = frozenset(range(len(edges))) - chains.keys()
    return Layout(width, height, {step: at[step] for step in steps}, paths, back)


def _chain(number: int, edge: tuple[str, str], column: Mapping[str, int]) -> list[_Place]:
    source, target = edge
    return [source, *((number, c) for c in range(column[source] + 1, column[target])), target]


def _ordered(
    steps: Sequence[str], column: Mapping[str, int], chains: Iterable[Sequence[_Place]]
) -> list[list[_Place]]:
    """The places of each column from top to bottom."""
    columns: list[list[_Place]] = [[] for _ in range(max(column.values(), default=-1) + 1)]
    neighbours: dict[_Place, list[_Place]] = {step: [] for step in steps}
    for step in steps:
        columns[column[step]].append(step)
    for chain in chains:
        for place in chain:
            if not isinstance(place, str):
                columns[place[1]].append(place)
                neighbours[place] = []
        for one, other in pairwise(chain):
            neighbours[one].append(other)
            neighbours[other].append(one)
    for sweep in range(_SWEEPS):
        for places in columns if sweep % 2 == 0 else reversed(columns):
            row = _rows_of(columns)
            weight = {p: fmean([row[n] for n in neighbours[p]] or [row[p]]) for p in places}
            places.sort(key=weight.__getitem__)
    return columns


def _rows_of(columns: Sequence[Sequence[_Place]]) -> dict[_Place, float]:
    """How far from the middle of its column each place is."""
    return {p: i - (len(places) - 1) / 2 for places in columns for i, p in enumerate(places)}


def _placed(columns: Sequence[Sequence[_Place]], column_gap: float) -> dict[_Place, Point]:
    """The centre of every place; each column is centred."""
    sizes = [[HEIGHT if isinstance(p, str) else HEIGHT / 2 for p in places] for places in columns]
    tall = max((sum(s) + ROW_GAP * (len(s) - 1) for s in sizes if s), default=0)
    at: dict[_Place, Point] = {}
    for k, (places, heights) in enumerate(zip(columns, sizes, strict=True)):
        y = (tall - sum(heights) - ROW_GAP * (len(heights) - 1)) / 2 + 4
        for place, height in zip(places, heights, strict=True):
            at[place] = (4 + WIDTH / 2 + k * (WIDTH + column_gap), y + height / 2)
            y += height + ROW_GAP
    return at


def _back(source: Point, target: Point, low: float) -> list[Point]:
    (x0, y0), (x1, y1) = source, target
    aside = WIDTH / 5
    return [
        (x0 - aside, y0 + HEIGHT / 2),
        (x0 - aside, low),
        (x1 + aside, low),
        (x1 + aside, y1 + HEIGHT / 2),
    ]
