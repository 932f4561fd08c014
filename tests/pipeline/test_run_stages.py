"""Stages of one store: finished ones are loaded, begun ones go on or are made anew, others are refused."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.plan.blocks import Block
from pipeline.run.execution import Finished, run_stages
from pipeline.run.lacking import first_lacking, shared_tables
from pipeline.store.run import IterationStore, Run
from stages.base import Account, Context, Quiet, StageResult
from stages.tables.parquet import TableRef, TableSink
from workflows.errors import CadreError, UsageError

ROWS = pa.schema([("x", pa.int64())])


@dataclass
class Doubles:
    """A stage that writes twice what it reads, or 1; `left` is what it found in its folder."""

    name: str
    reads: str | None = None
    resumable: bool = False
    fails: bool = False
    lost: int = 0
    lease: str = "none"
    runs: int = 0
    left: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder = self.name
        self.inputs = {self.reads: ROWS} if self.reads else {}
        self.outputs = {self.name: ROWS}
        self.places = {self.name: "table"}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        self.runs += 1
        folder = Path(outputs[self.name].folder).parent
        self.left = sorted(path.name for path in folder.iterdir())
        values = inputs[self.reads].read()["x"].to_pylist() if self.reads else [1]
        part = outputs[self.name].write_part(0, pa.table({"x": [2 * value for value in values]}))
        if self.fails:
            (folder / "piece").touch()
            raise CadreError("it broke")
        return StageResult({self.name: [part]}, [Account(self.name, "row", 1 + self.lost, 1)])


class Twice(Doubles):
    """The same stage in newer code: it writes one more table."""

    def __init__(self, name: str, more: str = "a_more", lease: str = "none") -> None:
        super().__init__(name, lease=lease)
        self.more = more
        self.outputs = {**self.outputs, more: ROWS}
        self.places = {**self.places, more: "more"}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        result = super().run(inputs, outputs, context)
        part = outputs[self.more].write_part(0, pa.table({"x": [2]}))
        return StageResult({**result.parts, self.more: [part]}, result.accounts)


@pytest.fixture
def place(tmp_path: Path) -> IterationStore:
    return Run(str(tmp_path), "r").iteration(0)


def run(place: IterationStore, *stages: Doubles, **settings: Any) -> Finished:
    fingerprints = {stage.name: settings for stage in stages}
    return run_stages(stages, place, fingerprints, what="it", progress=Quiet())  # type: ignore[arg-type]


def test_a_finished_stage_is_loaded_and_what_comes_after_it_is_run(place: IterationStore) -> None:
    first, second = Doubles("a"), Doubles("b", reads="a")
    assert run(place, first).resumed == ()
    done = run(place, first, second)
    assert (done.resumed, first.runs, second.runs) == (("a",), 1, 1)
    assert done.tables["b"].read()["x"].to_pylist() == [4]
    assert run(place, first, second).resumed == ("a", "b")


@pytest.mark.parametrize("resumable", [False, True])
def test_what_a_stage_left_behind_stays_for_one_that_goes_on_and_is_cleared_for_another(
    place: IterationStore, resumable: bool
) -> None:
    stage = Doubles("a", resumable=resumable, fails=True)
    with pytest.raises(CadreError, match="it broke"):
        run(place, stage, k=1)
    assert place.manifest_at("a") is None
    stage.fails = False
    run(place, stage, k=1)
    assert ("piece" in stage.left) == resumable
    assert stage.runs == 2


def test_a_begun_stage_does_not_go_on_with_other_settings_or_from_other_tables(place: IterationStore) -> None:
    first, second = Doubles("a"), Doubles("b", reads="a", resumable=True, fails=True)
    with pytest.raises(CadreError, match="it broke"):
        run(place, first, second, k=1)
    second.fails = False
    other = Doubles("c", resumable=True, fails=True)
    with pytest.raises(CadreError, match="it broke"):
        run(place, other, k=1)
    with pytest.raises(UsageError, match=r"it has begun stage 'c' with other settings: settings\.k: 1 → 2"):
        run(place, other, k=2)
    place.folder.remove("a")
    changed = Doubles("a")
    changed.inputs = {}
    place.folder.write_text("a/keep", "")
    three = pa.table({"x": [3]})
    part = place.sinks(changed)["a"].write_part(0, three)  # type: ignore[arg-type]
    place.commit(changed, StageResult({"a": [part]}), {"k": 1}, {}, 0.0)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"it has begun stage 'b' with other settings: inputs\.a"):
        run(place, changed, second, k=1)


def test_a_finished_stage_of_other_settings_or_tables_is_refused(place: IterationStore) -> None:
    first, second = Doubles("a"), Doubles("b", reads="a")
    run(place, first, second, k=1)
    with pytest.raises(UsageError, match="it has finished its stage 'a' with other settings: k: 1 → 2"):
        run(place, first, second, k=2)
    place.folder.remove("a")
    part = place.sinks(first)["a"].write_part(0, pa.table({"x": [5]}))  # type: ignore[arg-type]
    place.commit(first, StageResult({"a": [part]}), {"k": 1}, {}, 0.0)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="stage 'b' was made from other tables than are there now"):
        run(place, first, second, k=1)
    assert (first.runs, second.runs) == (1, 1)


def test_a_stage_that_loses_rows_is_not_finished(place: IterationStore) -> None:
    with pytest.raises(CadreError, match="rows are lost at 'a'"):
        run(place, Doubles("a", lost=1))
    assert place.manifest_at("a") is None


@pytest.mark.parametrize("finished", [True, False])
def test_a_budget_may_change_for_finished_and_for_begun_stages(place: IterationStore, finished: bool) -> None:
    stage = Doubles("a", resumable=True, fails=not finished)
    with contextlib.nullcontext() if finished else pytest.raises(CadreError, match="it broke"):
        run(place, stage, k=1, rollout={"max_failed_share": 0.5, "call_timeout_seconds": 60})
    stage.fails = False
    run(place, stage, k=1, rollout={"max_failed_share": 0.9, "call_timeout_seconds": 6})
    assert stage.runs == (1 if finished else 2)
    assert finished or "piece" in stage.left
    with pytest.raises(UsageError, match=r"other settings: k: 1 → 2;"):
        run(place, stage, k=2, rollout={"max_failed_share": 0.9})


def test_a_stage_of_older_code_that_borrows_nothing_is_made_again_for_a_table_that_it_lacks(
    place: IterationStore,
) -> None:
    first, second = Doubles("a"), Doubles("b", reads="a")
    run(place, first, second)
    newer = Twice("a")
    done = run(place, newer, second, Doubles("c", reads="a_more"))
    assert (newer.runs, second.runs, done.resumed) == (1, 1, ("b",))
    assert done.tables["c"].read()["x"].to_pylist() == [4]
    assert "wrote no table a_more" in done.manifests["a"].notes[0]
    assert run(place, newer, second, Doubles("c", reads="a_more")).resumed == ("a", "b", "c")


def test_what_was_sampled_or_learned_is_not_made_again_and_a_reader_does_without_or_is_refused(
    place: IterationStore,
) -> None:
    run(place, Doubles("a", lease="trainer"))
    newer = Twice("a", lease="trainer")
    assert run(place, newer).resumed == ("a",)  # nobody reads it
    with pytest.raises(
        UsageError, match=r"it was begun by an older version .* 'a' wrote no table 'a_more'.*redo a"
    ):
        run(place, newer, Doubles("b", reads="a_more"))


class Empty(Doubles):
    """A stage that counts what it reads, and has something to say without it."""

    does_without = ("ratios",)

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        rows = pa.table({"x": [inputs[self.reads or ""].rows]})
        return StageResult({self.name: [outputs[self.name].write_part(0, rows)]})


def test_a_reader_that_does_without_a_table_gets_it_without_rows(place: IterationStore) -> None:
    run(place, Doubles("a", lease="trainer"))
    done = run(place, Twice("a", "ratios/m", lease="trainer"), Empty("b", reads="ratios/m"))
    assert done.tables["b"].read()["x"].to_pylist() == [0]


def test_tables_of_earlier_blocks_are_there_or_done_without_or_refused(place: IterationStore) -> None:
    reader, without = Doubles("b", reads="ratios/m"), Empty("c", reads="ratios/m")
    shared = {"ratios/m": [0]}
    assert shared_tables([without], shared, [{}], "it")["ratios/m"].parts == ()
    with pytest.raises(
        UsageError, match=r"'update/m' wrote no table 'ratios/m', and stage 'b' reads it.*redo update"
    ):
        shared_tables([reader, without], shared, [{}], "it")
    made = TableRef("ratios/m", "", ROWS, ())
    assert shared_tables([reader], shared, [{"ratios/m": made}], "it") == {"ratios/m": made}


def test_redo_goes_to_the_first_block_whose_stage_lacks_a_table(place: IterationStore) -> None:
    older, newer = Doubles("update/m"), Twice("update/m")
    blocks = [Block(n, (newer,), {}) for n in (0, 1)]  # type: ignore[arg-type]
    done = run(place, older)
    assert first_lacking(blocks, [done, done], "update") == 0
    assert first_lacking(blocks, [done, done], "score") is None
    place.folder.remove("update")
    whole = run(place, newer)
    assert first_lacking(blocks, [whole, done], "update/m") == 1
    assert first_lacking(blocks, [whole, whole], "update") is None
