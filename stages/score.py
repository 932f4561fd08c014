"""partition/<model> → scores/<model>: the trainer's forward pass, where a method needs its numbers.

A thin stage: the trainer group does the work (`stages.training`). Scoring changes no state, so that a
second run of the stage gives the same table. What it writes is stored, which is why everything after
it can be replayed without a trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl
import pyarrow as pa

from stages.base import Account, Context, StageResult
from stages.lease import Lease
from stages.tables.parquet import TableRef, TableSink
from stages.token_advantages.bootstrap import EPISODE_COLUMNS, TURN_COLUMNS, cut_off
from stages.token_advantages.spec import BOOTSTRAPS, Need
from workflows.errors import UsageError
from workflows.trajectory import EPISODES, PARTITION, SCORES, TURN_KEYS, TURNS

_WORDS: Final[dict[Need, str]] = {
    "old": "old logprobs",
    "reference": "reference logprobs",
    "values": "values",
    "bootstrap_turns": "values after replies that were cut off",
    "bootstrap_episodes": "values after episodes that were cut off",
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
        self._bootstraps = bool(needs & set(BOOTSTRAPS))
        inputs = {self._partition: PARTITION}
        if self._bootstraps:
            inputs["turns"] = pa.schema([TURNS.field(name) for name in TURN_COLUMNS])
            inputs["episodes"] = pa.schema([EPISODES.field(name) for name in EPISODE_COLUMNS])
        self.inputs: Mapping[str, pa.Schema] = inputs
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
        cut = {"bootstrap": self._cut_off(inputs)} if self._bootstraps else {}
        context.progress.start(f"score {self.model_id}", partition.rows, "row")
        parts = group.score(
            partition,
            outputs[self._scores],
            self.needs,
            lambda rows, tokens: context.progress.advance(rows, tokens=tokens),
            self.off_policy,
            **cut,
        )
        context.progress.finish()
        scored = sum(part.rows for part in parts)
        account = Account(f"partition/{self.model_id} to scores", "turn", partition.rows, scored)
        metrics = {"rows_bootstrapped": float(len(cut["bootstrap"]))} if cut else {}
        return StageResult({self._scores: list(parts)}, [account], metrics)

    def _cut_off(self, inputs: Mapping[str, TableRef]) -> frozenset[tuple[str, int]]:
        """The keys of the rows after which a limit cut something off."""
        frames = {
            name: pl.DataFrame(inputs[name].read(columns))
            for name, columns in (
                (self._partition, TURN_KEYS),
                ("turns", TURN_COLUMNS),
                ("episodes", EPISODE_COLUMNS),
            )
        }
        across_turns = "bootstrap_episodes" in self.needs
        return cut_off(
            frames[self._partition], frames["turns"], frames["episodes"], across_turns=across_turns
        )
