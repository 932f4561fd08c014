"""How every plot looks: one style, in one place.

Series differ by colour, dashes and marker at once, so that the colour-blind can tell them apart, in
grey and on paper. Lines carry their names at their right ends. Equal data gives equal bytes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

# Okabe and Ito's palette in the order of their darkness on white; yellow is too light for a line
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: Final = ("-", (0, (5, 2)), (0, (1.2, 1.2)), (0, (6, 2, 1.2, 2)), (0, (3, 1.5)), (0, (8, 3)), "-")
MARKERS: Final = "os^DvPX"
INK: Final = "#222222"
PALE: Final = "#8a8a8a"
MAX_SERIES: Final = len(COLOURS)  # in one panel; more would be guessing which is which

_STYLE: Final = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "xtick.color": PALE,
    "ytick.color": PALE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.titlesize": 11,
    "figure.titleweight": "bold",
}
_DPI: Final = 130
_LABEL_POINTS: Final = 11.0  # from one name at the right edge to the next


@dataclass(frozen=True, slots=True)
class Look:
    """The look of one series, which is the same in every panel and every plot."""

    colour: str
    dashes: Any
    marker: str


def looks(names: Sequence[str]) -> dict[str, Look]:
    """A look for each name, by its place. After `MAX_SERIES` names colours come again, on other markers."""
    n = MAX_SERIES
    return {
        name: Look(COLOURS[i % n], DASHES[i % n], MARKERS[(i + i // n) % n]) for i, name in enumerate(names)
    }


def draw(width: float, height: float, paint: Callable[[Any], None], title: str = "", note: str = "") -> bytes:
    """A PNG of what `paint` draws on a `matplotlib.figure.Figure` of so many inches.

    `title` stands above; `note` below says in small letters how to read it.
    """
    import matplotlib
    from matplotlib.figure import Figure  # no pyplot: no global state, no display

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        if title:
            figure.suptitle(_plain(title), x=0.01, ha="left")
        if note:
            figure.supxlabel(_plain(note), x=0.01, ha="left", fontsize=7.5, color="#555555")
        paint(figure)
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=_DPI)
    return _small(image)


def _small(image: io.BytesIO) -> bytes:
    """The picture with 256 colours of its own, a third of the bytes; and without the library's version, so
    that pictures change when data does."""
    from PIL import Image  # comes with matplotlib

    few = Image.open(image).convert("RGB").quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    out = io.BytesIO()
    few.save(out, "PNG", optimize=True)
    return out.getvalue()


def line(axes: Any, xs: Sequence[float], ys: Sequence[float], look: Look, **options: Any) -> None:
    """One series. Few points have markers; many are a line with some."""
    spacing = {} if len(xs) <= 25 else {"markevery": math.ceil(len(xs) / 12)}
    style = {"color": look.colour, "linestyle": look.dashes, "marker": look.marker, **spacing}
    axes.plot(xs, ys, **(style | {"markeredgecolor": "white", "markeredgewidth": 0.5} | options))


def faint(axes: Any, xs: Sequence[float], ys: Sequence[float], look: Look) -> None:
    """A single run behind the mean of several."""
    axes.plot(xs, ys, color=look.colour, linewidth=0.7, alpha=0.35, zorder=1)


def band(axes: Any, xs: Sequence[float], low: Sequence[float], high: Sequence[float], look: Look) -> None:
    """An interval around a line."""
    axes.fill_between(xs, low, high, color=look.colour, alpha=0.16, linewidth=0, zorder=0)


def marker_keys(axes: Any, look: Mapping[str, Look]) -> None:
    """Which marker is which name, to the right of a panel."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=each.colour, marker=each.marker, linestyle="", markersize=7)
        for each in look.values()
    ]
    labels = [shorten(name) for name in look]
    axes.legend(handles, labels, loc="center left", bbox_to_anchor=(1.02, 0.5), labelcolor=INK)


def limits(values: Sequence[float], margin: float = 0.06) -> tuple[float, float]:
    """The limits of an axis that shows all values with some room: for lines whose bands may be far wider."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    room = (high - low) * margin or max(abs(high), 1.0) * margin
    return low - room, high + room


def mark_changes(axes: Any, steps: Sequence[int], colour: str = PALE) -> None:
    """A dotted line where the settings of a run changed, after so many iterations."""
    for step in steps:
        axes.axvline(step, color=colour, linestyle=":", linewidth=1.1, zorder=0.5)


def whole_steps(axes: Any) -> None:
    """Put ticks at whole numbers only, as iterations are counted."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def name_ends(axes: Any, ends: Sequence[tuple[float, str, Look]]) -> None:
    """Names at the right edge, each beside the last value (`y`) of its line; moved apart where they meet.

    Call it last: limits and the layout decide where the names are.
    """
    if not ends:
        return
    figure = axes.figure
    figure.draw_without_rendering()  # so that the panel has the size that it will have
    low, high = axes.get_ylim()
    height = axes.bbox.height * 72 / figure.dpi
    wanted = [(y - low) / (high - low) * height for y, _, _ in ends]
    for (_, name, look), at in zip(ends, spread(wanted, _LABEL_POINTS, height), strict=True):
        axes.text(
            1.02,
            at / height,
            shorten(name),
            transform=axes.transAxes,
            color=look.colour,
            fontsize=8,
            fontweight="bold",
            va="center",
        )


def spread(wanted: Sequence[float], gap: float, top: float) -> list[float]:
    """Places as near to the `wanted` ones as can be with `gap` between them, from 0 up to `top`.

    Where there is no room for all, they go on above `top`. The order of `wanted` is kept.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    places: list[float] = []
    for i in order:
        places.append(max(wanted[i], places[-1] + gap if places else 0.0))
    ceiling = max(top, gap * (len(order) - 1))
    for k in reversed(range(len(places))):
        places[k] = min(places[k], ceiling)
        ceiling = places[k] - gap
    spaced = [0.0] * len(order)
    for place, i in zip(places, order, strict=True):
        spaced[i] = place
    return spaced


def shorten(name: str, most: int = 30) -> str:
    """A name as a picture has it: of bounded length."""
    return _plain(name if len(name) <= most else f"{name[: most - 1]}…")


def _plain(text: str) -> str:
    """Names may hold dollar signs, which matplotlib would read as mathematics."""
    return text.replace("$", r"\$")
