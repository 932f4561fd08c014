"""`run replay --counterfactual` from the command line to what is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import polars as pl

from pipeline.replays.command import held, print_result, ray_when_needed
from pipeline.replays.counterfactual.plan import (
    Asked,
    CounterfactualPlan,
    begin,
    counterfactual_plan,
    inputs_of,
    versions_of,
)
from pipeline.replays.counterfactual.show import counterfactual_dict, counterfactual_page
from pipeline.replays.source import Source, check_tables
from pipeline.run.cluster import check_gpus
from pipeline.run.execution import run_stages
from pipeline.run.fleet import Fleet
from pipeline.store.finished import Finished
from pipeline.store.runs import find_run
from pipeline.views.progress import RichProgress
from stages.base import Progress, check_chain


def run_counterfactual(name: str, root: str, asked: Asked, *, as_json: bool = False) -> None:
    """Play stored episodes of a run with replies replaced, and print what came of it.

    Raises:
        UsageError: no such run or iteration, interventions that can't be, or weights that are gone.
        RunFailed: an engine or a player failed.
    """
    plan = counterfactual_plan(Source(find_run(root, name)), asked)
    cluster = plan.plan.resolved.cluster
    with held(plan.folder), ray_when_needed(cluster, ()) as start:
        done = play(plan, RichProgress(), start)
    rows = pl.concat([pl.DataFrame(each.tables["interventions"].read()) for each in done])
    notes = list(dict.fromkeys(note for each in done for note in each.notes))
    print_result(
        as_json,
        lambda: counterfactual_dict(plan, rows, notes),
        lambda: counterfactual_page(plan, rows, notes),
    )


def play(
    plan: CounterfactualPlan, progress: Progress, start: Callable[[], None] = lambda: None
) -> list[Finished]:
    """Make the plays of every block of the iterations, each at most once.

    Args:
        start: starts Ray, if it has not; called before stages run.
    """
    blocks = [block for index in plan.indices for block in plan.blocks(index)]
    versions = [versions_of(plan, block) for block in blocks]  # before anything is started
    start()
    begin(plan)
    check_gpus(plan.plan)
    done = []
    with _fleets(plan, progress) as fleet_at:
        for stored, of_block in zip(blocks, versions, strict=True):
            tables, stages, place = inputs_of(stored), plan.stages(stored), plan.place(stored)
            check_tables(tables)
            check_chain(stages, {name: table.schema for name, table in tables.items()})
            finished = all(place.manifest(stage) for stage in stages)
            done.append(
                run_stages(
                    stages,
                    place,
                    plan.fingerprints(of_block),
                    what=f"counterfactual plays {plan.label!r} of iteration {stored.index} of run "
                    f"{plan.source.run.name!r}",
                    progress=progress,
                    fleet=None if finished else fleet_at(of_block),
                    tables=tables,
                    remedy=f"use another --label, or remove {plan.folder.url}",
                )
            )
    return done


@contextmanager
def _fleets(plan: CounterfactualPlan, progress: Progress) -> Iterator[Callable[[Mapping[str, int]], Fleet]]:
    """A function that gives a fleet at certain versions of weights; the one before it is then gone."""
    now: list[tuple[dict[str, int], Fleet]] = []

    def fleet_at(versions: Mapping[str, int]) -> Fleet:
        if now and now[-1][0] == dict(versions):
            return now[-1][1]
        if now:
            now.pop()[1].close()
        of_run = plan.plan
        fleet = Fleet(
            checkpoints=plan.source.run,
            models=of_run.models,
            engine_specs=of_run.engine_specs,
            trainer_specs={},
            player_specs={"train": of_run.player_spec},
            num_players=of_run.resolved.rollout.players,
            checkpoint_every=1,
            version_of=dict(versions).__getitem__,
            redo=_nothing_to_redo,
            progress=progress,
            limits=of_run.resolved.cluster.limits,
        )
        now.append((dict(versions), fleet))
        return fleet

    try:
        yield fleet_at
    finally:
        for _, fleet in now:
            fleet.close()


def _nothing_to_redo(model_id: str, version: int) -> list[dict[str, Any]]:
    return []
