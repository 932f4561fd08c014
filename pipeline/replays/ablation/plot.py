"""The picture of an ablation: how alike its variants rank the same turns, and what they give each role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pipeline.replays.ablation.agreement import Agreement
from pipeline.views.curves import csv_bytes
from pipeline.views.plots import COLOURS, INK, PALE, Look, draw, limits, looks, marker_keys, shorten

_EMPTY: Final = "#f4f4f4"
_NOTE: Final = (
    "Left: Spearman's rank correlation between variants, above the diagonal of episode returns, below it of "
    "turn advantages. Bars: 95 % intervals over groups."
)


def ablation_files(agreement: Agreement) -> dict[str, bytes]:
    """By file name: the picture, and the numbers behind its two panels."""
    rows = [
        [what, one, other, value]
        for what, matrix in (
            ("episode_returns", agreement.returns),
            ("turn_advantages", agreement.advantages),
        )
        for (one, other), value in matrix.items()
    ]
    return {
        "ablation.png": _png(agreement),
        "correlations.csv": csv_bytes(("of", "variant", "other", "spearman"), rows),
        "roles.csv": agreement.roles.write_csv().encode(),
    }


def _png(agreement: Agreement) -> bytes:
    count, roles = len(agreement.variants), agreement.roles["role"].unique(maintain_order=True).to_list()
    left = 1.3 + 0.62 * count
    height = 1.2 + max(0.62 * count, len(roles) * max(0.5, 0.2 * count))
    look = looks(agreement.variants)

    def paint(figure: Any) -> None:
        correlations, means = figure.subplots(1, 2, width_ratios=[left, 5.6])
        _heat_map(correlations, agreement)
        _means(means, agreement, roles, look)

    return draw(left + 6.4, height, paint, note=_NOTE)


def _heat_map(axes: Any, agreement: Agreement) -> None:
    """Blue is alike, orange the reverse; each cell has its number, so that no one needs the colours."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    colours = LinearSegmentedColormap.from_list("alike", [COLOURS[1], "#ffffff", COLOURS[0]])
    names = agreement.variants
    for row, one in enumerate(names):
        for column, other in enumerate(names):
            pair = (names[min(row, column)], names[max(row, column)])
            matrix = agreement.advantages if row > column else agreement.returns
            value = None if row == column else matrix[pair]
            colour = _EMPTY if value is None else colours((value + 1) / 2)
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, edgecolor="white"))
            if one != other:
                strong = value is not None and abs(value) > 0.7
                text = "–" if value is None else f"{value:.2f}"
                style = {"ha": "center", "va": "center", "fontsize": 8}
                axes.text(column, row, text, color="white" if strong else INK, **style)
    labels = [shorten(name, 14) for name in names]
    axes.set_xticks(range(len(names)), labels, rotation=35, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), labels)
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(names) - 0.5, -0.5), aspect="equal")
    axes.set_title("Rank correlation of ◥ returns, ◣ advantages")
    axes.set_anchor("N")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _means(axes: Any, agreement: Agreement, roles: list[str], look: Mapping[str, Look]) -> None:
    """The mean return of each role under each variant."""
    count, shown = len(agreement.variants), []
    rows = {(r["variant"], r["role"]): r for r in agreement.roles.iter_rows(named=True)}
    for place, role in enumerate(roles):
        for nth, variant in enumerate(agreement.variants):
            row = rows.get((variant, role))
            if row is None or row["return_mean"] is None:
                continue
            y, mean = place + (nth - (count - 1) / 2) * 0.72 / count, row["return_mean"]
            ends = [v for v in (row["return_low"], row["return_high"]) if v is not None]
            shown += [mean, *ends]
            style = look[variant]
            axes.plot(ends, [y] * len(ends), color=style.colour, linewidth=3, alpha=0.35, zorder=2)
            axes.plot([mean], [y], style.marker, color=style.colour, markersize=6.5, markeredgecolor="white")
    for place in range(1, len(roles)):
        axes.axhline(place - 0.5, color=PALE, linewidth=0.5, alpha=0.5)
    axes.set_yticks(range(len(roles)), [shorten(role) for role in roles])
    axes.set_ylim(len(roles) - 0.45, -0.55)
    axes.set_xlim(*limits(shown))
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set(title="Mean return by role", xlabel="mean return of a turn")
    marker_keys(axes, look)
