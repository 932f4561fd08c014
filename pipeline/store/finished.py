"""One value for what is finished: of an iteration with all its blocks, of an evaluation, of a replay."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Final

from pipeline.metrics.signs import Alarm
from pipeline.store.manifest import Manifest
from pipeline.store.place import IterationStore
from stages.base import Account
from stages.tables.parquet import TableRef
from workflows.errors import UsageError
from workflows.trajectory import ALIGNED_TABLES, STATE_TABLES, kind_of_table

MARK: Final = "done.json"  # says that an iteration is whole
RESULT: Final = "result.json"  # says it of an evaluation and of a replay


@dataclass(frozen=True, slots=True)
class Finished:
    """The finished stages of one place, as summaries, reports and metrics need them.

    Of an iteration of several blocks, `tables` holds the rows of all blocks, block after block, and of a
    table that is a state (`STATE_TABLES`) the newest; `manifests` has those of all blocks by `Manifest.key`.
    """

    store: IterationStore
    tables: Mapping[str, TableRef] = field(default_factory=dict)
    manifests: Mapping[str, Manifest] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    alarms: tuple[Alarm, ...] = ()
    seconds: float = 0.0
    resumed: tuple[str, ...] = ()  # keys of stages that were finished before
    whole: bool = True  # whether nothing is left to do here
    inherited: frozenset[str] = frozenset()  # of a replay: stages whose tables are the run's
    blocks: int = 1
    begun: Mapping[str, TableRef] = field(default_factory=dict)  # plays of an unfinished rollout

    @property
    def index(self) -> int:
        return self.store.index

    @property
    def measured(self) -> dict[str, TableRef]:
        """The tables for metrics: of those whose parts belong together, the parts that all of them have.

        An unfinished rollout has plays without rewards, behind those of finished blocks that have some.
        """
        parts = min((len(t.parts) for n, t in self.tables.items() if n in ALIGNED_TABLES), default=0)
        return {
            name: replace(table, parts=table.parts[:parts]) if name in ALIGNED_TABLES else table
            for name, table in self.tables.items()
        }

    @property
    def own_tables(self) -> dict[str, TableRef]:
        """The tables that its stages wrote, without those that came from elsewhere."""
        written = [name for m in self.manifests.values() for name in m.tables]
        return {name: self.tables[name] for name in dict.fromkeys([*written, *self.begun])}

    @property
    def shared(self) -> frozenset[str]:
        """Of one block: the tables that it reads and that an earlier block, or another place, wrote."""
        return frozenset(self.tables.keys() - self.own_tables.keys())

    def manifest(self, stage: str) -> Manifest | None:
        """The newest block's manifest of the stage of this name."""
        return next((m for m in reversed(list(self.manifests.values())) if m.stage == stage), None)

    @property
    def accounts(self) -> list[Account]:
        """One for each boundary, in order: those of several blocks are added up."""
        merged: dict[str, Account] = {}
        for account in (a for m in self.manifests.values() for a in m.accounts):
            before = merged.get(account.boundary)
            merged[account.boundary] = account if before is None else before.merge(account)
        return list(merged.values())

    @property
    def notes(self) -> list[str]:
        """What its stages had to say, each sentence once; of several blocks, first what they did."""
        said = [note for m in self.manifests.values() for note in m.notes]
        return list(dict.fromkeys([*([self._course] if self.blocks > 1 else []), *said]))

    @property
    def _course(self) -> str:
        """What the blocks did, one after another."""
        words = []
        for block in range(self.blocks):
            manifests = [m for m in self.manifests.values() if m.block == block]
            stages = [m.stage for m in manifests]
            trained = [stage.partition("/")[2] for stage in stages if stage.startswith("update/")]
            played = "played on" if any(m.stage == "rollout" and m.shared for m in manifests) else "played"
            did = [played] if "rollout" in stages else []
            words.append(" and ".join([*did, *([f"trained {', '.join(trained)}"] if trained else [])]))
        return f"{self.blocks} blocks: " + "; ".join(f"{n} {w or 'unfinished'}" for n, w in enumerate(words))

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Wall time by stage, in all blocks together."""
        seconds: dict[str, float] = {}
        for m in self.manifests.values():
            seconds[m.stage] = seconds.get(m.stage, 0.0) + m.seconds
        return seconds

    @property
    def stage_metrics(self) -> dict[str, dict[str, float]]:
        """What each stage measured; where several blocks say it, the newest."""
        metrics: dict[str, dict[str, float]] = {}
        for m in self.manifests.values():
            metrics.setdefault(m.stage, {}).update(m.metrics)
        return metrics

    @property
    def finished_at(self) -> float:
        """When its last stage ended, in epoch seconds."""
        return max((m.finished_at for m in self.manifests.values()), default=0.0)

    @staticmethod
    def read(store: IterationStore, mark: str = MARK, *, begun: bool = False) -> Finished:
        """What lies in a place: `store` is its first block, `mark` the file that says it is whole.

        With `begun`, it has all that there is of the newest block too, behind the tables of finished ones: of
        a rollout that is unfinished the plays that are committed.

        Raises:
            UsageError: tables of a schema version that can't be read here.
        """
        text = store.folder.read_text(mark)
        noted: dict[str, Any] = json.loads(text) if text else {}
        partly = begun and text is None
        done = joined([of_block(place, begun=partly) for place in store.blocks()], partly=partly)
        return replace(
            done,
            metrics=noted.get("metrics", {}),
            alarms=tuple(Alarm(**alarm) for alarm in noted.get("alarms", ())),
            seconds=noted.get("seconds", 0.0),
            whole=text is not None,
        )


def joined(blocks: Sequence[Finished], *, partly: bool = False) -> Finished:
    """The blocks of one place, in order, as one.

    Args:
        partly: take the tables of a last block also where it lacks some whose parts belong together; tables
            then have different numbers of parts (`Finished.measured` has those that all have).
    """
    first = blocks[0]
    if len(blocks) == 1:
        return first
    tables = dict(first.tables)
    for name in dict.fromkeys(name for block in blocks for name in block.own_tables):
        refs = [block.own_tables[name] for block in blocks if _counts(block, first, name, partly)]
        if refs:
            tables[name] = refs[-1] if kind_of_table(name) in STATE_TABLES else united(refs)
    return Finished(
        store=first.store,
        tables=tables,
        manifests={key: m for block in blocks for key, m in block.manifests.items()},
        seconds=sum(block.seconds for block in blocks),
        resumed=tuple(key for block in blocks for key in block.resumed),
        whole=all(block.whole for block in blocks),
        inherited=frozenset().union(*(block.inherited for block in blocks)),
        blocks=len(blocks),
        begun=next((block.begun for block in blocks if block.begun), {}),
    )


def of_block(place: IterationStore, *, begun: bool = False) -> Finished:
    """The finished stages of one block; with `begun`, the plays of its unfinished rollout too, in whose place
    its tasks are those of the plays."""
    tables, manifests = place.tables()
    plays = place.begun_tables() if begun else {}
    return Finished(place, {**tables, **plays}, by_key(manifests), begun=plays)


def by_key(manifests: Iterable[Manifest]) -> dict[str, Manifest]:
    return {m.key: m for m in manifests}


def _counts(block: Finished, first: Finished, name: str, partly: bool) -> bool:
    """Whether a block's table is part of the whole. Tables whose parts belong together come together: a block
    that a kill left without some of them has none of them in it."""
    of_block = block.own_tables
    if name not in of_block:
        return False
    missing = (ALIGNED_TABLES & first.own_tables.keys()) - of_block.keys()
    return partly or name not in ALIGNED_TABLES or not missing


def united(refs: Sequence[TableRef]) -> TableRef:
    """The parts of several blocks as one table.

    Raises:
        UsageError: the blocks were written in different schema versions.
    """
    first = refs[0]
    if len(refs) == 1:
        return first
    if len({ref.version for ref in refs}) > 1:
        raise UsageError(
            f"{first.folder}: the blocks of this iteration have table {first.name!r} in schema versions "
            f"{', '.join(str(ref.version) for ref in refs)}; finish an iteration with the Cadre that began it"
        )
    folder = _common_folder([ref.folder for ref in refs])
    parts = [
        replace(part, name=f"{ref.folder.removeprefix(folder).lstrip('/')}/{part.name}")
        for ref in refs
        for part in ref.parts
    ]
    return TableRef(first.name, folder, first.schema, tuple(parts), first.version)


def _common_folder(folders: Sequence[str]) -> str:
    """The innermost folder or URL that all of these are in."""
    pieces = zip(*(folder.split("/") for folder in folders), strict=False)
    return "/".join(column[0] for column in takewhile(lambda column: len(set(column)) == 1, pieces))
