"""Learning curves of a run: what every iteration returned and every evaluation scored, as CSV and PNG."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.store.history import evaluation_results
from pipeline.store.run import Run, finished_metrics
from pipeline.views.plots import (
    MAX_SERIES,
    band,
    draw,
    limits,
    line,
    looks,
    mark_changes,
    name_ends,
    whole_steps,
)

FIELDS = ("kind", "name", "step", "value", "low", "high")
TEAM = "return/mean"


@dataclass(frozen=True, slots=True)
class Point:
    """One point: `kind` is "train" (a mean return) or "evaluate"; the band is a confidence interval."""

    kind: str
    name: str
    step: int  # finished iterations
    value: float
    low: float | None = None
    high: float | None = None


def points_of(run: Run) -> list[Point]:
    """Every finished iteration and evaluation of a run, in the order of steps."""
    points: list[Point] = []
    for index, metrics in finished_metrics(run).items():
        names = [n for n in metrics if n == TEAM or n.endswith("/return_mean")]
        points += [Point("train", name, index + 1, metrics[name]) for name in names]
    for result in evaluation_results(run):
        for s in result.get("scores", ()):
            name = f"{result['split']}/{s['name']}"
            of_sources = {f"{name} of {source}": values for source, values in s.get("by_source", {}).items()}
            points += [
                Point("evaluate", each, result["index"], values["mean"], values["low"], values["high"])
                for each, values in {name: s, **of_sources}.items()
            ]
    return sorted(points, key=lambda p: (p.kind, p.name, p.step))


def curve_files(
    points: Iterable[Point], title: str, changes: Sequence[tuple[int, str]] = ()
) -> dict[str, bytes]:
    """`learning_curve.csv` and `learning_curve.png`.

    Args:
        points: of the curves.
        title: above the picture.
        changes: of the settings within the run, each after how many iterations: rows of kind "settings", and
            dotted lines.
    """
    points = list(points)
    rows = [[getattr(point, field) for field in FIELDS] for point in points]
    rows += [["settings", what, step, None, None, None] for step, what in changes]
    png = _png(points, title, [step for step, _ in changes])
    return {"learning_curve.csv": csv_bytes(FIELDS, rows), "learning_curve.png": png}


def csv_bytes(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()


def _png(points: list[Point], title: str, changed: Sequence[int]) -> bytes:
    kinds = [k for k in ("train", "evaluate") if any(p.kind == k for p in points)] or ["train"]

    def paint(figure: Any) -> None:
        panels = figure.subplots(1, len(kinds), squeeze=False)[0]
        for panel, kind in zip(panels, kinds, strict=True):
            mark_changes(panel, changed)
            _panel(panel, kind, [p for p in points if p.kind == kind])

    notes = ["Bands: 95 % intervals over tasks."] if any(p.low is not None for p in points) else []
    note = " ".join([*notes, *(["Dotted: settings changed."] if changed else [])])
    return draw(5.4 * len(kinds), 3.6, paint, title=title, note=note)


def _panel(axes: Any, kind: str, points: list[Point]) -> None:
    """All series of one kind; the team's return comes first, so that it looks alike in every run."""
    names = sorted({p.name for p in points}, key=lambda name: (name != TEAM, name))[:MAX_SERIES]
    look = looks(names)
    ends = []
    for name in names:
        series = [p for p in points if p.name == name]
        line(axes, [p.step for p in series], [p.value for p in series], look[name])
        ranges = [(p.step, p.low, p.high) for p in series if p.low is not None and p.high is not None]
        if ranges:
            steps, low, high = zip(*ranges, strict=True)
            band(axes, steps, low, high, look[name])
        ends.append((series[-1].value, _short(name), look[name]))
    title = {"train": "Mean return in training", "evaluate": "Evaluation score"}[kind]
    axes.set(title=title, xlabel="finished iterations")
    axes.set_ylim(*limits([v for p in points for v in (p.value, p.low, p.high) if v is not None]))
    whole_steps(axes)
    name_ends(axes, ends)


def _short(name: str) -> str:
    """`return/mean` is the team's, `role/<role>/return_mean` a role's; scores keep their names."""
    if name == TEAM:
        return "team"
    return name.removeprefix("role/").removesuffix("/return_mean")
