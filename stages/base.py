"""What a stage is: named tables in, named tables out, and an account of every row.

A stage runs on Ray Data by `stages.parts.map_parts`. The work inside is a plain function over
`pyarrow.Table` that tests call without Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa

from stages.lease import NO_FLEET, Fleet, Lease, leased
from stages.tables.parquet import Part, TableRef, TableSink
from workflows.errors import CadreError, UsageError

BASE: Final = "base_"


@dataclass(slots=True)
class Account:
    """Rows in = rows out + excluded, by reason, at one boundary.

    `unit` says what a row is (task, episode, turn). Raises nothing by itself: the runner calls `check`.
    """

    boundary: str
    unit: str
    rows_in: int
    rows_out: int
    excluded: dict[str, int] = field(default_factory=dict)

    def check(self) -> None:
        if self.rows_in != self.rows_out + sum(self.excluded.values()):
            raise CadreError(
                f"rows are lost at {self.boundary!r}: {self.rows_in} {self.unit}s in, {self.rows_out} out, "
                f"excluded {self.excluded or 'none'}; this is a fault in the stage, please report it"
            )

    def merge(self, other: Account) -> Account:
        """Both accounts of one boundary as one."""
        excluded = dict(self.excluded)
        for reason, count in other.excluded.items():
            excluded[reason] = excluded.get(reason, 0) + count
        rows_in, rows_out = self.rows_in + other.rows_in, self.rows_out + other.rows_out
        return Account(self.boundary, self.unit, rows_in, rows_out, excluded)

    def as_dict(self) -> dict[str, Any]:
        """For `--json` and stored files."""
        return {
            "boundary": self.boundary,
            "unit": self.unit,
            "in": self.rows_in,
            "out": self.rows_out,
            "excluded": self.excluded,
        }


@dataclass(slots=True)
class StageResult:
    """What a stage leaves for its manifest: the parts of each output, accounts, and plain numbers."""

    parts: dict[str, list[Part]]
    accounts: list[Account] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # sentences for the summary, e.g. "no signal: ..."


class Progress(Protocol):
    """Where a stage reports how far it is. `unit` rates are shown by the command line."""

    def start(self, label: str, total: int | None, unit: str) -> None: ...
    def advance(self, amount: int = 1, **rates: float) -> None: ...
    def finish(self) -> None: ...
    def say(self, line: str) -> None: ...


class Quiet:
    """A progress that shows nothing: for tests and library use."""

    def start(self, label: str, total: int | None, unit: str) -> None:
        pass

    def advance(self, amount: int = 1, **rates: float) -> None:
        pass

    def finish(self) -> None:
        pass

    def say(self, line: str) -> None:
        pass


@dataclass(slots=True)
class Context:
    """What a stage may use beside its tables. Pure stages use `progress` only."""

    iteration: int
    progress: Progress = field(default_factory=Quiet)
    fleet: Fleet = NO_FLEET  # as much of it as the stage's lease names (`stages.lease`)
    block: int = 0  # which part of the iteration, from 0


class Stage(Protocol):
    """One node of an iteration.

    `inputs` and `outputs` map table names to schemas; `folder` is where the manifest lies, within
    the iteration; `places` maps each output to its folder within `folder` ("" for the folder itself).
    `lease` says what it borrows of the fleet: "none" is nothing, "engine" the players, "trainer" trainers and
    their checkpoints, "both" all of it. A stage may also have `carried`: inputs that are outputs of the
    iteration before, by name; they have no parts in the first iteration. It may also name kinds of inputs in
    `does_without`: these have no parts where an older version of the code did not write them.
    """

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> str: ...
    @property
    def lease(self) -> Lease: ...
    @property
    def inputs(self) -> Mapping[str, pa.Schema]: ...
    @property
    def outputs(self) -> Mapping[str, pa.Schema]: ...
    @property
    def places(self) -> Mapping[str, str]: ...

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult: ...


def check_chain(stages: Sequence[Stage], there: Mapping[str, pa.Schema] | None = None) -> None:
    """Refuse a list of stages in which an input is not an earlier stage's output of the same schema.

    Args:
        there: tables that are there before the first stage, by name.

    Raises:
        UsageError: naming the stage, the table and what is there instead; or a lease that there is not.
    """
    known = {table: ("an earlier block", schema) for table, schema in (there or {}).items()}
    written = {table: schema for stage in stages for table, schema in stage.outputs.items()}
    for stage in stages:
        leased(stage, None)
        carried = carried_of(stage)
        for table, schema in stage.inputs.items():
            if table in carried and written.get(carried[table]) == schema:
                continue
            if table not in known:
                raise UsageError(
                    f"stage {stage.name!r} reads table {table!r}, which no earlier stage writes; "
                    f"written before it: {', '.join(known) or 'nothing'}"
                )
            writer, have = known[table]
            for column in schema.names:
                if column not in have.names or have.field(column).type != schema.field(column).type:
                    raise UsageError(
                        f"stage {stage.name!r} reads {table!r} column {column!r} as "
                        f"{schema.field(column).type}, but {writer!r} does not write it so"
                    )
        for table, schema in stage.outputs.items():
            if table in known:
                raise UsageError(f"table {table!r} is written by {known[table][0]!r} and by {stage.name!r}")
            known[table] = (stage.name, schema)


def written_as(name: str) -> str:
    """The table that an input of a stage is: `base_turns` are the `turns` of an earlier block, read beside
    those that the stage's own block writes."""
    return name.removeprefix(BASE)


def carried_of(stage: Stage) -> Mapping[str, str]:
    """Inputs of a stage that are outputs of the iteration before: its input's name → that table."""
    carried: Mapping[str, str] = getattr(stage, "carried", {})
    return carried
