"""Several settings of rewards and credit over the same stored turns, in one go.

Each variant is a replay of its own, which its label finds again. What they share is done once: turns are
read and decoded once for all rewards, equal rewards are computed once, and what a variant leaves as it is
stored is read from the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from pipeline.replays.ablation.agreement import Agreement, agreement_of
from pipeline.replays.ablation.plot import ablation_files
from pipeline.replays.plan import ReplayPlan, due_stages
from pipeline.replays.replayer import Replayed, begin, inputs_of, replay
from pipeline.replays.source import Source, check_tables
from pipeline.replays.together import score_together
from pipeline.store.differences import dump
from pipeline.store.finished import Finished
from pipeline.store.folder import Folder
from pipeline.store.place import IterationStore
from pipeline.views.progress import Named
from stages.base import Progress
from stages.parts import map_parts
from stages.reward import RewardStage
from stages.tables.parquet import TableRef, parquet_bytes, write_bytes
from workflows.trajectory import TURN_KEYS

_CREDIT: Final = (*TURN_KEYS, "return", "advantage", "excluded")


@dataclass(frozen=True, slots=True)
class Ablation:
    """Finished variants over the same turns, and how they compare."""

    source: Source
    folder: Folder
    replays: Mapping[str, Replayed]  # by variant
    indices: tuple[int, ...]
    agreement: Agreement
    seconds: float

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(self.replays)


def ablate(
    plans: Mapping[str, ReplayPlan],
    indices: Sequence[int],
    progress: Progress,
    start: Callable[[], None] = lambda: None,
    shown: int = 10,
    on_done: Callable[[str], None] = lambda line: None,
) -> Ablation:
    """Replay every variant over the iterations, compare them, and write the comparison beside them.

    Args:
        start: starts Ray, if it has not; called before anything runs.
        shown: episodes on which they disagree most.
        on_done: takes one line for each variant and iteration.

    Raises:
        UsageError, RunFailed: as `replay`.
    """
    began = time.monotonic()
    start()
    source = next(iter(plans.values())).source
    for index in indices:
        for stored in source.blocks(index):
            _score_together(list(plans.values()), stored, Named(progress, f"iteration {index}"))
    replays = {
        name: replay(plan, indices, Named(progress, name), compare=False, on_done=_with_name(name, on_done))
        for name, plan in plans.items()
    }
    numbers = [_numbers(replays, index, progress) for index in indices]
    agreement = agreement_of(pl.concat(numbers), tuple(plans), shown)
    first = next(iter(plans.values()))
    folder = first.ablation
    ablation = Ablation(first.source, folder, replays, tuple(indices), agreement, time.monotonic() - began)
    write_bytes(f"{folder.url}/episodes.parquet", parquet_bytes(agreement.episodes.to_arrow()))
    for name, data in ablation_files(agreement).items():
        write_bytes(f"{folder.url}/{name}", data)
    folder.write_text("ablation.json", dump(agreement.as_dict() | {"iterations": list(indices)}))
    return ablation


def _with_name(name: str, on_done: Callable[[str], None]) -> Callable[[str], None]:
    return lambda line: on_done(f"{name}, {line}")


def _score_together(plans: Sequence[ReplayPlan], stored: Finished, progress: Progress) -> None:
    """Compute the rewards of all variants that need them and have none yet, in one pass over the turns."""
    due: list[tuple[ReplayPlan, RewardStage]] = []
    tables: dict[str, TableRef] = {}
    for plan in plans:
        stage = plan.stages[0]
        assert isinstance(stage, RewardStage)
        of_block, place = plan.of_block(stored), _place_of(plan, stored)
        due_now = {s.name for s in due_stages(of_block, stored, {})}
        if stage.name in due_now and place.manifest(stage) is None:
            due.append((plan, stage))
            tables = inputs_of(stored, [stage], {})
    if len(due) < 2:
        return
    check_tables(tables)
    for plan, stage in due:
        begin(plan)
        _place_of(plan, stored).clear(stage)
    sinks = [_place_of(plan, stored).sinks(stage)["rewards"] for plan, stage in due]
    began = time.monotonic()
    results = score_together(tables, sinks, [(s.rewards, s.truncated) for _, s in due], progress)
    seconds = (time.monotonic() - began) / len(due)
    for (plan, stage), result in zip(due, results, strict=True):
        for account in result.accounts:
            account.check()
        fingerprint = plan.fingerprints_at(stored)[stage.name]
        _place_of(plan, stored).commit(stage, result, fingerprint, tables, seconds)


def _place_of(plan: ReplayPlan, stored: Finished) -> IterationStore:
    """Where a plan writes what it makes of a stored block."""
    return plan.place(stored.index).at(stored.store.block)


def _numbers(replays: Mapping[str, Replayed], index: int, progress: Progress) -> pl.DataFrame:
    """Keys and role of every turn of an iteration, and `return/<variant>`, `advantage/<variant>` of each;
    null where a variant leaves the turn out."""
    first = next(iter(replays.values()))
    stored = first.plan.source.stored(index)
    credits, tokens = {}, {}
    for name, replayed in replays.items():
        tables = dict(replayed.done[index].tables) if index in replayed.done else dict(stored.tables)
        credits[name] = tables["credit"]
        if replayed.plan.resolved.advantage.use == "gae":
            tokens[name] = _advantages_by_turn(tables)
    turns = stored.tables["turns"]
    progress.start("compare", len(turns.parts), "part")
    receipts = map_parts(
        numbers_part,
        range(len(turns.parts)),
        on_done=lambda done: progress.advance(turns=done["numbers"].height),
        brief=True,
        turns=turns,
        credits=credits,
    )
    progress.finish()
    numbers = pl.concat([receipt["numbers"] for receipt in receipts])
    for name, of_turn in tokens.items():
        column = f"advantage/{name}"
        joined = numbers.drop(column).join(of_turn, on=TURN_KEYS, how="left", maintain_order="left")
        numbers = joined.rename({"advantage": column}).select(numbers.columns)
    return numbers


def numbers_part(index: int, turns: TableRef, credits: Mapping[str, TableRef]) -> dict[str, Any]:
    """The numbers of part `index`; turns that no variant uses are left out."""
    numbers = pl.DataFrame(turns.read_part(index, (*TURN_KEYS, "role")))
    for name, table in credits.items():
        usable = pl.col("excluded").is_null()
        credit = pl.DataFrame(table.read_part(index, _CREDIT)).select(
            *TURN_KEYS,
            pl.when(usable).then("return").alias(f"return/{name}"),
            pl.when(usable).then("advantage").alias(f"advantage/{name}"),
        )
        numbers = numbers.join(credit, on=TURN_KEYS, how="left", maintain_order="left")
    some = pl.any_horizontal(pl.col(f"return/{name}").is_not_null() for name in credits)
    return {"numbers": numbers.filter(some)}


def _advantages_by_turn(tables: Mapping[str, TableRef]) -> pl.DataFrame:
    """The mean token advantage of each turn, for methods that have no other."""
    frames = []
    for name, table in tables.items():
        if name.startswith("token_advantages/"):
            for part in range(len(table.parts)):
                numbers = pl.DataFrame(table.read_part(part, (*TURN_KEYS, "advantages")))
                mean = pl.col("advantages").list.mean().cast(pl.Float64)
                frames.append(numbers.select(*TURN_KEYS, advantage=mean))
    return pl.concat(frames)
