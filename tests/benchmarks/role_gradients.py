"""What the estimate of gradients by role costs an update, and how far it is from the exact measure.

Rows of a shipped team, of several roles that share a model, go to a trainer that measures. The cost is what
its update spends in reading gradients and in working measures out of them, against all else of the same
update: both see the same load of the machine, which moves the time of a whole update by more than they take.
What the cut costs comes on top, in tokens: rows of several roles no longer share what they begin with. The
error is that of the first update, from equal weights on equal rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stages.tables.parquet import TableSink
from stages.training.gradients.spec import MeasureSpec
from stages.training.roles import RoleMeasures
from stages.training.spec import TrainerSpec, UpdateReport
from stages.training.worker import TrainWorker
from stages.weights.precision import trainer_precision
from stages.weights.resolve import resolve_checkpoint
from tests.benchmarks.measure import Figure, Options, told
from tests.benchmarks.peer import cores
from tests.benchmarks.team_rows import TEAMS, team_rows
from tests.benchmarks.update import MICRO_BATCH_TOKENS, MODEL, planned
from workflows.trajectory import PARTITION

MOST = 0.1  # of an update, for the measure and the cut together
COSINES = ("cosine_whole", "gradient_share")


def run(options: Options, say: Callable[[str], None]) -> list[Figure]:
    checkpoint = resolve_checkpoint(options.checkpoint)
    plain = TrainerSpec(MODEL, MODEL, checkpoint, precision=trainer_precision("auto", 0))
    estimate = replace(plain, measure=MeasureSpec("estimate"))
    exact = replace(plain, measure=MeasureSpec("exact"))
    side = _Side(estimate, options.folder, "estimate")
    results: list[dict[str, float]] = []
    reports: list[UpdateReport] = []
    for pair in range(options.pairs + 1):
        result, report = side.update(pair)
        results.append(result)
        reports.append(report)
        say(
            f"{f'update {pair}' if pair else 'warm-up'}: "
            + ", ".join(f"{k} {v:.4g}" for k, v in result.items())
        )
    side.worker.close()
    results = results[1:]
    say("the exact measure of the first update")
    truth = _Side(exact, options.folder, "exact")
    _, report = truth.update(0)
    truth.worker.close()
    return [
        Figure(
            "gradients by role, in an update",
            "s",
            tuple(result["measuring"] + result["cutting"] for result in results),
            tuple(result["seconds"] - result["measuring"] - result["cutting"] for result in results),
            goal=MOST,
            at="most",
            against="all else of the same update",
            notes=(
                f"{told(results, 'rows', 0)} rows of {TEAMS[0].workflow}, {told(results, 'roles', 0)} roles "
                f"on one model, {MICRO_BATCH_TOKENS} tokens at most in a forward pass, {cores()} threads; "
                f"{told(results, 'computed', 0)} tokens computed in {told(results, 'passes', 0)} passes, "
                f"{told(results, 'plain', 0)} where roles may mix",
                f"reading gradients and measuring {told(results, 'measuring', 2)} s; further tokens of the "
                f"cut, at the update's own rate, {told(results, 'cutting', 2)} s",
                f"largest errors of the estimate: {errors(reports[0], report)}",
            ),
            settings={"micro_batch_tokens": MICRO_BATCH_TOKENS},
        )
    ]


class _Side:
    """One trainer, and the partitions that it is given."""

    def __init__(self, spec: TrainerSpec, folder: str, name: str) -> None:
        self.worker = TrainWorker(spec, 0)
        self.worker.start(self.worker.listen(), 0, None)
        self.measuring = 0.0
        parts = self.worker.unit.parts
        assert parts is not None
        if parts.projection is not None:
            parts.projection.add = self._timed(parts.projection.add)  # type: ignore[method-assign]
        RoleMeasures.step = self._timed(RoleMeasures.step)  # type: ignore[method-assign]
        self.sink = TableSink(f"partition/{MODEL}", f"{folder}/{name}", PARTITION)

    def update(self, number: int) -> tuple[dict[str, float], UpdateReport]:
        from stages.training.network.packing import split

        unit = self.worker.unit
        rows = team_rows(TEAMS[0], unit.spec.checkpoint, MODEL, unit.version, number)
        cut = planned(rows, number, shared_prefix=True, by_role=True)
        mixed = planned(rows, number, shared_prefix=True)
        part = self.sink.write_part(number, cut)
        started, self.measuring = time.monotonic(), 0.0
        report = self.worker.update(self.sink.ref([part]), unit.version)
        seconds = time.monotonic() - started
        passes = next(iter(split(cut, packed=True).values()))
        computed = sum(batch.token_ids.numel() for batch in passes)
        plain = sum(b.token_ids.numel() for b in next(iter(split(mixed, packed=True).values())))
        measures = {
            "seconds": seconds,
            "measuring": self.measuring,
            "cutting": (seconds - self.measuring) * (1 - plain / computed),
            "rows": len(rows),
            "roles": len({row["role"] for row in rows}),
            "computed": computed,
            "plain": plain,
            "passes": len(passes),
        }
        return {name: float(value) for name, value in measures.items()}, report

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = time.monotonic()
            result = function(*arguments)
            self.measuring += time.monotonic() - started
            return result

        return timed


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
