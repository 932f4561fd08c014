"""`run ablate`: from the command line to what is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from pipeline.replays.ablation.ablate import ablate
from pipeline.replays.ablation.record import record_ablation
from pipeline.replays.ablation.show import ablation_dict, ablation_page, variant_settings
from pipeline.replays.ablation.variants import variant_plans
from pipeline.replays.command import BRIEF_SECONDS, held, left_out, print_result, ray_when_needed
from pipeline.replays.dry import Due, dry_dict, due_of
from pipeline.replays.plan import ReplayPlan
from pipeline.replays.source import Source
from pipeline.store.runs import find_run
from pipeline.views.progress import RichProgress
from pipeline.views.render import cell, number, open_table, places, visible


def run_ablate(
    name: str,
    root: str,
    variants: str,
    *,
    iterations: str | None,
    label: str | None,
    shown: int,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Compare several settings of rewards and credit over the stored turns of a run.

    Raises:
        UsageError: no such run, iteration or file, or a variant that stored turns can't follow.
        RunFailed: a stage failed.
    """
    source = Source(find_run(root, name))
    plans = variant_plans(source, variants, label)
    indices = source.chosen(iterations)
    if dry_run:
        due = {variant: due_of(plan, indices) for variant, plan in plans.items()}
        print_result(
            as_json,
            lambda: {variant: dry_dict(plan, due[variant]) for variant, plan in plans.items()},
            lambda: dry_ablation_page(plans, due),
        )
        return
    first = next(iter(plans.values()))
    progress = RichProgress(brief_seconds=BRIEF_SECONDS)
    with held(first.ablation), ray_when_needed(first.resolved.cluster, first.changes) as start:
        ablation = ablate(plans, indices, progress, start, shown, progress.print_line)
    link, notes = record_ablation(ablation), left_out(source, iterations)
    print_result(
        as_json, lambda: ablation_dict(ablation, link, notes), lambda: ablation_page(ablation, link, notes)
    )


def dry_ablation_page(plans: Mapping[str, ReplayPlan], due: Mapping[str, Sequence[Due]]) -> RenderableType:
    """The dry run of an ablation: a line for each variant."""
    first = next(iter(plans.values()))
    one = next(iter(due.values()))
    turns = sum(each.rows for each in one)
    head = Text.assemble(
        ("dry run", "bold"),
        f" of an ablation of run {visible(first.source.run.name)}: {len(plans)} variants over "
        f"{number(turns)} turns of {len(one)} iteration{'s' if len(one) != 1 else ''}",
    )
    table = open_table("  variant", "stages", "settings", ">finished")
    for name, plan in plans.items():
        stages = dict.fromkeys(stage for each in due[name] for stage in each.stages)
        done = sum(each.finished == len(each.stages) > 0 for each in due[name])
        table.add_row(
            cell(f"  {name}"),
            cell(", ".join(stages) or "none: read as stored"),
            variant_settings(plan),
            cell(f"{done} of {sum(bool(each.stages) for each in due[name])}"),
        )
    return Group(
        head,
        Text(),
        table,
        Text(),
        places({"run": first.source.run.folder.url, "tables": first.ablation.url}),
    )
