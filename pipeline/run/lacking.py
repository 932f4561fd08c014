"""Tables that finished stages of an older version lack, where an iteration was half done before an upgrade.

A stage that borrows nothing is made again: it has the same inputs. What engines sampled or trainers learned
is not made twice. Readers that name a table in `does_without` take it as empty, which says that nothing is
known; others are refused, with what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.plan.blocks import Block
from pipeline.settings.program import again
from pipeline.store.finished import Finished, united
from pipeline.store.manifest import Manifest
from stages.base import Stage, written_as
from stages.tables.parquet import TableRef
from workflows.errors import UsageError
from workflows.trajectory import kind_of_table


def lacking(stage: Stage, manifest: Manifest) -> list[str]:
    """The tables that the stage writes today, and that it did not write when it was made."""
    return [table for table in stage.outputs if table not in manifest.tables]


def made_again(tables: Sequence[str]) -> str:
    """The note of a stage that is made again for its tables."""
    return f"made again: the version of Cadre that had made it wrote no table {', '.join(tables)}"


def inputs_of(
    stage: Stage, known: Mapping[str, TableRef], stages: Sequence[Stage], what: str, remedy: str
) -> dict[str, TableRef]:
    """The tables that a stage reads.

    Args:
        known: those that there are.
        stages: of its block, in order.
        what: names the block in messages.
        remedy: where finished work can't be gone on with; one that offers `--redo` is told for the writer.

    Raises:
        UsageError: one is not there, and the stage can't do without it.
    """
    inputs = {}
    for table in stage.inputs:
        if table in known:
            inputs[table] = known[table]
        elif does_without(stage, table):
            inputs[table] = TableRef(table, "", stage.inputs[table], ())
        else:
            raise _too_old(stage, table, stages, what, remedy)
    return inputs


def shared_tables(
    stages: Sequence[Stage],
    shared: Mapping[str, Sequence[int]],
    tables: Sequence[Mapping[str, TableRef]],
    what: str,
) -> dict[str, TableRef]:
    """What the stages of a block read of earlier blocks, by input name.

    Args:
        shared: see `pipeline.plan.blocks.Block`.
        tables: of each earlier block.

    Raises:
        UsageError: one is not there, and a stage can't do without it.
    """
    found = {}
    for name, blocks in shared.items():
        table = written_as(name)
        have = [tables[block][table] for block in blocks if table in tables[block]]
        readers = [stage for stage in stages if name in stage.inputs]
        needy = [stage for stage in readers if not does_without(stage, name)]
        if len(have) == len(blocks):
            found[name] = united(have)
        elif needy:
            raise _too_old(needy[0], table, stages, what, "--redo")
        else:
            found[name] = TableRef(table, "", readers[0].inputs[name], ())
    return found


def first_lacking(blocks: Sequence[Block], finished: Sequence[Finished], name: str) -> int | None:
    """The number of the first block in which a finished stage of this name, or kind, lacks a table."""
    for number, (block, done) in enumerate(zip(blocks, finished, strict=True)):
        for stage in block.stages:
            manifest = done.manifest(stage.name) if name in (stage.name, *stage.name.split("/")[:1]) else None
            if manifest is not None and lacking(stage, manifest):
                return number
    return None


def does_without(stage: Stage, table: str) -> bool:
    """Whether a stage has something to say without one of its inputs."""
    return kind_of_table(table) in getattr(stage, "does_without", ())


def _too_old(stage: Stage, table: str, stages: Sequence[Stage], what: str, remedy: str) -> UsageError:
    writer = next((s.name for s in stages if table in s.outputs), _writer_of(table))
    anew = remedy
    if "--redo" in remedy or "{redo}" in remedy:
        redo = again(f"--redo {writer.partition('/')[0]}")
        anew = f"make that stage and those after it again (`{redo}`)"
    return UsageError(
        f"{what} was begun by an older version of Cadre, whose stage {writer!r} wrote no table {table!r}, "
        f"and stage {stage.name!r} reads it; finish it with the version that began it, or {anew}"
    )


def _writer_of(table: str) -> str:
    """The stage of an earlier block that writes a table of a model."""
    kind, _, model = table.partition("/")
    return f"update/{model}" if kind in ("ratios", "trust", "updates") else kind
