"""A replacement as a page and as plain values: the rungs, what every step did to the team, the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from pipeline.replacement.asked import Asked
from pipeline.replacement.compared import against_before, played_steps
from pipeline.replacement.ladder import Rung
from pipeline.replacement.replace import ACCEPTED
from pipeline.replacement.state import State
from pipeline.views.render import cell, number, open_table, places, visible

WORDS = {
    "old": "old team",
    "swap": "swapped",
    "distill": "taught",
    "align": "aligned",
    "settle": "settled",
}


def rows_of(asked: Asked, state: State) -> list[dict[str, Any]]:
    """One row for the old team and for each step after which the team played."""
    old = state.step("old")
    if old is None:
        return []
    rows: list[dict[str, Any]] = [{"step": "old", "score": old["mean"]}]
    shocks: dict[str, Mapping[str, Any] | None] = {
        "swap": state.step("swap"),
        "distill": state.step("taught"),
        "align": (state.step("align") or {}).get("shock"),
    }
    for name, scores in played_steps(state):
        found = against_before(asked, state, scores)
        row = {
            "step": name,
            "score": found.after,
            "gain": found.gain,
            "lower": found.lower,
            "shock": found.shock,
            "lost": found.lost,
            "won": found.won,
            "mcnemar_p": found.mcnemar_p,
        }
        if measured := shocks.get(name):
            reaches = [min(r["prefix"], r["suffix"]) for r in measured["teammates"]]
            row |= {"per_message": measured["per_message"], "effective_share": min(reaches, default=None)}
        rows.append(row)
    return rows


def replacement_dict(asked: Asked, state: State) -> dict[str, Any]:
    """A replacement as plain values, for `--json`."""
    return {
        "parent": asked.parent.folder.url,
        "run": asked.run.folder.url,
        "model": asked.model,
        "newcomer": asked.newcomer,
        "metric": asked.old.evaluation.best,
        "ladder": [*(rung.as_dict() for rung in asked.rungs), *_format_rung(state)],
        "steps": rows_of(asked, state),
        "gate": state.data.get("gate"),
        "outcome": state.outcome,
    }


def replacement_page(asked: Asked, state: State, links: Mapping[str, str]) -> RenderableType:
    """A page: the rungs, the steps, the outcome, and where all of it is."""
    head = f"replacement of model {asked.model} of run {asked.parent.name} by {asked.newcomer}"
    rungs = [*asked.rungs, *(Rung(**rung) for rung in _format_rung(state))]
    table = open_table(
        "  step", ">score", ">gain", ">at least", ">shock", ">lost", ">won", ">p", ">nats", ">usable"
    )
    for row in rows_of(asked, state):
        share = row.get("effective_share")
        table.add_row(
            cell(f"  {WORDS[row['step']]}"),
            cell(f"{row['score']:.3f}"),
            *(cell(f"{row[key]:+.3f}" if key in row else "") for key in ("gain", "lower")),
            cell(f"{row['shock']:+.1%}" if "shock" in row else ""),
            *(cell(row.get(key, "")) for key in ("lost", "won")),
            cell(f"{row['mcnemar_p']:.3g}" if "mcnemar_p" in row else ""),
            cell(number(row["per_message"]) if "per_message" in row else ""),
            cell(f"{share:.0%}" if share is not None else ""),
        )
    legend = (
        f"score: {asked.old.evaluation.best} on {asked.old.evaluation.split}; gain: against the team as it "
        "was, task by task; nats: per message from the predecessor; usable: stored plays of the teammate "
        "that is hit most"
    )
    sections: list[RenderableType] = [Text(visible(head), "bold"), ladder_table(rungs), Text(), table]
    sections += [Text(visible(legend), "dim"), *_course(state), *_outcome(asked, state)]
    where = {"run": asked.run.folder.url, "parent": asked.parent.folder.url, **links}
    return Group(*sections, Text(), places(where))


def ladder_table(rungs: list[Rung]) -> RenderableType:
    """The rungs with what was expected and found."""
    table = open_table("  rung", "expected", "found", "")
    styles = {"ok": "green", "differs": "yellow", "impossible": "red"}
    for rung in rungs:
        table.add_row(
            cell(f"  {rung.name}"),
            cell(rung.expected),
            cell(rung.found),
            cell(rung.verdict, styles[rung.verdict]),
        )
    return table


def _format_rung(state: State) -> list[dict[str, Any]]:
    rung = state.step("format") if "steps" in state.data else None
    return [rung] if rung is not None else []


def _course(state: State) -> list[RenderableType]:
    """How the newcomer was taught and aligned, in words."""
    lines = []
    if (taught := state.step("taught")) is not None:
        lesson = taught["lesson"]
        way = "by their mixture with it" if taught["way"] == "mixture" else "by imitation"
        losses = [step["loss"] for step in lesson["steps"]]
        fell = f"loss {losses[0]:.3g} → {losses[-1]:.3g} nats per token"
        lines.append(f"taught on {taught['rows']} stored turns {way}: {fell}")
    if (align := state.step("align")) is not None and align["ended"]:
        lines.append(f"aligned in {len(align['rounds'])} iterations: {align['ended']}")
    if (settle := state.step("settle")) is not None:
        lines.append(f"settled in this order: {', '.join(settle['order'])}")
    return [Text(visible(line)) for line in lines]


def _outcome(asked: Asked, state: State) -> list[RenderableType]:
    gate = state.data.get("gate")
    if gate is None:
        return []
    stays = state.outcome == ACCEPTED
    bound = f"the gain is at least {gate['lower']:+.3f}, and may not fall below {-gate['eps']:+.3f}"
    then = (
        f"the run goes on with {asked.newcomer} as {asked.model!r}"
        if stays
        else "the run is put back: its next iteration is the one that its parent would make"
    )
    return [Text(), Text(visible(f"{state.outcome}: {bound}; {then}"), "green" if stays else "yellow")]
