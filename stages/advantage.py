"""partition/<model>, scores/<model> → token_advantages/<model>, for all models at once; no GPU.

One stage, because with GAE an episode's turns may lie in the tables of several models. Parts are read
one at a time, up to three times: once for the three numbers per turn that chain an episode
(`stages.token_advantages.gae`), once for the moments that whiten, once to write. Part k of
token_advantages/<model> has the rows of part k of partition/<model>, in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from rewards.credit.moments import Moments
from stages.base import Account, Context, StageResult
from stages.lease import Lease
from stages.parts import map_parts
from stages.tables.parquet import TableRef, TableSink, aligned_parts
from stages.token_advantages import part as pure
from stages.token_advantages.gae import CARRY, SUMMARY, chain
from stages.token_advantages.kl_control import scale_before, scale_table
from stages.token_advantages.ragged import Floats
from stages.token_advantages.rows import ROWS_SEEN, SCORE_COLUMNS, Rows, read_rows, token_table
from stages.token_advantages.spans import SPANS_SEEN, of_rows, spans_of
from stages.token_advantages.spec import TokenSpec
from workflows.errors import UsageError
from workflows.trajectory import KL_SCALE, PREFIX_WEIGHTS, SCORES, TOKEN_ADVANTAGES, TURN_KEYS

CHANNELS: Final = "credit_channels"
_MEASURED: Final = ("kl_reference", "importance_weight")


@dataclass(frozen=True, slots=True)
class Job:
    """One part: its model, its number within the model's tables, and what follows each of its turns."""

    spec: TokenSpec
    number: int
    carry: pl.DataFrame | None = None
    spans: pl.DataFrame | None = None  # credit of some tokens of its turns


@dataclass(frozen=True, slots=True)
class AdvantageStage:
    """Token advantages of every model, and the scale of its KL coefficients where they are adaptive.

    Rows that can't be used (without a number, without tokens, of weight 0 where turns are imitated)
    keep their place with `excluded` set, and are counted.
    """

    specs: tuple[TokenSpec, ...]

    name: str = "advantage"
    folder: str = "token_advantages"
    lease: Lease = "none"

    def __post_init__(self) -> None:
        chained = {spec.gae for spec in self.specs if spec.use == "gae"}
        if len(chained) > 1:
            raise UsageError("all models must have the same discounts, for they share episodes")

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        seen: dict[str, pa.Schema] = {}
        for spec in self.specs:
            seen[f"partition/{spec.model_id}"] = ROWS_SEEN
            if spec.needs:
                seen[f"scores/{spec.model_id}"] = SCORES
            if spec.prefix:
                seen[f"prefix_weights/{spec.model_id}"] = PREFIX_WEIGHTS
        if self._has_spans:
            seen[CHANNELS] = SPANS_SEEN
        return seen | dict.fromkeys(self.carried, KL_SCALE)

    @property
    def carried(self) -> dict[str, str]:
        """Inputs that are outputs of an iteration before, by name; without rows in the first."""
        return {f"kl_scale_before/{spec.model_id}": scale_of(spec.model_id) for spec in self._controlled}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        scales = {scale_of(spec.model_id): KL_SCALE for spec in self._controlled}
        return {f"token_advantages/{spec.model_id}": TOKEN_ADVANTAGES for spec in self.specs} | scales

    @property
    def places(self) -> dict[str, str]:
        scales = {scale_of(spec.model_id): scale_of(spec.model_id) for spec in self._controlled}
        return {f"token_advantages/{spec.model_id}": spec.model_id for spec in self.specs} | scales

    @property
    def _has_spans(self) -> bool:
        return any(spec.spans for spec in self.specs)

    @property
    def _controlled(self) -> list[TokenSpec]:
        return [spec for spec in self.specs if spec.kl_control is not None]

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        tables = {name: inputs[name] for name in self.inputs if name not in self.carried}
        scales = {
            spec.model_id: scale_before(inputs[f"kl_scale_before/{spec.model_id}"].read())
            for spec in self._controlled
        }
        specs = [
            spec.scaled(scales[spec.model_id]) if spec.model_id in scales else spec for spec in self.specs
        ]
        jobs = [Job(spec, number) for spec in specs for number in _parts_of(spec, tables)]
        if self._has_spans:
            jobs = _with_spans(jobs, tables)
        jobs = _with_carry(jobs, tables)
        moments = _moments(jobs, tables)
        context.progress.start("advantage", len(jobs), "part")
        receipts = map_parts(
            advantage_part,
            range(len(jobs)),
            on_done=lambda _: context.progress.advance(),
            jobs=jobs,
            tables=tables,
            sinks={name: outputs[name] for name in self.outputs if name not in self.carried.values()},
            moments=moments,
        )
        context.progress.finish()
        rows = sum(tables[f"partition/{spec.model_id}"].rows for spec in self.specs)
        result = _result(self.specs, jobs, receipts, rows)
        for spec in self._controlled:
            _add_scale(result, spec, scales[spec.model_id], receipts, jobs, outputs, context)
        return result


