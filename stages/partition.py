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

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rewards.credit.silent import SILENT
from rewards.scoring.reasons import kind_of
from stages.base import Account, Context, StageResult
from stages.batching import PLAN_COLUMNS, plan_batches, prefix_names
from stages.lease import Lease
from stages.parts import map_parts
from stages.tables.parquet import Part, TableRef, TableSink, aligned_parts
from stages.training.gradients.spec import MOST_COPIES
from workflows.errors import RunFailed, SchemaError, UsageError
from workflows.trajectory import CREDIT, PARTITION, REWARDS, TURN_KEYS, TURNS
from workflows.vocabulary import Status

_LENGTH_COLUMNS: Final = (
    *TURN_KEYS,
    "model_id",
    "role",
    "context_hash",
    "branch",
    "num_prompt_tokens",
    "prompt_token_ids",
    "response_token_ids",
)
_ROW_COLUMNS: Final = (
    *TURN_KEYS,
    "group_id",
    "model_id",
    "role",
    "step",
    "round",
    "branch",
    "policy_version",
    "prompt_token_ids",
    "response_token_ids",
    "behaviour_logprobs",
    "sampling",
    "conversation",
    "conversation_turn",
    "act",
    "option_logprobs",
)
_REWARD_COLUMNS: Final = (*TURN_KEYS, "reward")
_CREDIT_COLUMNS: Final = (*TURN_KEYS, "return", "advantage", "excluded")
_ALL_TURN_COLUMNS: Final = tuple(dict.fromkeys((*_LENGTH_COLUMNS, *_ROW_COLUMNS)))
_SURVEY: Final = {
    "episode_id": pl.String,
    "turn_index": pl.Int32,
    "model_id": pl.String,
    "num_prompt_tokens": pl.Int32,
    "num_response_tokens": pl.Int32,
    "prompt": pl.String,  # equal for equal prompts
    "prefix": pl.Binary,  # by `prefix_names`
    "role": pl.String,
    "branch": pl.String,
    "advantage": pl.Float64,
    "source": pl.Int32,  # number of the input part
}


DECIDED: Final = "a stop decision with a loss of its own"
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
            "turns": pa.schema([TURNS.field(c) for c in _ALL_TURN_COLUMNS]),
            "rewards": pa.schema([REWARDS.field(c) for c in _REWARD_COLUMNS]),
            "credit": pa.schema([CREDIT.field(c) for c in _CREDIT_COLUMNS]),
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
        rows = pl.concat([pl.DataFrame(schema=_SURVEY), *(s["usable"] for s in surveys)])
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


@dataclass(frozen=True, slots=True)
class Job:
    """One output part: its model, its number within the model's table, and the places of its rows."""

    model_id: str
    number: int
    rows: pl.DataFrame  # the turn keys, the numbers of their input parts (`source`), and PLAN_COLUMNS


def table_of(model_id: str) -> str:
    return f"partition/{model_id}"


