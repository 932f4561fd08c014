"""turns, rewards, credit → partition/<model>: what each model's update needs, in micro-batches; no GPU.

Two passes over the parts. The first reads keys and lengths of every usable turn, small enough for
the driver, which plans each model's batches (`stages.batching`). The second writes one output part
per task: it goes through the input parts one at a time and keeps the token lists of its own rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import polars as pl
import pyarrow as pa

from rewards.credit.silent import SILENT
from stages.base import Account, Context, StageResult
from stages.batching import PLAN_COLUMNS, plan_batches
from stages.lease import Lease
from stages.partition_rows import (
    CREDIT_COLUMNS,
    DECIDED,
    REWARD_COLUMNS,
    SURVEY,
    TURN_COLUMNS,
    Job,
    survey_part,
    table_of,
    write_part,
)
from stages.parts import map_parts
from stages.tables.parquet import Part, TableRef, TableSink, aligned_parts
from stages.training.gradients.spec import MOST_COPIES
from workflows.errors import RunFailed, UsageError
from workflows.trajectory import CREDIT, PARTITION, REWARDS, TURN_KEYS, TURNS
from workflows.vocabulary import Status

_PLAYED_WELL: Final = frozenset({SILENT, str(Status.TRUNCATED), DECIDED})
"""Reasons to leave a turn out that say nothing against it or its reward."""


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """How one model's rows are cut: over `ranks`, into `mini_batches` optimizer steps per epoch, and
    these into forward passes of at most `micro_batch_tokens` tokens: padded ones, or, where its trainer
    computes once what rows begin with, real ones (`stages.batching`). With `by_role` no forward pass mixes
    roles, or copies of one role, so that gradients can be told apart (`stages.training.gradients`).

    Raises:
        UsageError: a number below 1.
    """

    model_id: str
    ranks: int
    mini_batches: int
    micro_batch_tokens: int
    seed: int
    shared_prefix: bool = False
    by_role: bool = False

    def __post_init__(self) -> None:
        for name in ("ranks", "mini_batches", "micro_batch_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"model {self.model_id!r}: {name} is {getattr(self, name)}; use 1 or more")

    def fingerprint(self) -> dict[str, Any]:
        """What a cut depends on; as older runs have it where nothing is measured by role."""
        values = asdict(self)
        return values if self.by_role else {k: v for k, v in values.items() if k != "by_role"}


@dataclass(frozen=True, slots=True)
class PartitionStage:
    """Write `partition/<model_id>` for each model that is trained.

    A part holds rows of one rank only, sorted by mini-batch, micro-batch and key; parts are in rank
    order, a micro-batch is never split over two, and a rank without rows has one empty part.
    Turns that credit excludes, turns of frozen roles, and turns without response tokens, are left out
    and counted.

    Where all that is left out was played and rewarded, and only has nothing to teach (groups without signal,
    replies that the token limit cut off), the tables are empty and no weights will move.

    Raises (from `run`):
        RunFailed: no model has a usable turn, and none was left out for what it teaches.
    """

    models: tuple[PartitionSpec, ...]
    frozen_roles: frozenset[str] = frozenset()  # not trained on, though their model is
    elsewhere: frozenset[str] = frozenset()  # models that other blocks of the iteration train
    decided_roles: frozenset[str] = frozenset()  # whose turns are stop decisions with a loss of their own
    part_bytes: int = 64 << 20  # a rank's rows beyond this go to a further part

    name: str = "partition"
    folder: str = "partition"
    lease: Lease = "none"

    def __post_init__(self) -> None:
        names = [m.model_id for m in self.models]
        if len(set(names)) < len(names):
            raise UsageError(f"a model is to be partitioned twice: {', '.join(sorted(names))}")

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {
            "turns": pa.schema([TURNS.field(c) for c in TURN_COLUMNS]),
            "rewards": pa.schema([REWARDS.field(c) for c in REWARD_COLUMNS]),
            "credit": pa.schema([CREDIT.field(c) for c in CREDIT_COLUMNS]),
        }

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {table_of(m.model_id): PARTITION for m in self.models}

    @property
    def places(self) -> dict[str, str]:
        return {table_of(m.model_id): m.model_id for m in self.models}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        tables = {name: inputs[name] for name in self.inputs}
        indices = aligned_parts(tables)
        models = tuple(m.model_id for m in self.models)
        surveys = map_parts(
            survey_part,
            indices,
            tables=tables,
            models=models,
            frozen_roles=self.frozen_roles,
            elsewhere=self.elsewhere,
            decided_roles=self.decided_roles,
        )
        excluded: Counter[str] = sum((s["excluded"] for s in surveys), Counter())
        rows = pl.concat([pl.DataFrame(schema=SURVEY), *(s["usable"] for s in surveys)])
        if not rows.height and not _PLAYED_WELL & excluded.keys():
            details = {kind: reason for s in reversed(surveys) for kind, reason in s["details"].items()}
            causes = _causes(Counter({details[kind]: count for kind, count in excluded.items()}))
            raise RunFailed(f"nothing to train on: none of {excluded.total()} turns is usable; {causes}")
        jobs = [job for spec in self.models for job in _jobs(spec, rows, self.part_bytes)]
        context.progress.start("partition", len(jobs), "part")
        written: list[dict[str, Any]] = map_parts(
            write_part,
            range(len(jobs)),
            on_done=lambda _: context.progress.advance(),
            tables=tables,
            sinks={model_id: outputs[table_of(model_id)] for model_id in models},
            jobs=jobs,
        )
        context.progress.finish()
        parts: dict[str, list[Part]] = {table_of(m): [] for m in models}
        for job, receipt in zip(jobs, written, strict=True):
            parts[table_of(job.model_id)].append(receipt["part"])
        account = Account(
            "credit to partition",
            "turn",
            tables["credit"].rows,
            sum(part.rows for its_parts in parts.values() for part in its_parts),
            dict(sorted(excluded.items())),
        )
        metrics, notes = _per_model(models, rows, excluded)
        return StageResult(parts, [account], metrics, notes)


def with_parts(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with `part`: their role and, where the role has from 2 to `MOST_COPIES` branches, their branch.

    With more branches than that, such as one for each document, the role is one part.
    """
    branch = pl.col("branch").fill_null("")
    branches = pl.col("branch").filter(branch != "").n_unique().over("role")
    branch = pl.when(branches.is_between(2, MOST_COPIES)).then(branch)
    return rows.with_columns(
        part=pl.concat_str(pl.col("role").fill_null(""), branch.fill_null(""), separator="\0")
    )


