"""Running a replay: iteration by iteration, each changed stage once, beside the run that it reads.

<run>/replays/<label>/
  replay.json                   what was changed, and of which run
  00000/ source.json result.json rewards/ credit/ partition/<model>/ scores/<model>/ token_advantages/
         updates/<model>/
  checkpoints/<model>/<version>/    of a replay that trains
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.replays.chain import training_on
from pipeline.replays.labels import check_held
from pipeline.replays.movement import Movement, movement_of
from pipeline.replays.plan import ReplayPlan, due_stages
from pipeline.replays.source import check_tables, where_from
from pipeline.replays.verify import unequal_tables
from pipeline.run.execution import run_stages
from pipeline.settings.program import hint
from pipeline.store.differences import dump, plain
from pipeline.store.evaluated import score_values
from pipeline.store.finished import RESULT, Finished, joined, united
from pipeline.store.manifest import package_versions
from pipeline.store.updates import moved
from pipeline.views.progress import Named
from stages.base import Progress, carried_of, written_as
from stages.tables.parquet import TableRef
from workflows.errors import RunFailed, UsageError
from workflows.trajectory import LASTING_TABLES, kind_of_table, schema_of


@dataclass(slots=True)
class Replayed:
    """The outcome of a replay, iteration by iteration."""

    plan: ReplayPlan
    done: dict[int, Finished] = field(default_factory=dict)
    blocks: dict[tuple[int, int], Finished] = field(default_factory=dict)  # by iteration and block
    moved: dict[int, Movement] = field(default_factory=dict)
    scores: dict[int, dict[str, Any]] = field(default_factory=dict)  # of evaluations: see `moved_scores`
    verified: int = 0  # tables that are equal to the stored ones, bit for bit
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ran(self) -> list[str]:
        """Stages that ran, now or before, in order."""
        return list(dict.fromkeys(m.stage for done in self.done.values() for m in done.manifests.values()))

    @property
    def movement(self) -> Movement:
        return Movement.merged(self.moved.values())

    def own_tables(self, index: int) -> dict[str, TableRef]:
        """The tables that the replay itself wrote for an iteration, by name."""
        return self.done[index].own_tables

    def remade(self, stored: Finished) -> dict[str, TableRef]:
        """Tables that a stored block shares with earlier blocks, where the replay made any of them anew."""
        shared = {t: numbers for m in stored.manifests.values() for t, numbers in m.shared.items()}
        if not shared:  # as in every iteration of one block, whose manifests need not be read again
            return {}
        of_run = {block.store.block: block.tables for block in self.plan.source.blocks(stored.index)}
        remade = {}
        for table, numbers in shared.items():
            anew = {
                n: done.own_tables[written_as(table)]
                for n in numbers
                if (done := self.blocks.get((stored.index, n))) and written_as(table) in done.own_tables
            }
            if anew:
                remade[table] = united([anew.get(n, of_run[n][written_as(table)]) for n in numbers])
        return remade

    @property
    def trained(self) -> bool | None:
        """Whether any update moved weights; None for a replay without updates."""
        if self.plan.training is None:
            return None
        manifests = [m for done in self.done.values() for m in done.manifests.values()]
        return any(moved(m) for m in manifests if m.stage.startswith("update/"))


def replay(
    plan: ReplayPlan,
    indices: Sequence[int],
    progress: Progress,
    start: Callable[[], None] = lambda: None,
    *,
    compare: bool = True,
    on_done: Callable[[str], None] = lambda line: None,
) -> Replayed:
    """Replay the iterations in order; those that are finished under this label are loaded.

    Args:
        start: starts Ray, if it has not; called before stages run.
        compare: say how returns and advantages moved against the stored ones.
        on_done: takes one line for each iteration or evaluation that is done.

    Raises:
        UsageError: the label holds a replay with other settings, or scores are needed that are not stored.
        RunFailed: nothing is left to train on, or with `plan.again`, numbers differ from the stored ones.
    """
    began = time.monotonic()
    check_label(plan)
    result = Replayed(plan)
    with training_on(plan, indices, progress) as chain:
        for index in indices:
            now = plan if chain is None else chain.plan_at(index)
            fleet = None if chain is None else chain.fleet
            what = (
                f"iteration {index}" if plan.source.split is None else f"evaluation after {index} iterations"
            )
            named = Named(progress, what)
            for stored in plan.source.blocks(index):
                of_block = now.of_block(stored)
                carried = carried_into(of_block, stored, result)
                remade = result.remade(stored)
                due = due_stages(of_block, stored, carried, remade)
                if due:
                    start()
                    begin(plan)
                    over = replace(stored, tables={**stored.tables, **remade})
                    _replay_block(result, of_block, over, due, carried, named, fleet)
            if not _gather(result, index, named, compare):
                continue
            on_done(f"{what}: {_line(result.done[index])}")
            if chain is not None:
                chain.ended(index)
    result.seconds = time.monotonic() - began
    if result.done:
        _note_done(plan, result)
    return result


def _line(done: Finished) -> str:
    """Which stages ran now and in what time, and which were finished before."""
    ran = [name for name in done.manifests if name not in done.resumed]
    before = f"{', '.join(done.resumed)} finished before" if done.resumed else ""
    return "; ".join(filter(None, (", ".join(ran), before))) + f", {done.seconds:.1f} s"


def _replay_block(
    result: Replayed,
    plan: ReplayPlan,
    stored: Finished,
    due: Sequence[Any],
    carried: Mapping[str, TableRef],
    progress: Progress,
    fleet: Any,
) -> None:
    place = plan.place(stored.index).at(stored.store.block)
    tables = inputs_of(stored, due, carried)
    check_tables(tables)
    if place.folder.read_text("source.json") is None:
        place.folder.write_text("source.json", dump(where_from(tables)))
    what = f"the replay {plan.label!r} of iteration {stored.index} of run {plan.source.run.name!r}"
    done = run_stages(
        due,
        place,
        plan.fingerprints_at(stored),
        what=what,
        progress=progress,
        fleet=fleet,
        tables={**stored.tables, **tables},
        remedy=f"use another --label, or remove {plan.folder.url}",
    )
    result.blocks[stored.index, stored.store.block] = done
    if plan.again:
        result.verified += _verify(plan, stored, done, what)


def _gather(result: Replayed, index: int, progress: Progress, compare: bool) -> bool:
    """Put the blocks of an iteration together and compare them with what is stored; whether any stage ran."""
    plan = result.plan
    blocks = [done for (of, _), done in result.blocks.items() if of == index]
    if not blocks:
        return False
    stored = {block.store.block: block for block in plan.source.blocks(index)}
    result.done[index] = joined(blocks)
    place = plan.place(index)
    if plan.source.split is not None:
        result.scores[index] = _scores(plan, result.done[index])
        place.folder.write_text(RESULT, dump(result.scores[index]))
    elif compare:
        moves = [
            movement_of(stored[block.store.block], block, progress)
            for block in blocks
            if "turns" not in stored[block.store.block].shared  # its turns are counted where they were played
        ]
        result.moved[index] = Movement.merged(moves) if len(moves) != 1 else moves[0]
        place.folder.write_text(RESULT, dump(result.moved[index].as_dict()))
    return True


def inputs_of(stored: Finished, due: Sequence[Any], carried: Mapping[str, TableRef]) -> dict[str, TableRef]:
    """The tables that the due stages read of the source; what they write is not among them.

    Raises:
        UsageError: the source lacks one.
    """
    written = {table for stage in due for table in stage.outputs}
    tables: dict[str, TableRef] = {}
    for stage in due:
        for name in stage.inputs:
            if name in written or name in tables:
                continue
            kept = name.removeprefix("stored_")
            table = carried.get(name) or stored.tables.get(kept)
            if table is None and kept.startswith("greedy_"):
                raise UsageError(
                    f"iteration {stored.index} has no table {kept!r}, which stage {stage.name!r} reads: the "
                    "run played no greedy episodes; use another credit.use, or run an iteration with this one"
                )
            if table is None:
                raise UsageError(
                    f"iteration {stored.index} has no table {kept!r}, which stage {stage.name!r} reads; "
                    f"finish the iteration first (`{hint('run iteration')}`)"
                )
            tables[name] = table
    return tables


def carried_into(plan: ReplayPlan, stored: Finished, result: Replayed) -> dict[str, TableRef]:
    """What stages read of earlier blocks: the newest that wrote it, as `store.run.carried_tables` finds it.

    That is the table as the replay made it, or as it is stored where it was made with these very settings;
    else it has no parts, which is how a method begins.
    """
    carried = {}
    for stage in plan.stages:
        for name, table in carried_of(stage).items():
            carried[name] = TableRef(table, "", schema_of(table), ())
            other: Finished | None = None  # where the stage ran, and what it left can't be taken
            for before in _blocks_before(plan, stored, table):
                replayed = result.blocks.get((before.index, before.store.block))
                if replayed is not None and table in replayed.tables:
                    carried[name] = replayed.tables[table]
                    break
                if table in before.tables and _made_alike(plan, before, stage.name):
                    carried[name] = before.tables[table]
                    break
                if _ran_for(before, stage.name, table):
                    other = other or before
                if table in before.tables:
                    other = before
                    break
            if other is not None and not carried[name].parts:
                result.notes.append(
                    f"iteration {stored.index} begins without the {table} of iteration {other.index}, which "
                    "were made with other settings; replay from the first iteration to have them"
                )
    return carried


def _ran_for(before: Finished, stage: str, table: str) -> bool:
    """Whether a stage of a stored block would have left this table, had it been set so: one of a model is
    left by blocks that train the model."""
    model = table.partition("/")[2]
    return f"updates/{model}" in before.tables if model else before.manifest(stage) is not None


def _made_alike(plan: ReplayPlan, before: Finished, stage: str) -> bool:
    """Whether the stage of a stored block was made with the replay's settings, and what it reads too."""
    fingerprints = plan.fingerprints_at(before)
    made = {name: before.manifest(name) for name in ("reward", "credit", stage)}
    return made[stage] is not None and all(
        m.fingerprint == plain(fingerprints[name]) for name, m in made.items() if m is not None
    )


