"""A comparison for a terminal: what differs, what came out, and what it has cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.experiments.comparison import COSTS, Change, Comparison, Variant
from pipeline.views.forecast import score, verdict
from pipeline.views.render import NO_DATA, open_table, visible
from pipeline.views.render import cell as plain_text

WIDTH = 80  # characters of a terminal that tables fit into
GAP = 2  # characters between two columns
# stages of iterations alone: a run also starts, evaluates and ends
COST_WORDS = {"seconds": "seconds of iterations"}
MAX_VALUE = 28  # characters of a setting's value in the table; `--json` has them whole


def comparison_page(comparison: Comparison) -> RenderableType:
    """All of it, top to bottom: differences, returns and scores, returns by role, cost, what to mind."""
    blocks: list[tuple[str, RenderableType]] = []
    if comparison.differences:
        blocks.append(("What differs", _differences(comparison)))
    blocks.append((_outcomes_title(comparison), _outcomes(comparison)))
    if any(v.roles for v in comparison.variants):
        blocks.append(("Return by role, first → last", _roles(comparison)))
    if any(v.cost for v in comparison.variants):
        blocks.append(("Cost of a run", _costs(comparison)))
    if (forecasts := _forecasts(comparison)) is not None:
        blocks.append(("Forecasts of the rest, made after an iteration, and what came of them", forecasts))
    parts: list[RenderableType] = []
    for title, block in blocks:
        parts += [Text(title, "bold"), block, Text()]
    parts += [Text(f"note: {visible(note)}", "yellow") for note in comparison.notes]
    return Group(*parts)


def _forecasts(comparison: Comparison) -> Text | None:
    """The newest forecast of each run whose outcome is known, and how good all of them were."""
    lines, made = [], []
    for run in comparison.histories:
        known = [one for one in run.forecasts if one.forecast.source == "run" and one.forecast.measured == 1]
        made += known
        if known:
            lines.append(f"{visible(run.name)}: {verdict(known[-1])}")
    total = score(made)
    return None if total is None else Text("\n".join([*lines, f"all: {total}"]))


def _differences(comparison: Comparison) -> Table:
    """A column for each variant, or for each run where its repeats differ in more than the seed."""
    places = {name: i for i, name in enumerate(comparison.names)}
    rows = {}
    for key, values in comparison.differences.items():
        of_variants = [[values[places[run.name]] for run in v.runs] for v in comparison.variants]
        rows[key] = [_cut(", ".join(dict.fromkeys(each))) for each in of_variants]
    return _by_variant(comparison, "setting", rows)


def _by_variant(
    comparison: Comparison, what: str, rows: Mapping[str, Sequence[str]], *, numbers: bool = False
) -> Table:
    """A column for each variant where that fits into 80 characters without breaking a word; otherwise the
    variants of each row below each other."""
    labels = [visible(v.label) for v in comparison.variants]
    widths = [max(len(label), *(len(row[i]) for row in rows.values())) for i, label in enumerate(labels)]
    right = ">" if numbers else ""
    if max(map(len, rows)) + sum(widths) + GAP * (len(widths) + 1) <= WIDTH:
        table = open_table(f"  {what}", *(f"{right}{label}" for label in labels))
        for key, cells in rows.items():
            table.add_row(plain_text(f"  {key}"), *(plain_text(each) for each in cells))
        return table
    table = open_table(f"  {what}", "variant", f"{right}value")
    for key, cells in rows.items():
        for position, (label, each) in enumerate(zip(labels, cells, strict=True)):
            table.add_row(plain_text("" if position else f"  {key}"), plain_text(label), plain_text(each))
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
    roles = dict.fromkeys(role for v in comparison.variants for role in v.roles)
    rows = {role: [_arrow(v.roles.get(role)) for v in comparison.variants] for role in roles}
    return _by_variant(comparison, "role", rows, numbers=True)


def _costs(comparison: Comparison) -> Table:
    names = [name for name in COSTS if any(name in v.cost for v in comparison.variants)]
    rows = {
        COST_WORDS.get(name, name.replace("_", " ")): [_cost(v, name) or NO_DATA for v in comparison.variants]
        for name in names
    }
    return _by_variant(comparison, "measure", rows, numbers=True)


def sweep_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The runs of a sweep before they are run: dicts with `run`, `point`, `seed`, `state`, `parameters`,
    `memory_gib`."""
    columns = {
        "run": [row["run"] for row in rows],
        "point": [row["point"] for row in rows],
        ">seed": [str(row["seed"]) for row in rows],
        "state": [row["state"] for row in rows],
        ">trained": [_short(row["parameters"]["trained"]) for row in rows],
        ">held": [_short(row["parameters"]["held"]) for row in rows],
        ">memory": [f"{row['memory_gib']:.1f} GiB" for row in rows],
    }
    widths = {name: max(len(name.lstrip(">")), *map(len, each)) for name, each in columns.items()}
    for name in ("point", ">seed", ">held"):  # the name of a run has its point and its seed
        if sum(widths.values()) + GAP * len(widths) > WIDTH:
            del columns[name], widths[name]
    if sum(widths.values()) + GAP * len(widths) > WIDTH:
        return Group(*(_two_lines(row) for row in rows))
    table = open_table(*columns)
    for column in table.columns:
        column.no_wrap = True  # names are copied
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*(plain_text(each) for each in cells))
    return table


def _two_lines(row: Mapping[str, Any]) -> Text:
    """A run of a sweep whose name leaves no room beside it."""
    text = Text(visible(row["run"]), no_wrap=True, overflow="ignore")
    trained, held = (_short(row["parameters"][key]) for key in ("trained", "held"))
    return text.append(
        f"\n  {row['state']}; {trained} of {held} parameters trained, about {row['memory_gib']:.1f} GiB",
        "dim",
    )


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
    return None if value is None else cost_text(name, value)


def cost_text(name: str, value: float) -> str:
    """A cost by the name that `pipeline.metrics.cost` gives it."""
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
