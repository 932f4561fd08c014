"""Learning curves of a run: what every iteration returned and every evaluation scored, as CSV and PNG."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pipeline.store import Run

# Okabe and Ito's palette, told apart by the colour-blind and in grey
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
FIELDS = ("kind", "name", "step", "value", "low", "high")


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
    found: list[Point] = []
    for index in run.iterations():
        metrics = _json(run.iteration(index).folder.read_text("done.json")).get("metrics", {})
        names = [n for n in metrics if n == "return/mean" or n.endswith("/return_mean")]
        found += [Point("train", name, index + 1, metrics[name]) for name in names]
    evaluations = run.folder.child("evaluations")
    for split in evaluations.names():
        for name in evaluations.child(split).names():
            result = _json(evaluations.child(f"{split}/{name}").read_text("result.json"))
            found += [
                Point("evaluate", f"{split}/{s['name']}", result["index"], s["mean"], s["low"], s["high"])
                for s in result.get("scores", ())
            ]
    return sorted(found, key=lambda p: (p.kind, p.name, p.step))


def curve_files(points: Iterable[Point], title: str) -> dict[str, bytes]:
    """`learning_curve.csv` and `learning_curve.png`."""
    points = list(points)
    return {"learning_curve.csv": _csv(points), "learning_curve.png": _png(points, title)}


def _json(text: str | None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def _csv(points: list[Point]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(FIELDS)
    writer.writerows([getattr(point, field) for field in FIELDS] for point in points)
    return text.getvalue().encode()


def _png(points: list[Point], title: str) -> bytes:
    from matplotlib.figure import Figure  # no pyplot: no global state, no display

    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    for panel, kind, label in zip(panels, ("train", "evaluate"), ("mean return", "score"), strict=True):
        names = sorted({p.name for p in points if p.kind == kind})
        for name, colour in zip(names, COLOURS, strict=False):
            line = [p for p in points if p.kind == kind and p.name == name]
            steps = [p.step for p in line]
            panel.plot(steps, [p.value for p in line], color=colour, marker="o", markersize=3, label=name)
            band = [(p.step, p.low, p.high) for p in line if p.low is not None and p.high is not None]
            if band:
                panel.fill_between(*map(list, zip(*band, strict=True)), color=colour, alpha=0.2, linewidth=0)
        panel.set(title=f"{kind}: {label}", xlabel="iterations", ylabel=label)
        panel.spines[["top", "right"]].set_visible(False)
        if names:
            panel.legend(frameon=False, fontsize=8)
    figure.suptitle(title)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    return image.getvalue()
