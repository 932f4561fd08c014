"""The page and the JSON values of counterfactual plays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from pipeline.replays.counterfactual.plan import CounterfactualPlan
from pipeline.views.render import cell, number, open_table, places, visible
from stages.evaluate import estimate_mean
from workflows.vocabulary import Op

SHARES: Final = (
    "shapley: the mean share of an input in what the reply that reads it makes of all; a row of plays is an "
    "input"
)


def counterfactual_page(plan: CounterfactualPlan, rows: pl.DataFrame, notes: Sequence[str]) -> RenderableType:
    """A page: by role and intervention, what a message was worth against its replacement."""
    table = open_table("  role", "instead", ">plays", ">changed", ">effect", "95 %", ">tokens a play")
    for entry in effects_by_role(rows):
        interval = "" if entry["low"] is None else f"[{entry['low']:.3f}, {entry['high']:.3f}]"
        table.add_row(
            cell(f"  {entry['role']}"),
            cell(entry["op"]),
            cell(number(entry["plays"])),
            cell(None if entry["changed"] is None else f"{entry['changed']:.0%}"),
            cell(None if entry["effect"] is None else f"{entry['effect']:+.3f}"),
            cell(interval),
            cell(number(entry["tokens"])),
        )
    head = f"counterfactual plays {plan.label} of run {plan.source.run.name}"
    sections: list[RenderableType] = [
        Text(visible(head), "bold"),
        Text("effect: return of the stored episode less that with the reply replaced, over tasks", "dim"),
        *([Text(SHARES, "dim")] if plan.games else []),
        Text(),
        table,
        *(Text(f"note: {visible(note)}", "yellow") for note in notes[:8]),
    ]
    where = {"run": plan.source.run.folder.url, "plays": plan.folder.url}
    return Group(*sections, Text(), places(where))


def counterfactual_dict(plan: CounterfactualPlan, rows: pl.DataFrame, notes: Sequence[str]) -> dict[str, Any]:
    """Counterfactual plays as plain values, for `--json`."""
    return {
        "run": plan.source.run.folder.url,
        "plays": plan.folder.url,
        "label": plan.label,
        "iterations": list(plan.indices),
        "tokens": int(rows["tokens"].sum() or 0),
        "effects": effects_by_role(rows),
        "notes": list(notes),
    }


def effects_by_role(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """What messages were worth, by role and op, from rows of `interventions`.

    Each play counts by one over the probability with which it was chosen, so that a part of the plays stands
    for all; the mean of each task is one value of the mean and its interval.
    """
    # of shapley, a row stands for one input of a reply, and the plays are those of all of its inputs
    is_played = pl.col("play_id").is_not_null() | (
        (pl.col("op") == str(Op.SHAPLEY)) & pl.col("skipped").is_null()
    )
    done = rows.filter((pl.col("op") != str(Op.NONE)) & is_played)
    entries = []
    for (role, op), of_role in done.sort("role", "op").group_by("role", "op", maintain_order=True):
        weight = 1 / pl.col("select_probability")
        known = of_role.filter(pl.col("effect").is_not_null())
        by_task = (
            known.sort("task_id")
            .group_by("task_id", maintain_order=True)
            .agg((pl.col("effect") * weight).sum() / weight.sum())
        )
        estimate = estimate_mean(by_task["effect"].to_list()) if by_task.height else None
        entries.append(
            {
                "role": role,
                "op": op,
                "plays": of_role.height,
                "changed": None if op == Op.SHAPLEY else of_role["first_difference"].is_not_null().mean(),
                "effect": None if estimate is None else estimate.mean,
                "low": None if estimate is None else estimate.low,
                "high": None if estimate is None else estimate.high,
                "tasks": by_task.height,
                "tokens": of_role["tokens"].mean(),
            }
        )
    return entries
