"""A comparison for a terminal: what differs, what came out, and what it has cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.experiments.comparison import COSTS, Change, Comparison, Variant
from pipeline.views.render import NO_DATA, open_table, visible
from pipeline.views.render import cell as plain_text

MAX_VALUE = 28  # characters of a setting's value in the table; `--json` has them whole


def comparison_page(comparison: Comparison) -> RenderableType:
    """All of it, top to bottom: differences, returns and scores, returns by role, cost, what to mind."""
    blocks: list[tuple[str, RenderableType]] = []
    if comparison.differences:
        blocks.append(("What differs", _differences(comparison)))
    blocks.append((_outcomes_title(comparison), _outcomes(comparison)))
    if any(v.roles for v in comparison.variants):
        blocks.append(("Return by role, first → last", _roles(comparison)))
    blocks.append(("Cost of a run", _costs(comparison)))
    parts: list[RenderableType] = []
    for title, block in blocks:
        parts += [Text(title, "bold"), block, Text()]
    parts += [Text(f"note: {visible(note)}", "yellow") for note in comparison.notes]
    return Group(*parts)


def _differences(comparison: Comparison) -> Table:
    """A column for each variant, or for each run where its repeats differ in more than the seed."""
    places = {name: i for i, name in enumerate(comparison.names)}
    table = open_table("  setting", *(visible(v.label) for v in comparison.variants))
    for key, values in comparison.differences.items():
        cells = []
        for variant in comparison.variants:
            variant_values = [values[places[run.name]] for run in variant.runs]
            cells.append(_cut(", ".join(dict.fromkeys(variant_values))))
        table.add_row(plain_text(f"  {key}"), *(plain_text(cell) for cell in cells))
    return table


def _outcomes_title(comparison: Comparison) -> str:
    if comparison.last == 1:
        return "What came out (returns: of the first and of the last iteration)"
    return f"What came out (returns: means of the first and of the last {comparison.last} iterations)"


def _outcomes(comparison: Comparison) -> Table:
    """Measure by measure, the variants below each other: long names and many measures fit any width."""
    measures: dict[str, list[Change | None]] = {"return": [v.returns for v in comparison.variants]}
    for name in dict.fromkeys(name for v in comparison.variants for name in v.scores):
        measures[name] = [v.scores.get(name) for v in comparison.variants]
    table = open_table("  measure", "variant", ">runs", ">iterations", ">first → last", ">95 % of last")
    for name, changes in measures.items():
        for row, (variant, change) in enumerate(zip(comparison.variants, changes, strict=True)):
            table.add_row(
                plain_text("" if row else f"  {name}"),
                plain_text(variant.label),
                plain_text(len(variant.runs)),
                plain_text(_span(variant.iterations)),
                plain_text(_arrow(change)),
                plain_text(_interval(change)),
            )
    return table


def _roles(comparison: Comparison) -> Table:
    table = open_table("  role", *(f">{visible(v.label)}" for v in comparison.variants))
    for role in dict.fromkeys(role for v in comparison.variants for role in v.roles):
        changes = [v.roles.get(role) for v in comparison.variants]
        table.add_row(plain_text(f"  {role}"), *(plain_text(_arrow(c)) for c in changes))
    return table


def _costs(comparison: Comparison) -> Table:
    names = [name for name in COSTS if any(name in v.cost for v in comparison.variants)]
    table = open_table("  variant", *(f">{name.replace('_', ' ')}" for name in names))
    for variant in comparison.variants:
        table.add_row(plain_text(f"  {variant.label}"), *(plain_text(_cost(variant, n)) for n in names))
    return table


def sweep_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The runs of a sweep before they are run: dicts with `run`, `point`, `seed`, `state`, `parameters`,
    `memory_gib`."""
    table = open_table("run", "point", ">seed", "state", ">trained", ">held", ">needs about")
    table.columns[0].no_wrap = True  # names are copied
    for row in rows:
        parameters = row["parameters"]
        table.add_row(
            *(plain_text(row[key]) for key in ("run", "point", "seed", "state")),
            *(plain_text(_short(parameters[key])) for key in ("trained", "held")),
            plain_text(f"{row['memory_gib']:.1f} GiB"),
        )
    return table


def _arrow(change: Change | None) -> str:
    return NO_DATA if change is None else f"{change.first.mean:.3f} → {change.last.mean:.3f}"


def _interval(change: Change | None) -> str:
    if change is None or change.last.low is None or change.last.high is None:
        return NO_DATA
    return f"{change.last.low:.3f} to {change.last.high:.3f}"


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def _cost(variant: Variant, name: str) -> str | None:
    value = variant.cost.get(name)
    if value is None:
        return None
    if name == "seconds":
        return f"{value:,.0f}"
    if name == "peak_memory_gib":
        return f"{value:.1f}"
    return _short(value)


def _short(value: float) -> str:
    """Three digits and a unit: counts of parameters and tokens."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g} {letter}"
    return f"{value:.3g}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"