def survey_part(
    index: int,
    tables: Mapping[str, TableRef],
    models: Sequence[str],
    frozen_roles: frozenset[str] = frozenset(),
    elsewhere: frozenset[str] = frozenset(),
    decided_roles: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Keys and lengths of the usable turns of part `index`, and the others counted by reason."""
    turns = _surveyed(tables["turns"].read_part(index, _LENGTH_COLUMNS))
    credit = pl.DataFrame(tables["credit"].read_part(index, _CREDIT_COLUMNS))
    both = turns.join(credit, on=TURN_KEYS, how="inner", validate="1:1")
    if not both.height == turns.height == credit.height:
        raise SchemaError(
            f"part {index}: turns ({turns.height} rows) and credit ({credit.height}) share only "
            f"{both.height} turns; these tables are not of one rollout"
        )
    reason = (
        pl.when(pl.col("excluded").is_not_null())
        .then(pl.col("excluded"))
        .when(pl.col("role").is_in(sorted(frozen_roles)))
        .then(pl.lit("role is frozen"))
        .when(pl.col("role").is_in(sorted(decided_roles)))
        .then(pl.lit(DECIDED))
        .when(pl.col("model_id").is_in(sorted(elsewhere)))
        .then(pl.lit("model is trained in another block"))
        .when(~pl.col("model_id").is_in(models))
        .then(pl.lit("model ") + pl.col("model_id").fill_null("(none)") + pl.lit(" is not partitioned"))
        .when(pl.col("num_response_tokens") == 0)
        .then(pl.lit("no response tokens"))
    )
    both = both.with_columns(reason=reason)
    usable = both.filter(pl.col("reason").is_null()).with_columns(
        source=pl.lit(index, pl.Int32), prompt="context_hash"
    )
    left_out = both.sort(TURN_KEYS)["reason"].drop_nulls().to_list()
    return {
        "usable": usable.select(list(_SURVEY)),
        "excluded": Counter(kind_of(r) for r in left_out),
        "details": {kind_of(r): r for r in reversed(left_out)},  # the first of each kind, in full
    }


def write_part(
    index: int, tables: Mapping[str, TableRef], sinks: Mapping[str, TableSink], jobs: Sequence[Job]
) -> dict[str, Any]:
    """Gather the rows of job `index` from the input parts and write them."""
    job = jobs[index]
    pieces = [PARTITION.empty_table()]
    for (source,), wanted in job.rows.group_by("source", maintain_order=True):
        turns = tables["turns"].read_part(source, _ROW_COLUMNS)
        rewards = tables["rewards"].read_part(source, _REWARD_COLUMNS)
        credit = tables["credit"].read_part(source, _CREDIT_COLUMNS)
        pieces.append(gather(turns, rewards, credit, wanted))
    table = pa.concat_tables(pieces).sort_by(
        [(c, "ascending") for c in ("rank", "mini_batch", "micro_batch", *TURN_KEYS)]
    )
    if table.num_rows != job.rows.height:
        raise SchemaError(
            f"{table_of(job.model_id)} part {job.number} should have {job.rows.height} rows, found "
            f"{table.num_rows}"
        )
    return {"part": sinks[job.model_id].write_part(job.number, table)}


def gather(turns: pa.Table, rewards: pa.Table, credit: pa.Table, places: pl.DataFrame) -> pa.Table:
    """The rows of `PARTITION` that `places` (turn keys and PLAN_COLUMNS) asks for, as far as they are here.

    Raises:
        SchemaError: a row whose logprobs are not as many as its response ids, or without a temperature.
    """
    # Positions first, so that token lists are taken once, by Arrow, and never pass through a join.
    wanted = (
        _positions(turns, "turn_row")
        .join(places, on=TURN_KEYS)
        .join(_positions(rewards, "reward_row"), on=TURN_KEYS)
        .join(_positions(credit, "credit_row"), on=TURN_KEYS)
    )
    rows = turns.take(wanted["turn_row"].to_arrow())
    credits = credit.take(wanted["credit_row"].to_arrow())
    temperature = pl.Series(rows["sampling"]).str.json_path_match("$.temperature").cast(pl.Float64)
    columns = {name: rows[name] for name in _ROW_COLUMNS if name != "sampling"}
    columns |= {name: wanted[name].to_arrow() for name in PLAN_COLUMNS}
    columns |= {"temperature": temperature.to_arrow()}
    columns |= {"reward": rewards["reward"].take(wanted["reward_row"].to_arrow())}
    columns |= {name: credits[name] for name in ("return", "advantage")}
    table = pa.table(columns).select(PARTITION.names).cast(PARTITION)
    _refuse_broken_rows(table)
    return table


def _refuse_broken_rows(table: pa.Table) -> None:
    lengths = pc.list_value_length(table["response_token_ids"])
    logprobs = pc.fill_null(pc.list_value_length(table["behaviour_logprobs"]), -1)
    for what, bad in (
        ("other numbers of behaviour_logprobs than of response_token_ids", pc.not_equal(lengths, logprobs)),
        ("no temperature in sampling", pc.is_null(table["temperature"])),
    ):
        broken = table.filter(bad)
        if broken.num_rows:
            first = tuple(broken[key][0].as_py() for key in TURN_KEYS)
            raise SchemaError(
                f"{broken.num_rows} turns have {what}, the first is {first}; they can't be trained on"
            )


def _surveyed(turns: pa.Table) -> pl.DataFrame:
    """The turns with the length of their response and `prefix` in place of their tokens."""
    lengths = pc.fill_null(pc.list_value_length(turns["response_token_ids"]), 0)
    names = prefix_names(
        # the last token of a response predicts nothing, so no forward pass has it
        np.concatenate([prompt.values, response.values[:-1]]) if prompt.is_valid and response.is_valid else ()
        for prompt, response in zip(turns["prompt_token_ids"], turns["response_token_ids"], strict=True)
    )
    narrow = turns.drop_columns(["prompt_token_ids", "response_token_ids"])
    narrow = narrow.append_column("num_response_tokens", lengths)
    return pl.DataFrame(narrow.append_column("prefix", pa.array(names, pa.binary())))


def _positions(table: pa.Table, name: str) -> pl.DataFrame:
    return pl.DataFrame(table.select(TURN_KEYS)).with_row_index(name)


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
