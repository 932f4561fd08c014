"""The page and the JSON values of a finished replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from pipeline.replays.plan import ReplayPlan
from pipeline.replays.replayer import Replayed
from pipeline.views.files import update_summaries
from pipeline.views.render import brief, cell, number, open_table, places, visible


def replay_page(result: Replayed, link: str | None = None) -> RenderableType:
    """A page: what changed, what ran, how numbers moved against the stored ones, and where the tables are."""
    plan = result.plan
    sections: list[RenderableType] = [_head(result)]
    sections += change_lines(plan)
    if plan.source.split is not None:
        sections += _scores(result)
    elif rows := result.movement.rows():
        new = all(row["turns_before"] == 0 for row in rows)
        title = "The run has no credit of its own yet" if new else "Moved against the stored numbers"
        sections += [Text(), Text(title, "bold"), _moved(rows)]
    if updates := _summaries(result):
        skipped = [u for _, u in updates if u["skipped"]]
        sections += [Text(), Text("Updates", "bold"), _updates(updates)]
        sections += [
            Text(
                f"  not updated: {visible(u['model_id'])} by iteration {u['iteration']}: {u['skipped']}",
                "yellow",
            )
            for u in skipped[:4]
        ]
    notes = [*result.notes, *(n for done in result.done.values() for n in done.notes)]
    notes = list(dict.fromkeys(notes))
    if notes:
        sections += [Text(), *(Text(f"note: {visible(n)}", "yellow") for n in notes[:8])]
        if len(notes) > 8:
            sections.append(Text(f"and {len(notes) - 8} notes more: see the manifests", "yellow"))
    where = {"run": plan.source.run.folder.url}
    if result.done:
        where["tables"] = plan.folder.url
    if result.trained:
        where["checkpoints"] = f"{plan.folder.url}/checkpoints"
    if link:
        where["MLflow"] = link
    return Group(*sections, Text(), places(where))


def replay_dict(result: Replayed, link: str | None = None) -> dict[str, Any]:
    """A finished replay as plain values, for `--json`."""
    plan = result.plan
    return {
        "run": plan.source.run.folder.url,
        "split": plan.source.split,
        "label": plan.label,
        "folder": plan.folder.url if result.done else None,
        "changes": plan.change_records,
        "iterations": {
            str(index): {
                "stages": list(done.manifests),
                "loaded": done.resumed,
                "notes": done.notes,
                **({"scores": result.scores[index]["scores"]} if index in result.scores else {}),
            }
            for index, done in result.done.items()
        },
        "roles": result.movement.rows(),
        "updates": [row for _, row in _summaries(result)],
        "verified_tables": result.verified,
        "notes": result.notes,
        "seconds": result.seconds,
        "link": link,
    }


def change_lines(plan: ReplayPlan) -> list[Text]:
    """A line for each setting that is another than the run's."""
    return [Text(f"  {visible(f'{key}: {brief(old)} → {brief(new)}')}") for key, old, new in plan.changes]


def _head(result: Replayed) -> Text:
    plan = result.plan
    what = "iterations" if plan.source.split is None else f"evaluations on {visible(plan.source.split)}"
    text = Text.assemble(("replay", "bold"), f" of run {visible(plan.source.run.name)}, ")
    if not result.done:
        return text.append(
            "nothing to do: no setting changed that the stored tables depend on; --all runs every "
            "stage again and compares"
        )
    count = len(result.done)
    text.append(f"{number(count)} {what if count != 1 else what.replace('ions', 'ion', 1)}: ")
    text.append(", ".join(result.ran))
    loaded = sum(len(done.resumed) for done in result.done.values())
    if loaded:
        text.append(f" ({loaded} finished before)", "dim")
    text.append(f"; {result.seconds:.1f} s", "dim")
    if result.verified:
        text.append(f"\n{number(result.verified)} tables are equal to the stored ones, bit for bit", "green")
    return text


def _moved(rows: list[dict[str, Any]]) -> RenderableType:
    tokens = any("token_advantage_abs_after" in row for row in rows)
    columns = ["  role", ">turns", ">return by turn", ">|advantage|", ">same sign", ">correlation"]
    table = open_table(*columns, *([">|token advantage|"] if tokens else []))
    for row in rows:
        same = row["same_sign"]
        table.add_row(
            cell(f"  {row['role']}"),
            *(
                cell(_arrow(row.get(f"{n}_before"), row.get(f"{n}_after")))
                for n in ("turns", "return", "advantage_abs")
            ),
            cell(None if same is None else f"{same:.0%}"),
            cell(number(row["correlation"])),
            *(
                [cell(_arrow(row.get("token_advantage_abs_before"), row.get("token_advantage_abs_after")))]
                if tokens
                else []
            ),
        )
    return table


def _summaries(result: Replayed) -> list[tuple[int, dict[str, Any]]]:
    """The summary of every update, with its iteration."""
    if result.plan.training is None:
        return []
    return [(index, row) for index in result.done for row in update_summaries(result.own_tables(index))]


def _updates(rows: Sequence[tuple[int, dict[str, Any]]]) -> RenderableType:
    """The updates by iteration. `gap` is the distance to the sampler, `weight` the mean importance weight."""
    columns = [">rows", ">tokens", ">loss", ">gap", ">weight", ">masked"]
    table = open_table("  at", "model", "version", *columns)
    for index, row in rows:
        masked = row["importance_masked"]
        table.add_row(
            cell(f"  {index}"),
            cell(row["model_id"]),
            cell(f"{number(row['version_before'])} → {number(row['version_after'])}"),
            *(cell(number(row[c])) for c in ("num_rows", "num_tokens", "loss", "sampler_gap_mean")),
            cell(number(row["importance_weight_mean"])),
            cell(None if masked is None else f"{masked:.0%}"),
        )
    return table


def _scores(result: Replayed) -> list[RenderableType]:
    table = open_table("  after iterations", "metric", ">mean", ">95 % interval")
    for index, result_scores in result.scores.items():
        for score in result_scores["scores"]:
            low, high = score["low"], score["high"]
            table.add_row(
                cell(f"  {index}"),
                cell(score["name"]),
                cell(_arrow(score["before"], score["mean"])),
                cell(f"{low:.3f} to {high:.3f}" if low is not None else None),
            )
    return [Text(), table] if table.row_count else []


def _arrow(before: float | None, after: float | None) -> str:
    return number(after) if before == after else f"{number(before)} → {number(after)}"
