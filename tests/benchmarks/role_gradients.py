"""What the estimate of gradients by role costs an update, and how far it is from the exact measure.

The same rows of a shipped team, of several roles that share a model, go to a trainer that measures and to one
that does not, each cut as its plan cuts them: what the cut costs (rows of several roles no longer share what
they begin with) is part of the price. Both are in this process, and what counts is its processor time:
an update is all computation, and a second of the clock is what the rest of the machine leaves of it. The
error is that of one update, from equal weights on equal rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stages.tables.parquet import TableSink
from stages.training.gradients.spec import MeasureSpec
from stages.training.spec import TrainerSpec, UpdateReport
from stages.training.worker import TrainWorker
from stages.weights.precision import trainer_precision
from stages.weights.resolve import resolve_checkpoint
from tests.benchmarks.measure import Figure, Options, column, interleave, noise_of, told
from tests.benchmarks.peer import cores
from tests.benchmarks.team_rows import TEAMS, team_rows
from tests.benchmarks.update import MICRO_BATCH_TOKENS, MODEL, planned
from workflows.trajectory import PARTITION

MOST = 1.1  # time of an update that measures, in that of one that does not
COSINES = ("cosine_whole", "gradient_share")


def run(options: Options, say: Callable[[str], None]) -> list[Figure]:
    checkpoint = resolve_checkpoint(options.checkpoint)
    plain = TrainerSpec(MODEL, MODEL, checkpoint, precision=trainer_precision("auto", 0))
    estimate = replace(plain, measure=MeasureSpec("estimate"))
    exact = replace(plain, measure=MeasureSpec("exact"))
    sides = {name: _Side(spec, options.folder, name) for name, spec in (("on", estimate), ("off", plain))}
    reports: list[UpdateReport] = []

    def measured(pair: int) -> dict[str, float]:
        result, report = sides["on"].update(pair)
        reports.append(report)
        return result

    mine, others = interleave(measured, lambda pair: sides["off"].update(pair)[0], options.pairs, say)
    for side in sides.values():
        side.worker.close()
    say("the exact measure of the first update")
    truth = _Side(exact, options.folder, "exact")
    _, report = truth.update(0)
    truth.worker.close()
    return [
        Figure(
            "update, gradients by role",
            "s of processor time",
            column(mine, "cpu_seconds"),
            column(others, "cpu_seconds"),
            goal=MOST,
            at="most",
            against="the same update, not measured",
            notes=(
                f"{told(mine, 'rows', 0)} rows of {TEAMS[0].workflow}, {told(mine, 'roles', 0)} roles on one "
                f"model, {MICRO_BATCH_TOKENS} tokens at most in a forward pass, {cores()} threads; measured: "
                f"{told(mine, 'computed', 0)} tokens computed, not measured: {told(others, 'computed', 0)}",
                f"largest errors of the estimate: {errors(reports[0], report)}",
                noise_of(mine, others),
            ),
            settings={"micro_batch_tokens": MICRO_BATCH_TOKENS},
        )
    ]


class _Side:
    """One trainer, and the partitions that it is given."""

    def __init__(self, spec: TrainerSpec, folder: str, name: str) -> None:
        self.by_role = spec.measure.is_on
        self.worker = TrainWorker(spec, 0)
        self.worker.start(self.worker.listen(), 0, None)
        self.sink = TableSink(f"partition/{MODEL}", f"{folder}/{name}", PARTITION)

    def update(self, number: int) -> tuple[dict[str, float], UpdateReport]:
        from stages.training.network.packing import split

        unit = self.worker.unit
        rows = team_rows(TEAMS[0], unit.spec.checkpoint, MODEL, unit.version, number)
        cut = planned(rows, number, shared_prefix=True, by_role=self.by_role)
        part = self.sink.write_part(number, cut)
        started, cpu_started = time.monotonic(), time.process_time()
        report = self.worker.update(self.sink.ref([part]), unit.version)
        seconds, cpu_seconds = time.monotonic() - started, time.process_time() - cpu_started
        passes = next(iter(split(cut, packed=True).values()))
        measures = {
            "cpu_seconds": cpu_seconds,
            "seconds": seconds,
            "rows": float(len(rows)),
            "roles": float(len({row["role"] for row in rows})),
            "computed": float(sum(batch.token_ids.numel() for batch in passes)),
        }
        return measures, report


def errors(estimate: UpdateReport, exact: UpdateReport) -> str:
    """How far the estimate is from the exact measure of the same rows and weights, at most over all roles."""
    pairs = list(zip(_summaries(estimate), _summaries(exact), strict=True))
    norms = [abs(e["gradient_norm"] / x["gradient_norm"] - 1) for e, x in pairs]
    others = {
        name: max((abs(e[name] - x[name]) for e, x in pairs if x.get(name) is not None), default=0.0)
        for name in COSINES
    }
    between = [abs(e["cosine"] - x["cosine"]) for e, x in zip(estimate.pairs, exact.pairs, strict=True)]
    return (
        f"norm {max(norms):.1%}, share {others['gradient_share']:.4f}, cosine to the whole "
        f"{others['cosine_whole']:.4f}, cosine of two roles {max(between, default=0.0):.4f}"
    )


def _summaries(report: UpdateReport) -> Sequence[Mapping[str, Any]]:
    return [row for row in report.roles if row["kind"] == "summary"]