def _blocks_before(plan: ReplayPlan, stored: Finished, table: str) -> Iterator[Finished]:
    """The stored blocks before this one that a carried table may come from, the newest first; none for
    evaluations."""
    source = plan.source
    if source.split is not None:
        return
    yield from reversed([b for b in source.blocks(stored.index) if b.store.block < stored.store.block])
    earlier = [i for i in source.indices() if i < stored.index]
    for index in reversed(earlier if kind_of_table(table) in LASTING_TABLES else earlier[-1:]):
        yield from reversed(source.blocks(index))


def _verify(plan: ReplayPlan, stored: Finished, done: Finished, what: str) -> int:
    """Compare what was made again with what is stored, where the settings are the same; the number of
    tables."""
    fingerprints, equal = plan.fingerprints_at(stored), 0
    changed: set[str] = set()
    for stage in plan.stages:
        manifest = stored.manifest(stage.name)
        if manifest is None or manifest.fingerprint != plain(fingerprints[stage.name]):
            changed |= set(stage.outputs)
        if changed & {*stage.inputs, *stage.outputs}:
            changed |= set(stage.outputs)
            continue
        for table in stage.outputs:
            if problem := unequal_tables(stored.tables[table], done.tables[table]):
                raise RunFailed(
                    f"{what}: table {table!r} is not as it is stored, with the same settings: {problem}; "
                    "a plug-in whose numbers depend on more than its inputs, or another version of Cadre or "
                    "of a package (see packages in both manifests)"
                )
            equal += 1
    return equal


