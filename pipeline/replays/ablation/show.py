"""The page and the JSON values of a finished ablation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from pipeline.replays.ablation.ablate import Ablation
from pipeline.replays.ablation.agreement import Matrix
from pipeline.replays.plan import ReplayPlan
from pipeline.settings.program import hint
from pipeline.views.render import brief, cell, number, open_table, places, visible


def ablation_page(ablation: Ablation, link: str | None, notes: Sequence[str] = ()) -> RenderableType:
    """Means by role, rank correlations, the most disputed episodes, and where everything is."""
    agreement, run = ablation.agreement, ablation.source.run
    sections: list[RenderableType] = [_head(ablation), _changes(ablation)]
    for title, column in (
        ("Mean return of turns by role", "return_mean"),
        ("Mean |advantage| by role", "advantage_abs_mean"),
    ):
        sections += [Text(), Text(title, "bold"), _by_role(ablation, column)]
    for title, matrix in (
        ("Rank correlation of episode returns (Spearman)", agreement.returns),
        ("Rank correlation of turn advantages (Spearman)", agreement.advantages),
    ):
        sections += [Text(), Text(title, "bold"), _matrix(ablation, matrix)]
    if disputed := agreement.disputed:
        command = hint(f"show {run.folder.url} -e EPISODE")
        head = Text("Where they disagree most ", "bold")
        head.append("(return, and rank from 0 to 1 among all episodes)", "not bold dim")
        sections += [Text(), head, _disputed(ablation, disputed)]
        sections.append(Text(f"  look at one: {visible(command)}", "dim"))
    for name, count in agreement.left_out.items():
        if count:
            sections.append(
                Text(f"note: {visible(name)} leaves out {number(count)} episodes that others use", "yellow")
            )
    all_notes = [*notes, *(n for replayed in ablation.replays.values() for n in replayed.notes)]
    sections += [Text(f"note: {visible(note)}", "yellow") for note in dict.fromkeys(all_notes)]
    picture = f"{ablation.folder.url}/ablation.png"
    where = {
        "tables": ablation.folder.url,
        "picture": picture,
        "episodes": f"{ablation.folder.url}/episodes.parquet",
    }
    return Group(*sections, Text(), places(where | ({"MLflow": link} if link else {})))


def ablation_dict(ablation: Ablation, link: str | None, notes: Sequence[str] = ()) -> dict[str, Any]:
    """A finished ablation as plain values, for `--json`."""
    return {
        "run": ablation.source.run.folder.url,
        "folder": ablation.folder.url,
        "iterations": list(ablation.indices),
        "changes": {name: replayed.plan.change_records for name, replayed in ablation.replays.items()},
        "stages": {name: replayed.ran for name, replayed in ablation.replays.items()},
        **ablation.agreement.as_dict(),
        "notes": [*notes, *(n for replayed in ablation.replays.values() for n in replayed.notes)],
        "seconds": ablation.seconds,
        "link": link,
    }


def _head(ablation: Ablation) -> Text:
    text = Text.assemble(
        ("ablation", "bold"),
        f" of run {visible(ablation.source.run.name)}: {len(ablation.variants)} variants over "
        f"{number(ablation.agreement.turns)} rewarded turns of {number(len(ablation.indices))} iteration"
        f"{'s' if len(ablation.indices) != 1 else ''}",
    )
    return text.append(f", {ablation.seconds:.1f} s", "dim")


def _changes(ablation: Ablation) -> RenderableType:
    table = open_table("  variant", "stages that ran", "settings")
    for name, replayed in ablation.replays.items():
        table.add_row(
            cell(f"  {name}"), cell(", ".join(replayed.ran) or None), variant_settings(replayed.plan)
        )
    return table


def variant_settings(plan: ReplayPlan) -> Text:
    """The settings of a variant, a line each."""
    return cell("\n".join(f"{key} = {brief(now)}" for key, _, now in plan.changes) or "as stored")


def _by_role(ablation: Ablation, column: str) -> RenderableType:
    rows = {(r["variant"], r["role"]): r[column] for r in ablation.agreement.roles.to_dicts()}
    table = open_table("  role", *(f">{visible(name)}" for name in ablation.variants))
    for role in dict.fromkeys(role for _, role in rows):
        table.add_row(cell(f"  {role}"), *(cell(number(rows.get((v, role)))) for v in ablation.variants))
    return table


def _matrix(ablation: Ablation, matrix: Matrix) -> RenderableType:
    names = ablation.variants
    table = open_table("  ", *(f">{visible(name)}" for name in names[1:]))
    for row, one in enumerate(names[:-1]):
        values = [
            cell(number(matrix[one, other])) if row < column else Text("")
            for column, other in enumerate(names)
            if column
        ]
        table.add_row(cell(f"  {one}"), *values)
    return table


def _disputed(ablation: Ablation, disputed: list[dict[str, Any]]) -> RenderableType:
    table = open_table("  episode", *(f">{visible(name)}" for name in ablation.variants))
    for row in disputed:
        numbers = [f"{number(row[f'return/{v}'])} ({row[f'rank/{v}']:.2f})" for v in ablation.variants]
        table.add_row(cell(f"  {row['episode_id']}"), *map(cell, numbers))
    return table
