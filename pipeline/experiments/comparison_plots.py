"""The plots of a comparison, each with the numbers behind it as CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, Final

from pipeline.experiments.comparison import RETURN, Change, Comparison, Variant, cost_of, scores_of, series_of
from pipeline.views.curves import csv_bytes
from pipeline.views.plots import (
    Look,
    band,
    draw,
    faint,
    limits,
    line,
    looks,
    mark_changes,
    marker_keys,
    name_ends,
    shorten,
    whole_steps,
)
from stages.evaluate import Estimate, estimate_mean, estimate_score

MAX_PANELS: Final = 4  # of evaluation scores; all of them are in the CSV
AXES: Final = {
    "sampled_tokens": ("tokens sampled", 1.0),
    "seconds": ("minutes of training", 60.0),
    "peak_memory_gib": ("peak memory, GiB", 1.0),
    "parameters_trained": ("parameters trained", 1.0),
}


@dataclass(frozen=True, slots=True)
class Curve:
    """The mean over a variant's runs at each step that all of them have; `low` and `high` around it."""

    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]


def comparison_files(comparison: Comparison) -> dict[str, bytes]:
    """By file name. A plot that has nothing to show is left out, and so is its CSV."""
    files = {}
    for name, make in (
        ("learning_curves", _learning_curves),
        ("returns_by_role", _returns_by_role),
        ("cost_against_return", _cost_against_return),
    ):
        if (made := make(comparison)) is not None:
            files[f"{name}.csv"], files[f"{name}.png"] = made
    return files