def _scores(plan: ReplayPlan, done: Finished) -> dict[str, Any]:
    from stages.evaluate import sources_of, summarise

    (stage,) = plan.stages
    names, solved_at = stage.metrics.names, plan.resolved.evaluate.solved_at  # type: ignore[attr-defined]
    sources = sources_of(done.tables["tasks"].read(["task_id", "source"]))
    scores = summarise(done.tables["evaluation"].read(), names, solved_at, sources)
    text = plan.source.place(done.index).folder.read_text(RESULT)
    before = {s["name"]: s["mean"] for s in json.loads(text)["scores"]} if text else {}
    return {
        "scores": [{**score_values(score), "before": before.get(score.name)} for score in scores],
    }


def check_label(plan: ReplayPlan) -> None:
    """Refuse a label that holds another replay.

    Raises:
        UsageError: with what is different.
    """
    how = f"replay {plan.label!r} of run {plan.source.run.name!r} was made with other settings"
    check_held(plan.folder.read_text("replay.json"), plan.identity, how, plan.folder)


def begin(plan: ReplayPlan) -> None:
    """Write down what is replayed, before the first stage of it runs."""
    if plan.folder.read_text("replay.json") is not None:
        return
    _write(plan, {"created_at": time.time(), "packages": package_versions(), "iterations": []})


def _note_done(plan: ReplayPlan, result: Replayed) -> None:
    text = plan.folder.read_text("replay.json")
    info = json.loads(text) if text else {}
    _write(plan, info | {"iterations": sorted({*info.get("iterations", ()), *result.done})})


def _write(plan: ReplayPlan, info: Mapping[str, Any]) -> None:
    source = plan.source
    content = {
        "source": {"name": source.run.name, "uri": source.run.folder.url, "split": source.split},
        "label": plan.label,
        "changes": plan.change_records,
        "identity": plan.identity,
    }
    plan.folder.write_text("replay.json", dump({**info, **content}))
