"""The curves of a study: each workflow's reward under every regime, and beneath it the roles' gradients."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from pipeline.experiments.comparison import RETURN
from pipeline.experiments.comparison_plots import mean_curve, smoothed
from pipeline.experiments.study.results import StudyResult
from pipeline.experiments.study.spec import Cell
from pipeline.experiments.study.trained import Trained
from pipeline.store.history import History
from pipeline.views.curves import csv_bytes
from pipeline.views.plots import Look, draw, faint, limits, line, looks, name_ends, whole_steps

GRADIENTS: Final = {
    "gradient_share": "share of the gradient's mass",
    "gradient_cosine": "cosine to the whole gradient",
    "copies_redundancy": "redundancy of copies",
    "gradient_persistence": "cosine to its running mean",
}
"""Metrics `role/<role>/<name>`, and the titles of their panels; a run has them where it measures them."""
WINDOW: Final = 5  # iterations of a running mean, in long runs
_LONG: Final = 30


@dataclass(frozen=True, slots=True)
class _Lines:
    """What a panel shows: all values, and the last of each line with its name and look."""

    values: list[float]
    ends: list[tuple[float, str, Look]]


def curve_files(result: StudyResult) -> dict[str, bytes]:
    """A picture for each workflow, and the numbers of all of them as `curves.csv`."""
    files = {}
    for workflow in dict.fromkeys(each.cell.workflow for each in result.cells):
        cells = [each.cell for each in result.cells if each.cell.workflow == workflow]
        files[f"curves-{workflow}.png"] = _picture(result, cells)
    header = ("workflow", "regime", "seed", "kind", "name", "step", "value")
    files["curves.csv"] = csv_bytes(header, _rows(result))
    return files


def gradients_of(history: History) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """By measure and role: points (finished iterations, value) of a run that measures gradients by role."""
    series: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for index, metrics in enumerate(history.iterations, 1):
        for name, value in metrics.items():
            if (match := re.fullmatch(r"role/([^/]+)/(\w+)", name)) and match[2] in GRADIENTS:
                series.setdefault(match[2], {}).setdefault(match[1], []).append((index, value))
    return series


def _runs(result: StudyResult, cell: Cell) -> dict[int, Trained]:
    return {seed: run for (label, seed), run in result.trained.items() if label == cell.label}


def _picture(result: StudyResult, cells: Sequence[Cell]) -> bytes:
    by_cell = {cell.label: _runs(result, cell) for cell in cells}
    measured = [
        name
        for name in GRADIENTS
        if any(name in gradients_of(run.history) for runs in by_cell.values() for run in runs.values())
    ]
    rows, columns = 1 + len(measured), len(cells)
    scores = _score_looks()

    def paint(figure: Any) -> None:
        panels = figure.subplots(rows, columns, squeeze=False, sharex="col", sharey="row")
        shown: list[list[float]] = [[] for _ in range(rows)]  # all that the panels of a row have
        ends: dict[tuple[int, int], list[tuple[float, str, Look]]] = {}
        for column, cell in enumerate(cells):
            runs = by_cell[cell.label]
            drawn = {0: _rewards(panels[0][column], list(runs.values()), scores)}
            panels[0][column].set_title(cell.regime)
            for row, name in enumerate(measured, 1):
                drawn[row] = _gradients(panels[row][column], list(runs.values()), name)
            for row, lines in drawn.items():
                shown[row] += lines.values
                ends[row, column] = lines.ends
            panels[-1][column].set_xlabel("finished iterations")
            whole_steps(panels[-1][column])
        for row, values in enumerate(shown):
            panels[row][0].set_ylim(*limits(values))
        for (row, column), names in ends.items():
            name_ends(panels[row][column], names)
        panels[0][0].set_ylabel("reward, score")
        for row, name in enumerate(measured, 1):
            panels[row][0].set_ylabel(GRADIENTS[name])

    note = "Thin: single seeds; bold: their mean."
    return draw(1.2 + 3.7 * columns, 0.6 + 2.6 * rows, paint, note=note)


def _score_looks() -> dict[str, Look]:
    return looks(["training", "dev", "test"])


def _rewards(axes: Any, runs: Sequence[Trained], look: Mapping[str, Look]) -> _Lines:
    """The mean return in training, and the scores on the splits that choose and report."""
    shown: list[float] = []
    ends = []
    for name in look:
        series = [points for run in runs if (points := _points(run, name))]
        for points in series:
            if len(series) > 1:
                faint(axes, [s for s, _ in points], [v for _, v in points], look[name])
            shown += [v for _, v in points]
        if not series:
            continue
        steps = sorted(set.intersection(*({s for s, _ in points} for points in series)))
        values = [[dict(points)[s] for s in steps] for points in series]
        curve = mean_curve(steps, values)
        if steps:
            line(axes, curve.steps, curve.mean, look[name])
            ends.append((curve.mean[-1], name, look[name]))
    return _Lines(shown, ends)


def _points(run: Trained, name: str) -> list[tuple[int, float]]:
    if name == "training":
        values = [m[RETURN] for m in run.history.iterations if RETURN in m]
        window = WINDOW if len(values) >= _LONG else 1
        return list(enumerate(smoothed(values, window), 1))
    if name == "dev":
        return sorted(run.chosen.items())
    return [(at, fmean(run.scores(at).values())) for at in run.tested]


def _gradients(axes: Any, runs: Sequence[Trained], name: str) -> _Lines:
    by_role: dict[str, list[list[tuple[int, float]]]] = {}
    roles: set[str] = set()  # of all measures: a role looks the same in every panel
    for run in runs:
        measured = gradients_of(run.history)
        roles |= {role for series in measured.values() for role in series}
        for role, points in measured.get(name, {}).items():
            by_role.setdefault(role, []).append(points)
    look = looks(sorted(roles))
    ends, shown = [], []
    for role, series in sorted(by_role.items()):
        steps = sorted(set.intersection(*({s for s, _ in points} for points in series)))
        if not steps:
            continue
        window = WINDOW if len(steps) >= _LONG else 1
        means = smoothed([fmean(dict(points)[s] for points in series) for s in steps], window)
        line(axes, steps, means, look[role])
        ends.append((means[-1], role, look[role]))
        shown += means
    return _Lines(shown, ends)


def _rows(result: StudyResult) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for each in result.cells:
        for seed, run in _runs(result, each.cell).items():
            head = [each.cell.workflow, each.cell.regime, seed]
            rows += [
                [*head, "train", RETURN, i, m[RETURN]]
                for i, m in enumerate(run.history.iterations, 1)
                if RETURN in m
            ]
            rows += [[*head, "dev", run.metric, at, value] for at, value in sorted(run.chosen.items())]
            rows += [[*head, "test", run.metric, at, value] for at, value in _points(run, "test")]
            rows += [
                [*head, "gradient", f"role/{role}/{name}", step, value]
                for name, roles in gradients_of(run.history).items()
                for role, points in roles.items()
                for step, value in points
            ]
    return rows
