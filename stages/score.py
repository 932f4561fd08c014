"""partition/<model> → scores/<model>: the trainer's forward pass, where a method needs its numbers.

A thin stage: the trainer group does the work (`stages.training`). Scoring changes no state, so that a
second run of the stage gives the same table. What it writes is stored, which is why everything after
it can be replayed without a trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from stages.base import Account, Context, StageResult
from stages.lease import Lease
from stages.tables.parquet import TableRef, TableSink
from stages.token_advantages.spec import Need
from workflows.errors import UsageError
from workflows.trajectory import PARTITION, SCORES

_WORDS: Final[dict[Need, str]] = {
    "old": "old logprobs",
    "reference": "reference logprobs",
    "values": "values",
}


class ScoreStage:
    """Score one model's partition with its own weights, its reference and its critic, as `needs` says.

    Part k of the scores has the rows of part k of the partition. `off_policy` takes rows that other weights
    sampled: their old logprobs are then those of the trainer's weights as they are, not the sampler's.
    """

    lease: Lease = "trainer"

    def __init__(self, model_id: str, needs: frozenset[Need], off_policy: bool = False) -> None:
        if not needs:
            raise UsageError(f"model {model_id!r} needs no scores; leave the score stage out")
        self.model_id, self.needs, self.off_policy = model_id, needs, off_policy
        self.name = f"score/{model_id}"
        self.folder = f"scores/{model_id}"
        self._partition, self._scores = f"partition/{model_id}", f"scores/{model_id}"
        self.inputs: Mapping[str, pa.Schema] = {self._partition: PARTITION}
        self.outputs: Mapping[str, pa.Schema] = {self._scores: SCORES}
        self.places: Mapping[str, str] = {self._scores: ""}

    @property
    def described(self) -> str:
        """What is computed, in words: for `check`."""
        return ", ".join(_WORDS[need] for need in sorted(self.needs))

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        """Raises RunFailed where the trainer can't score these rows."""
        partition = inputs[self._partition]
        group = context.fleet.trainer(self.model_id)
        context.progress.start(f"score {self.model_id}", partition.rows, "row")
        parts = group.score(
            partition,
            outputs[self._scores],
            self.needs,
            lambda rows, tokens: context.progress.advance(rows, tokens=tokens),
            self.off_policy,
        )
        context.progress.finish()
        scored = sum(part.rows for part in parts)
        account = Account(f"partition/{self.model_id} to scores", "turn", partition.rows, scored)
        return StageResult({self._scores: list(parts)}, [account])