def scale_of(model_id: str) -> str:
    """The name of a model's table of the scale of its KL coefficients."""
    return f"kl_scale/{model_id}"


def _add_scale(
    result: StageResult,
    spec: TokenSpec,
    scale: float,
    receipts: Sequence[Mapping[str, Any]],
    jobs: Sequence[Job],
    outputs: Mapping[str, TableSink],
    context: Context,
) -> None:
    """Write the scale that this iteration uses and the one that it leaves behind."""
    assert spec.kl_control is not None
    measured = Moments()
    for job, receipt in zip(jobs, receipts, strict=True):
        if job.spec.model_id == spec.model_id:
            measured = measured.merge(receipt["measured"].get("kl_reference", Moments()))
    at = {"iteration": context.iteration, "block": context.block}
    table = scale_table(spec.kl_control, spec.model_id, scale, measured, at)
    name = scale_of(spec.model_id)
    result.parts[name] = [outputs[name].write_part(0, table)]
    result.metrics[f"kl_coefficient/{spec.model_id}"] = scale * spec.kl_control.coefficient


def summary_part(index: int, jobs: Sequence[Job], tables: Mapping[str, TableRef]) -> dict[str, Any]:
    """The three numbers of each usable turn of a part."""
    spec = jobs[index].spec
    rows, excluded, _ = _usable(jobs[index], tables)
    return {"summary": pure.summary_of(rows.take(_keep(excluded)), spec)}


def moments_part(index: int, jobs: Sequence[Job], tables: Mapping[str, TableRef]) -> dict[str, Any]:
    """The moments of a part's advantages."""
    job = jobs[index]
    rows, excluded, _ = _usable(job, tables)
    used = rows.take(_keep(excluded))
    tokens = pure.token_advantages(used, job.spec, job.carry, job.spans)
    return {"moments": pure.moments_of(tokens, used, job.spec)}


def advantage_part(
    index: int,
    jobs: Sequence[Job],
    tables: Mapping[str, TableRef],
    sinks: Mapping[str, TableSink],
    moments: Mapping[str, dict[str, Moments]],
) -> dict[str, Any]:
    """Compute part `index` and write it; the receipt has its part, counts and moments."""
    job = jobs[index]
    spec = job.spec
    rows, excluded, weights = _usable(job, tables)
    used = rows.take(_keep(excluded))
    tokens = pure.token_advantages(used, spec, job.carry, job.spans)
    measured = {
        "kl_reference": tokens.kl,
        "importance_weight": tokens.ratios,  # before the cut; the update measures the weights that it uses
        "return": tokens.returns,
        "error": None if tokens.returns is None else tokens.returns - used.scores["values"],
    }
    if spec.whiten != "none":
        tokens = pure.whitened(tokens, used, spec, moments[spec.model_id])
    tokens = pure.reweighted(
        pure.clipped(tokens, spec), used, None if weights is None else weights[_keep(excluded)]
    )
    measured["advantage"] = tokens.advantages
    table = token_table(rows.frame, used, tokens.columns(), excluded)
    return {
        "part": sinks[f"token_advantages/{spec.model_id}"].write_part(job.number, table),
        "excluded": Counter(reason for reason in excluded if reason is not None),
        "measured": {k: Moments.of(v[used.mask]) for k, v in measured.items() if v is not None},
    }


def _parts_of(spec: TokenSpec, tables: Mapping[str, TableRef]) -> range:
    names = [f"partition/{spec.model_id}", *([f"scores/{spec.model_id}"] if spec.needs else [])]
    return aligned_parts({name: tables[name] for name in names})


def _usable(job: Job, tables: Mapping[str, TableRef]) -> tuple[Rows, list[str | None], Floats | None]:
    """The rows of a part, why each can't be used or None, and what the prefixes weigh, where they do."""
    model_id, needs = job.spec.model_id, sorted(job.spec.needs)
    partition = tables[f"partition/{model_id}"].read_part(job.number, ROWS_SEEN.names)
    scores = None
    if needs:
        columns = [*TURN_KEYS, *dict.fromkeys(SCORE_COLUMNS[need] for need in needs)]
        scores = tables[f"scores/{model_id}"].read_part(job.number, columns)
    rows = read_rows(partition, scores, needs)
    excluded = pure.why_excluded(rows, job.spec)
    if not job.spec.prefix:
        return rows, excluded, None
    weights = pure.weights_of(rows, tables[f"prefix_weights/{model_id}"].read())
    unknown = np.isnan(weights)
    return (
        rows,
        [
            pure.NO_WEIGHT if reason is None and lacks else reason
            for reason, lacks in zip(excluded, unknown, strict=True)
        ],
        weights,
    )