def mean_curve(
    steps: Sequence[int],
    runs: Sequence[Sequence[float]],
    estimate: Callable[[Sequence[float]], Estimate] = estimate_mean,
) -> Curve:
    """Point by point over runs, as far as the shortest goes.

    The interval is that of `estimate` at 95 % over three runs or more. Over two it would be 13 deviations
    wide, so there it is their range, and the plot says so.
    """
    shortest = min(map(len, runs))
    points = [[values[i] for values in runs] for i in range(shortest)]
    if len(runs) >= 3:
        estimates = [estimate(p) for p in points]
        low, high = tuple(e.low for e in estimates), tuple(e.high for e in estimates)
    else:
        low = tuple(min(p) if len(p) > 1 else None for p in points)
        high = tuple(max(p) if len(p) > 1 else None for p in points)
    return Curve(tuple(steps[:shortest]), tuple(fmean(p) for p in points), low, high)


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and the `window - 1` before it; of fewer at the beginning."""
    return [fmean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]


def _learning_curves(comparison: Comparison) -> tuple[bytes, bytes] | None:
    names = list(dict.fromkeys(n for v in comparison.variants for n in v.scores))
    shown = [
        n for n in names if any(len(v) > 1 for r in comparison.histories for v in [scores_of(r).get(n, [])])
    ]
    if not any(series_of(v, RETURN) for v in comparison.variants):
        return None
    window = _window(comparison)
    panels = ["", *shown[:MAX_PANELS]]
    look = looks([v.label for v in comparison.variants])
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)

    def paint(figure: Any) -> None:
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for panel in axes[len(panels) :]:
            panel.set_visible(False)
        for panel, name in zip(axes, panels, strict=False):
            _curves_panel(panel, comparison.variants, name, window, look)

    note = _band_note(comparison) + (f" Returns are means of {window} iterations." if window > 1 else "")
    if any(_changed(v) for v in comparison.variants):
        note += " Dotted: settings changed within a run."
    png = draw(1.0 + 5.0 * columns, 0.5 + 3.3 * rows, paint, note=note.strip())
    return csv_bytes(
        ("kind", "name", "variant", "run", "seed", "step", "value", "low", "high"), _curve_rows(comparison)
    ), png


def _curves_panel(
    axes: Any, variants: Sequence[Variant], score: str, window: int, look: Mapping[str, Look]
) -> None:
    """One panel: the return in training, or one evaluation score."""
    ends, shown = [], []
    for variant in variants:
        for steps, values in (runs := _runs(variant, score, window)):
            if len(runs) > 1:
                faint(axes, steps, values, look[variant.label])
            shown += values
        if not runs:
            continue
        estimate = partial(estimate_score, of_means=True) if score else estimate_mean
        curve = mean_curve(min((at for at, _ in runs), key=len), [values for _, values in runs], estimate)
        edges = [
            (at, low, high)
            for at, low, high in zip(curve.steps, curve.low, curve.high, strict=True)
            if low is not None and high is not None
        ]
        if edges:
            steps, low, high = map(list, zip(*edges, strict=True))
            band(axes, steps, low, high, look[variant.label])
        line(axes, curve.steps, curve.mean, look[variant.label])
        mark_changes(axes, _changed(variant), look[variant.label].colour)
        ends.append((curve.mean[-1], variant.label, look[variant.label]))
    axes.set(title=score or "Mean return in training", xlabel="finished iterations")
    axes.set_ylim(*limits(shown))
    whole_steps(axes)
    name_ends(axes, ends)


def _changed(variant: Variant) -> list[int]:
    """After how many iterations the settings of runs of a variant changed."""
    return sorted({step for run in variant.runs for step, _ in run.settings_changes})


def _runs(variant: Variant, score: str, window: int) -> list[tuple[list[int], list[float]]]:
    """Steps and values of every run of a variant."""
    if not score:
        series = series_of(variant, RETURN)
        return [(list(range(1, len(v) + 1)), smoothed(v, window)) for v in series]
    by_run = [scores_of(run).get(score, []) for run in variant.runs]
    return [([i for i, _ in points], [e.mean for _, e in points]) for points in by_run if points]


def _window(comparison: Comparison) -> int:
    """Single iterations are noisy: long runs are drawn as running means, short ones as they are."""
    longest = max((len(h.iterations) for h in comparison.histories), default=0)
    return comparison.last if longest >= 30 else 1


def _curve_rows(comparison: Comparison) -> list[list[Any]]:
    """Every iteration and evaluation of every run as measured, and the means that are drawn, unsmoothed."""
    rows: list[list[Any]] = []
    for v in comparison.variants:
        for run in v.runs:
            steps = [(i + 1, m[RETURN]) for i, m in enumerate(run.iterations) if RETURN in m]
            rows += [
                ["train", RETURN, v.label, run.name, run.seed, s, value, None, None] for s, value in steps
            ]
            rows += [
                ["settings", what, v.label, run.name, run.seed, step, None, None, None]
                for step, what in run.settings_changes
            ]
            for name, points in scores_of(run).items():
                rows += [
                    ["evaluate", name, v.label, run.name, run.seed, s, e.mean, e.low, e.high]
                    for s, e in points
                ]
        if series := series_of(v, RETURN):
            c = mean_curve(range(1, len(min(series, key=len)) + 1), series)
            rows += [
                ["train", RETURN, v.label, "mean", None, *point]
                for point in zip(c.steps, c.mean, c.low, c.high, strict=True)
            ]
    return rows


def _returns_by_role(comparison: Comparison) -> tuple[bytes, bytes] | None:
    roles = list(dict.fromkeys(role for v in comparison.variants for role in v.roles))
    if not roles:
        return None
    look = looks([v.label for v in comparison.variants])
    count = len(comparison.variants)

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        for row, role in enumerate(roles):
            for place, variant in enumerate(comparison.variants):
                if role in variant.roles:
                    y = row + (place - (count - 1) / 2) * 0.7 / count
                    _from_first_to_last(axes, y, variant.roles[role], look[variant.label])
        axes.set_yticks(range(len(roles)), [shorten(role) for role in roles])
        axes.set_ylim(len(roles) - 0.45, -0.55)
        values = [e.mean for v in comparison.variants for c in v.roles.values() for e in (c.first, c.last)]
        axes.set_xlim(*limits(values, 0.1))
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set(title="Return by role, from the first to the last iterations", xlabel="mean return")
        marker_keys(axes, look)

    note = f"Small: mean of the first {comparison.last}; large: mean of the last {comparison.last}. "
    note += _whisker_note(comparison)
    header = ("role", "variant", "runs", "first", "last", "low", "high")
    rows = [
        [role, v.label, c.runs, c.first.mean, c.last.mean, c.last.low, c.last.high]
        for role in roles
        for v in comparison.variants
        if (c := v.roles.get(role)) is not None
    ]
    height = 1.3 + len(roles) * max(0.55, 0.24 * count)
    return csv_bytes(header, rows), draw(7.2, height, paint, note=note)


def _from_first_to_last(axes: Any, y: float, change: Change, look: Look) -> None:
    first, last = change.first.mean, change.last.mean
    axes.plot([first, last], [y, y], color=look.colour, linewidth=1.2, alpha=0.55, zorder=2)
    axes.plot([first], [y], look.marker, color="white", markeredgecolor=look.colour, markersize=4, zorder=3)
    if change.last.low is not None and change.last.high is not None and change.runs > 2:
        axes.plot([change.last.low, change.last.high], [y, y], color=look.colour, linewidth=3.5, alpha=0.3)
    axes.plot([last], [y], look.marker, color=look.colour, markersize=7, markeredgecolor="white", zorder=4)


def _cost_against_return(comparison: Comparison) -> tuple[bytes, bytes] | None:
    runs = [
        (v, run, c) for v in comparison.variants for run in v.runs if (c := cost_of(run)) and run.iterations
    ]
    kinds = [k for k in AXES if any(k in cost for _, _, cost in runs)]
    ends = {run.url: _last_return(run.iterations, comparison.last) for _, run, _ in runs}
    if not kinds or all(end is None for end in ends.values()):
        return None
    look = looks([v.label for v in comparison.variants])

    def paint(figure: Any) -> None:
        panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
        for panel, kind in zip(panels, kinds, strict=True):
            name, unit = AXES[kind]
            points = [(v, cost[kind] / unit, ends[run.url]) for v, run, cost in runs if kind in cost]
            for variant in comparison.variants:
                variant_points = [(x, y) for v, x, y in points if v is variant and y is not None]
                _cloud(panel, variant_points, look[variant.label])
            panel.set(title=name)
            panel.set_xlim(0, max((x for _, x, _ in points), default=1.0) * 1.15 or 1.0)
            panel.grid(axis="x")
            panel.xaxis.get_major_locator().set_params(nbins=4)
            panel.xaxis.set_major_formatter(_thousands)
        panels[0].set_ylabel(f"mean return, last {comparison.last}")
        marker_keys(panels[-1], look)

    header = ("variant", "run", "seed", "iterations", "return", *sorted({k for _, _, c in runs for k in c}))
    rows = [
        [v.label, run.name, run.seed, len(run.iterations), ends[run.url], *(cost.get(k) for k in header[5:])]
        for v, run, cost in runs
    ]
    note = "Small: single runs; large: the mean of a variant. Up and to the left is better."
    return csv_bytes(header, rows), draw(1.6 + 2.6 * len(kinds), 3.2, paint, note=note)


def _cloud(axes: Any, points: Sequence[tuple[float, float]], look: Look) -> None:
    """Single runs, faint, and their mean."""
    if not points:
        return
    if len(points) > 1:
        axes.plot(*zip(*points, strict=True), look.marker, color=look.colour, markersize=4, alpha=0.45)
    x, y = (fmean(values) for values in zip(*points, strict=True))
    axes.plot([x], [y], look.marker, color=look.colour, markersize=9, markeredgecolor="white", clip_on=False)


def _thousands(value: float, _: object) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value / 1e3:g} k" if abs(value) >= 1e3 else f"{value:g}"


def _last_return(iterations: Sequence[Mapping[str, float]], window: int) -> float | None:
    values = [m[RETURN] for m in iterations if RETURN in m]
    return fmean(values[-window:]) if values else None


def _band_note(comparison: Comparison) -> str:
    counts = {len(series_of(v, RETURN)) for v in comparison.variants}
    said = []
    if any(n >= 3 for n in counts):
        said.append("95 % intervals over three runs or more")
    if 2 in counts:
        said.append("the range of two runs")
    return f"Bands: {'; '.join(said)}. Thin: single runs." if said else "One run each."


def _whisker_note(comparison: Comparison) -> str:
    repeats = [change.runs for v in comparison.variants for change in v.roles.values()]
    return "Bars: 95 % intervals over runs." if max(repeats, default=0) > 2 else ""
