"""A study as one HTML page without scripts: cells, gains, curves, what is told from noise, and what it cost.

The page loads nothing: its style stands in it and its pictures are data. Equal results give equal bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from html import escape
from importlib import resources
from typing import Final

from pipeline.experiments.comparison_view import cost_text
from pipeline.experiments.study.plots import curve_files, gradients_of
from pipeline.experiments.study.results import ATS, GAINS, CellResult, Claim, Outcome, StudyResult
from pipeline.experiments.study.statistics import Effect
from pipeline.experiments.study.view import interval, pair
from pipeline.views.curves import csv_bytes
from pipeline.views.render import visible

COST_HEADS: Final = {
    "sampled_tokens": "tokens sampled",
    "trained_tokens": "tokens trained on",
    "seconds": "minutes of iterations",
    "peak_memory_gib": "peak memory, GiB",
    "parameters_trained": "parameters trained",
    "parameters_held": "parameters held",
}
GAIN_HEADS: Final = dict(
    zip(
        GAINS,
        (
            "untrained team",
            "control, equal trained tokens",
            "untrained control's votes, equal tokens an answer",
            "trained control's votes, equal tokens an answer",
        ),
        strict=True,
    )
)
METHOD: Final = (
    "Each cell is judged on a test split that chose nothing. <b>Best</b> is the checkpoint that scored best "
    "on the split that chooses; <b>last</b> is the newest one. Gains are paired: the difference on each test "
    "task, with the same seed. Intervals are 95&nbsp;%, from a hierarchical bootstrap over tasks and seeds, "
    "widened for few seeds as Student's&nbsp;t is. A control with equal trained tokens is its newest, or "
    "best, checkpoint at which it had sampled no more tokens in training than the team. Votes are a majority "
    "of independent answers that fit into the tokens of one answer of the team."
)


def study_files(result: StudyResult) -> dict[str, bytes]:
    """The page `study.html`, its pictures, and the numbers behind them."""
    files = curve_files(result)
    pictures = {name: data for name, data in files.items() if name.endswith(".png")}
    files["claims.csv"] = csv_bytes(
        ("what", "than", "at", "mean", "low", "high", "chance", "corrected", "told"),
        [
            [c.what, c.than, c.when, e.mean, e.low, e.high, e.chance, c.corrected, c.is_told]
            for c in result.claims
            for e in [c.effect]
        ],
    )
    files["study.html"] = page(result, pictures)
    return files


def page(result: StudyResult, pictures: dict[str, bytes]) -> bytes:
    """The whole page."""
    style = resources.files("pipeline.experiments.study").joinpath("study.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    title = escape(visible(result.study.sweep.name))
    body = "\n".join(
        [*_head(result), *_scores(result), *_curves(result, pictures), *_claims(result), *_costs(result)]
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="Cadre">\n<title>{title}</title>\n<style>{style}</style>\n</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    ).encode("utf-8", "replace")


def _head(result: StudyResult) -> Iterator[str]:
    section = result.study.section
    workflows = dict.fromkeys(cell.workflow for cell in result.study.cells)
    regimes = dict.fromkeys(cell.regime for cell in result.study.cells)
    seeds = ", ".join(map(str, section.seeds))
    facts = (
        f"{_count(len(workflows), 'workflow')} ({', '.join(workflows)}) × "
        f"{_count(len(regimes), 'sharing regime')} ({', '.join(regimes)}) × "
        f"{_count(len(section.seeds), 'seed')} ({seeds}), {section.iterations} iterations each; control: "
        f"{section.control or 'none'}"
    )
    yield f"<header><h1>{_text(result.study.sweep.name)}</h1><p>{_text(facts)}</p></header>"
    told = sum(claim.is_told for claim in result.claims)
    yield (
        f'<p class="lead"><b>{told} of {len(result.claims)}</b> differences are told from noise, with '
        "Holm's correction for all of them together at 5&nbsp;%.</p>"
    )
    yield from (f'<p class="note">{_text(note)}</p>' for note in result.notes)


def _scores(result: StudyResult) -> Iterator[str]:
    told = {(c.what, c.than, c.when): c for c in result.claims}
    yield f'<section><h2>Scores and gains</h2><p class="dim">{METHOD}</p><div class="scroll"><table>'
    yield (
        "<thead><tr><th>cell<th>at<th class=n>score<th class=n>tokens an answer"
        + "".join(f"<th class=n>gain over {head}" for head in GAIN_HEADS.values())
        + "</thead>"
    )
    for each in result.cells:
        yield "<tbody>"
        for row, when in enumerate(ATS):
            outcome = each.at(when)
            cells = [
                _gain(outcome.gains.get(than), told.get((each.cell.label, than, when))) for than in GAINS
            ]
            name = _name(each) if row == 0 else ""
            yield (
                f"<tr>{name}<td class=at>{when}{_when(outcome)}<td class=n>{_number(outcome.score)}"
                f"<td class=n>{outcome.answer_tokens:,.0f}{''.join(cells)}"
            )
        yield "</tbody>"
    yield "</table></div>"
    yield '<p class="dim">Bold: told from noise after the correction.</p></section>'


def _name(each: CellResult) -> str:
    kind = " <small>control</small>" if each.is_control else ""
    return (
        f'<th rowspan="2" scope="row">{_text(each.cell.workflow)}{kind}<br><small>{_text(each.cell.regime)}, '
        f"{_count(len(each.seeds), 'seed')}</small>"
    )


def _when(outcome: Outcome) -> str:
    points = sorted(set(outcome.checkpoints.values()))
    return f" <small>after {', '.join(map(str, points))}</small>"


def _number(effect: Effect) -> str:
    span = "" if effect.low is None else f" <small>{effect.low:.2f} to {effect.high:.2f}</small>"
    return f"{effect.mean:.3f}{span}"


def _gain(effect: Effect | None, claim: Claim | None) -> str:
    if effect is None:
        return "<td class=n>–"
    shown = f"{effect.mean:+.3f}"
    if claim is not None and claim.is_told:
        shown = f'<b class="{"up" if effect.mean > 0 else "down"}">{shown}</b>'
    return f"<td class=n>{shown} <small>{interval(effect)}</small>"


def _curves(result: StudyResult, pictures: dict[str, bytes]) -> Iterator[str]:
    has_gradients = any(gradients_of(run.history) for run in result.trained.values())
    beneath = (
        "Beneath: gradients by role."
        if has_gradients
        else "These runs did not measure gradients by role, so none are drawn beneath."
    )
    yield "<section><h2>Curves</h2>"
    yield f'<p class="dim">Reward in training, and scores at checkpoints. {beneath}</p>'
    for name, data in pictures.items():
        workflow = name.removeprefix("curves-").removesuffix(".png")
        source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        columns = sum(each.cell.workflow == workflow for each in result.cells)
        yield (
            f'<figure class="w{min(columns, 3)}"><figcaption>{_text(workflow)}</figcaption>'
            f'<img alt="Curves of {_text(workflow)}, one column a regime" src="{source}"></figure>'
        )
    yield "</section>"


def _claims(result: StudyResult) -> Iterator[str]:
    yield '<section><h2>Told from noise</h2><p class="dim">'
    yield (
        f"All {len(result.claims)} differences that this page looks at are one family: the gains above, and "
        "the regimes of each workflow against each other. “Chance” is the chance of a difference at least as "
        "large where there is none; “corrected” is after Holm's correction, which keeps the chance of a "
        "single false claim among all of them at 5&nbsp;%.</p>"
    )
    yield '<div class="scroll"><table><thead><tr><th>difference<th class=n>mean<th class=n>95 % interval'
    yield "<th class=n>chance<th class=n>corrected<th>told</thead><tbody>"
    ordered = sorted(
        result.claims, key=lambda c: (c.corrected is None, c.corrected or 0.0, -abs(c.effect.mean))
    )
    for claim in ordered:
        chances = "".join(f"<td class=n>{_chance(c)}" for c in (claim.effect.chance, claim.corrected))
        yield (
            f"<tr><td>{_text(pair(claim))}<td class=n>{claim.effect.mean:+.3f}"
            f"<td class=n>{interval(claim.effect)}{chances}"
            f"<td>{'<b>yes</b>' if claim.is_told else 'no'}"
        )
    yield "</tbody></table></div></section>"


def _chance(value: float | None) -> str:
    if value is None:
        return "–"
    return "&lt; 0.001" if value < 0.001 else f"{value:.3f}"


def _costs(result: StudyResult) -> Iterator[str]:
    kinds = [kind for kind in COST_HEADS if any(kind in each.cost for each in result.cells)]
    yield "<section><h2>Cost of one run</h2>"
    yield '<p class="dim">The mean over seeds; evaluations are in none of it.</p>'
    yield '<div class="scroll"><table><thead><tr><th>cell' + "".join(
        f"<th class=n>{COST_HEADS[k]}" for k in kinds
    )
    yield "</thead><tbody>"
    for each in result.cells:
        yield f'<tr><th scope="row">{_text(each.cell.label)}' + "".join(
            f"<td class=n>{_text(_cost(kind, each.cost.get(kind)))}" for kind in kinds
        )
    yield "</tbody></table></div></section>"


def _cost(kind: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value / 60:.1f}" if kind == "seconds" else cost_text(kind, value)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _text(text: str) -> str:
    return escape(visible(text))
