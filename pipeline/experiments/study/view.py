"""A study for a terminal and for MLflow: a line for each cell, and the differences told from noise."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from pipeline.experiments.study.results import ATS, GAINS, Claim, StudyResult
from pipeline.experiments.study.statistics import Effect
from pipeline.settings.names import slug
from pipeline.views.render import cell, open_table, visible

SHOWN: Final = 12  # differences in the terminal; the page has all


def study_page(result: StudyResult) -> RenderableType:
    """All of it, top to bottom: the cells, what is told from noise, what to mind."""
    table = open_table("cell", ">untrained", ">best", ">last", ">gain at best", ">at last")
    for each in result.cells:
        gains = [_signed(each.at(when).gains.get(GAINS[0])) for when in ATS]
        table.add_row(
            cell(each.cell.label),
            cell(f"{each.untrained.mean:.3f}"),
            cell(f"{each.best.score.mean:.3f}"),
            cell(f"{each.last.score.mean:.3f}"),
            *map(cell, gains),
        )
    told = [claim for claim in result.claims if claim.is_told]
    head = f"Told from noise: {len(told)} of {len(result.claims)} differences (Holm, 5 % for all together)"
    parts: list[RenderableType] = [
        Text("Scores on the test split", "bold"),
        table,
        Text(),
        Text(head, "bold"),
    ]
    parts += [Text(f"  {visible(sentence(claim))}") for claim in told[:SHOWN]]
    if len(told) > SHOWN:
        parts.append(Text(f"  … and {len(told) - SHOWN} more, on the page", "dim"))
    parts += [Text(), *(Text(f"note: {visible(note)}", "yellow") for note in result.notes)]
    return Group(*parts)


def sentence(claim: Claim) -> str:
    """One difference in words and numbers."""
    return f"{pair(claim)}: {claim.effect.mean:+.3f} {interval(claim.effect)}"


def pair(claim: Claim) -> str:
    """What is compared."""
    return f"{claim.what} at its {claim.when}, over {claim.than}"


def interval(effect: Effect) -> str:
    return "" if effect.low is None else f"[{effect.low:+.3f}, {effect.high:+.3f}]"


def _signed(effect: Effect | None) -> str | None:
    return None if effect is None else f"{effect.mean:+.3f}"


def study_metrics(result: StudyResult) -> dict[str, float]:
    """The outcome and the cost of every cell, for the study's own page in MLflow."""
    metrics: dict[str, float] = {}
    for each in result.cells:
        prefix = f"cell/{slug(each.cell.workflow)}/{each.cell.regime}"
        metrics[f"{prefix}/untrained"] = each.untrained.mean
        for when in ATS:
            outcome = each.at(when)
            metrics[f"{prefix}/{when}"] = outcome.score.mean
            for than, effect in outcome.gains.items():
                metrics[f"{prefix}/{when}_{_WORDS[than]}"] = effect.mean
        metrics |= {f"{prefix}/{name}": value for name, value in each.cost.items()}
    return metrics


_WORDS = dict(
    zip(GAINS, ("over_untrained", "over_control", "over_untrained_votes", "over_trained_votes"), strict=True)
)
