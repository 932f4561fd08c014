"""The newcomer in a trainer of its own: measured on stored turns, taught what was said there, published."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.replacement.contexts import (
    Contexts,
    Reading,
    at_places_of,
    partition_of,
    steps_for,
    stored_table,
)
from pipeline.replacement.shock import Shock, shock_of
from pipeline.settings.replace import ReplaceSection
from pipeline.store.folder import Folder
from pipeline.store.fork import link_tree
from stages.partition import PartitionSpec
from stages.tables.parquet import TableRef, TableSink
from stages.training.gradients.spec import MeasureSpec, ShapingSpec
from stages.training.group import TrainerGroup
from stages.training.loss.spec import LossSpec
from stages.training.spec import DistillReport, DistillSpec, TrainerSpec
from stages.weights.resolve import fetched
from workflows.trajectory import SCORES


@dataclass(slots=True)
class Pupil:
    """A newcomer in a trainer, and the tables that it is measured and taught on."""

    group: TrainerGroup
    spec: PartitionSpec
    contexts: Contexts
    reading: Reading
    folder: Folder

    def measured(self, label: str) -> Shock:
        """How far it is from its predecessor, on the turns that are held out."""
        held_out = self.contexts.held_out
        partition = self._stored(f"held-out-{label}", held_out, self.reading)
        sink = TableSink(f"scores/{self.spec.model_id}", f"{self.folder.url}/tables/scores-{label}", SCORES)
        parts = self.group.score(partition, sink, frozenset({"old"}), off_policy=True)
        return shock_by(sink.ref(parts), held_out, self.reading, self.spec.model_id)

    def taught(self, section: ReplaceSection, teacher: str | None, contexts: Contexts) -> DistillReport:
        """Teach it the stored turns that are not held out.

        Args:
            section: how.
            teacher: the folder of its predecessor's weights; None: replies are imitated as they stand.
            contexts: what is taught.
        """
        cut = replace(self.spec, mini_batches=steps_for(len(contexts.rows)))
        tables = partition_of(contexts.rows, cut, self.reading)
        partition = stored_table(self._table, f"{self.folder.url}/tables/taught", tables)
        prompts = None
        if teacher is not None and self.reading.own_prompts:
            as_stored = partition_of(contexts.rows, cut)
            theirs = [
                at_places_of(whole, table)
                for whole, table in zip(_one(as_stored, tables), tables, strict=True)
            ]
            prompts = stored_table(self._table, f"{self.folder.url}/tables/prompts", theirs)
        spec = DistillSpec(teacher, section.distill_kl, section.distill_passes, section.distill_learning_rate)
        return self.group.distill(partition, spec, prompts)

    def publish(self, target: Folder) -> None:
        """Write its weights as a folder that models begin with: an adapter within its base."""
        uri = f"{self.folder.url}/taught"
        self.group.publish(uri)
        target.fs.makedirs(target.path, exist_ok=True)
        if self.group.spec.adapter is None:
            link_tree(Folder(f"{uri}/weights"), target)
        else:
            merged(self.group.spec.checkpoint, f"{uri}/weights", target)
        self.folder.remove("taught")

    def _stored(self, label: str, contexts: Contexts, reading: Reading | None) -> TableRef:
        tables = partition_of(contexts.rows, self.spec, reading)
        return stored_table(self._table, f"{self.folder.url}/tables/{label}", tables)

    @property
    def _table(self) -> str:
        return f"partition/{self.spec.model_id}"


@contextmanager
def pupil_of(
    trainer: TrainerSpec, cut: PartitionSpec, contexts: Contexts, reading: Reading, folder: Folder
) -> Iterator[Pupil]:
    """A newcomer in a trainer of its own, as it comes; the trainer ends with the block."""
    spec = replace(
        trainer,
        loss=replace(LossSpec(), name="supervised"),
        critic=None,
        reference=None,
        measure=MeasureSpec(),
        shaping=ShapingSpec(),
        trust=None,
    )
    group = TrainerGroup.start(spec, version=spec.begins)
    try:
        yield Pupil(group, replace(cut, mini_batches=1, by_role=False), contexts, reading, folder)
    finally:
        group.close()


@contextmanager
def whole_weights(folder: str, base: str | None) -> Iterator[str]:
    """A local folder of whole weights: those in `folder`, which is an adapter where it has a base."""
    with fetched(folder) as local:
        if base is None:
            yield local
            return
        from stages.weights.merge import merge_adapter

        with tempfile.TemporaryDirectory(prefix="cadre-incumbent-") as temporary:
            merge_adapter(base, local, f"{temporary}/merged")
            yield f"{temporary}/merged"


def merged(base: str, adapter: str, target: Folder) -> None:
    """Write an adapter within its base to a folder anywhere."""
    with whole_weights(adapter, base) as whole:
        for file in sorted(Path(whole).iterdir()):
            target.fs.put_file(str(file), f"{target.path}/{file.name}")


def shock_by(scores: TableRef, contexts: Contexts, reading: Reading | None, model: str) -> Shock:
    """The shock of a model whose logprobs of stored turns are in `scores`."""
    rows: Mapping[tuple[str, int], Mapping[str, Any]] = {
        (row["episode_id"], row["turn_index"]): row for row in contexts.rows
    }
    ratios, tokens = {}, {}
    for score in scores.read(["episode_id", "turn_index", "old_logprobs"]).to_pylist():
        key = (score["episode_id"], score["turn_index"])
        before = rows[key]["behaviour_logprobs"]
        ratios[key] = sum(score["old_logprobs"]) - sum(before)
        tokens[key] = len(before)
    return shock_of(
        ratios,
        None if reading is not None and reading.own_words else tokens,
        {key: len(rows[key]["response_text"] or "") for key in ratios},
        contexts.turns,
        model,
    )


def _one(tables: list[Any], wanted: list[Any]) -> list[Any]:
    """All rows of `tables`, once for each of `wanted`."""
    import pyarrow as pa

    return [pa.concat_tables(tables)] * len(wanted)
