"""partition/<model>, stored scores → scores/<model>: stored forward passes, laid out for another partition.

Scores depend on a row's tokens and on the weights that scored them, not on rewards or on which batch a
row is in. So a replay needs no trainer: it puts the numbers of a stored `scores` table beside the rows of
its own partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl
import pyarrow as pa

from stages.base import Account, Context, StageResult
from stages.lease import Lease
from stages.parts import map_parts
from stages.tables.parquet import TableRef, TableSink
from workflows.errors import UsageError
from workflows.trajectory import PARTITION, SCORES, TURN_KEYS

_KEYS: Final = pa.schema([PARTITION.field(key) for key in TURN_KEYS])


class StoredScoresStage:
    """Take the stored scores of one model's rows. Part k has the rows of part k of the partition.

    Raises (from `run`):
        UsageError: a row that the run left out of its partition, so that nothing has scored it.
    """

    lease: Lease = "none"

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id
        self.name = f"score/{model_id}"
        self.folder = f"scores/{model_id}"
        self.stored = f"stored_scores/{model_id}"
        self._partition, self._scores = f"partition/{model_id}", f"scores/{model_id}"
        self.inputs: Mapping[str, pa.Schema] = {self._partition: _KEYS, self.stored: SCORES}
        self.outputs: Mapping[str, pa.Schema] = {self._scores: SCORES}
        self.places: Mapping[str, str] = {self._scores: ""}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        partition = inputs[self._partition]
        context.progress.start(f"scores {self.model_id}", len(partition.parts), "part")
        receipts = map_parts(
            align_part,
            range(len(partition.parts)),
            on_done=lambda done: context.progress.advance(turns=done["part"].rows),
            partition=partition,
            stored=inputs[self.stored],
            sink=outputs[self._scores],
        )
        context.progress.finish()
        parts = [receipt["part"] for receipt in receipts]
        rows = sum(part.rows for part in parts)
        account = Account(f"partition/{self.model_id} to scores", "turn", partition.rows, rows)
        return StageResult({self._scores: parts}, [account])


def align_part(index: int, partition: TableRef, stored: TableRef, sink: TableSink) -> dict[str, Any]:
    """Write the scores of the rows of part `index` of the partition, in their order."""
    wanted = pl.DataFrame(partition.read_part(index, TURN_KEYS)).with_row_index("place")
    pieces, places = [SCORES.empty_table()], [wanted["place"].clear()]
    for part in range(len(stored.parts)):
        keys = pl.DataFrame(stored.read_part(part, TURN_KEYS)).with_row_index("row")
        found = keys.join(wanted, on=TURN_KEYS, how="inner")
        if found.height:
            pieces.append(stored.read_part(part).take(found["row"].to_arrow()))
            places.append(found["place"])
    place = pl.concat(places)
    if place.len() != wanted.height:
        lost = wanted.filter(~pl.col("place").is_in(place.implode())).select(TURN_KEYS)
        raise UsageError(
            f"{lost.height} of {wanted.height} rows of {sink.name} part {index} have no stored scores, the "
            f"first is {lost.row(0)}: the run left them out when it scored; keep the rewards or credit "
            "settings that left them out, or run an iteration with the new ones"
        )
    scores = pa.concat_tables(pieces).take(place.arg_sort().to_arrow())
    return {"part": sink.write_part(index, scores)}