def _keep(excluded: Sequence[str | None]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.array([reason is None for reason in excluded], dtype=np.bool_)


def _with_carry(jobs: list[Job], tables: Mapping[str, TableRef]) -> list[Job]:
    """The jobs that have GAE with what follows each of their turns, over all models."""
    chained = [i for i, job in enumerate(jobs) if job.spec.use == "gae"]
    if not chained:
        return jobs
    receipts = map_parts(summary_part, chained, jobs=jobs, tables=tables)
    summaries = [r["summary"] for r in receipts]
    follows = chain(jobs[chained[0]].spec.gae, pl.concat([pl.DataFrame(schema=SUMMARY), *summaries]))
    out = list(jobs)
    for index, summary in zip(chained, summaries, strict=True):
        carry = summary.select(TURN_KEYS).join(follows, on=TURN_KEYS, how="left", maintain_order="left")
        out[index] = replace(jobs[index], carry=carry.select(list(CARRY)))
    return out


def _with_spans(jobs: Sequence[Job], tables: Mapping[str, TableRef]) -> list[Job]:
    """The jobs, each with what channels credit to some tokens of its turns."""
    channels = tables[CHANNELS]
    parts = [spans_of(channels.read_part(k, SPANS_SEEN.names)) for k in range(len(channels.parts))]
    spans = pl.concat(parts) if parts else None
    if spans is None or not spans.height:
        return list(jobs)
    out = []
    for job in jobs:
        keys = tables[f"partition/{job.spec.model_id}"].read_part(job.number, TURN_KEYS)
        out.append(replace(job, spans=of_rows(spans, pl.DataFrame(keys))))
    return out


def _moments(jobs: Sequence[Job], tables: Mapping[str, TableRef]) -> dict[str, dict[str, Moments]]:
    """By model, the moments of what is whitened together; merged in the order of the parts."""
    wanted = [i for i, job in enumerate(jobs) if job.spec.whiten != "none"]
    merged: dict[str, dict[str, Moments]] = {}
    for index, receipt in zip(wanted, map_parts(moments_part, wanted, jobs=jobs, tables=tables), strict=True):
        of_model = merged.setdefault(jobs[index].spec.model_id, {})
        for key, part in receipt["moments"].items():
            of_model[key] = of_model.get(key, Moments()).merge(part)
    return merged


def _result(
    specs: Sequence[TokenSpec], jobs: Sequence[Job], receipts: Sequence[Mapping[str, Any]], rows_in: int
) -> StageResult:
    result = StageResult({f"token_advantages/{spec.model_id}": [] for spec in specs})
    excluded: Counter[str] = Counter()
    measured: dict[str, dict[str, Moments]] = {spec.model_id: {} for spec in specs}
    for job, receipt in zip(jobs, receipts, strict=True):
        model_id = job.spec.model_id
        result.parts[f"token_advantages/{model_id}"].append(receipt["part"])
        excluded.update(receipt["excluded"])
        of_model = measured[model_id]
        for name, part in receipt["measured"].items():
            of_model[name] = of_model.get(name, Moments()).merge(part)
    written = sum(part.rows for parts in result.parts.values() for part in parts)
    used = written - excluded.total()
    result.accounts.append(
        Account("partition to advantage", "turn", rows_in, used, dict(sorted(excluded.items())))
    )
    for model_id, of_model in measured.items():
        result.metrics |= {f"{k}/{model_id}": v for k, v in _metrics(of_model).items()}
        advantage = of_model.get("advantage")
        if advantage is not None and advantage.count and advantage.low == advantage.high == 0:
            result.notes.append(f"no signal: every token advantage of model {model_id!r} is 0")
    return result


def _metrics(measured: Mapping[str, Moments]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    if (advantage := measured.get("advantage")) and advantage.count:
        metrics |= {"advantage_mean": advantage.mean, "advantage_std": advantage.deviation}
    for name in _MEASURED:
        if (moments := measured.get(name)) and moments.count:
            metrics |= {f"{name}_mean": moments.mean, f"{name}_max": moments.high}
    if (returns := measured.get("return")) and returns.squares:
        metrics["explained_variance"] = 1 - measured["error"].squares / returns.squares
    return metrics