def _jobs(spec: PartitionSpec, rows: pl.DataFrame, part_bytes: int) -> list[Job]:
    """The output parts of one model: at least one for each rank, cut between micro-batches."""
    its_rows = rows.filter(pl.col("model_id") == spec.model_id)
    plan = plan_batches(
        with_parts(its_rows) if spec.by_role else its_rows,
        ranks=spec.ranks,
        mini_batches=spec.mini_batches,
        micro_batch_tokens=spec.micro_batch_tokens,
        seed=spec.seed,
        shared_prefix=spec.shared_prefix,
        apart=spec.by_role,
    ).join(its_rows.select(*TURN_KEYS, "source", "num_response_tokens"), on=TURN_KEYS, maintain_order="left")
    # ids of 4 bytes, logprobs of 4 bytes, and what a row weighs without them
    size = 4 * (pl.col("num_tokens") + pl.col("num_response_tokens")) + 256
    plan = plan.with_columns(before=size.cum_sum().over("rank") - size)
    plan = plan.with_columns(piece=(pl.col("before").first().over(*PLAN_COLUMNS) // part_bytes))
    jobs: list[Job] = []
    for rank in range(spec.ranks):
        of_rank = plan.filter(pl.col("rank") == rank)
        for piece in of_rank.partition_by("piece", maintain_order=True) or [of_rank]:
            jobs.append(Job(spec.model_id, len(jobs), piece.select(*TURN_KEYS, *PLAN_COLUMNS, "source")))
    return jobs


def _per_model(
    models: Sequence[str], rows: pl.DataFrame, excluded: Counter[str]
) -> tuple[dict[str, float], list[str]]:
    metrics: dict[str, float] = {}
    notes: list[str] = []
    for model_id in models:
        its_rows = rows.filter(pl.col("model_id") == model_id)
        if its_rows.height:
            silent = bool((its_rows["advantage"].fill_null(1.0) == 0).all())
        else:
            silent = not rows.height  # of all models: a run that no longer learns
        metrics[f"partition/{model_id}/rows"] = its_rows.height
        metrics[f"partition/{model_id}/no_signal"] = float(silent)
        if not its_rows.height:
            if DECIDED not in excluded:  # else it may learn from its decisions alone
                notes.append(f"model {model_id!r} has no usable turn; {_causes(excluded)}")
        elif silent:
            notes.append(f"no signal: all {its_rows.height} turns of model {model_id!r} have the advantage 0")
    return metrics, notes


def _causes(excluded: Counter[str]) -> str:
    counted = "; ".join(f"{count} × {reason}" for reason, count in excluded.most_common())
    return f"excluded: {counted}" if counted else "there are no turns at all"
