"""One update of one rank: old logprobs, micro-batches, optimizer steps, and what they report.

The loss is the sum over tokens divided by the token count of the whole optimizer step, over all ranks,
so that a gradient does not depend on how a batch was cut.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from stages.tables import TableRef
from stages.training.losses import clipped_surrogate, sampler_gap
from stages.training.packing import MicroBatch
from stages.training.plan import NO_ROWS, NO_SIGNAL, MiniBatch, plan_update
from stages.training.spec import UpdateReport
from workflows.errors import RunFailed

if TYPE_CHECKING:
    from stages.training.worker import TrainWorker


class Totals:
    """Named sums and maxima of one rank that merge exactly over micro-batches and ranks."""

    SUMS = ("loss", "tokens", "kl_old", "clipped", "gap", "gap_kl", "gap_tokens")
    MAXIMA = ("ratio", "gap_max")

    def __init__(self) -> None:
        self.sums = dict.fromkeys(self.SUMS, 0.0)
        self.maxima = dict.fromkeys(self.MAXIMA, 0.0)

    def add(self, **values: Tensor) -> None:
        for name, value in values.items():
            if name in self.sums:
                self.sums[name] += float(value)
            else:
                self.maxima[name] = max(self.maxima[name], float(value))

    def merge(self, other: Totals) -> None:
        self.add(**{k: torch.tensor(v) for k, v in (*other.sums.items(), *other.maxima.items())})

    def over_ranks(self, device: torch.device) -> Totals:
        merged = Totals()
        for mine, theirs, op in (
            (self.sums, merged.sums, dist.ReduceOp.SUM),
            (self.maxima, merged.maxima, dist.ReduceOp.MAX),
        ):
            values = torch.tensor(list(mine.values()), dtype=torch.float64, device=device)
            dist.all_reduce(values, op=op)
            theirs.update(zip(mine, values.tolist(), strict=True))
        return merged

    def mean(self, name: str, count: str = "tokens") -> float | None:
        return self.sums[name] / self.sums[count] if self.sums[count] else None


def run_update(worker: TrainWorker, partition: TableRef, iteration: int) -> UpdateReport:
    """See `TrainerGroup.update`; every rank calls this and gets the same report."""
    last = worker.last_report
    if last is not None and last.iteration == iteration:
        return last
    if last is not None and iteration < last.iteration:
        raise RunFailed(
            f"model {worker.spec.model_id!r} has trained on iteration {last.iteration}; it can't train on "
            f"iteration {iteration} now; resume from an older checkpoint to redo it"
        )
    started = time.perf_counter()
    plan, empty = plan_update(worker, partition)
    steps, total = [], Totals()
    if any(m.skipped is None for m in plan):
        if worker.spec.epochs * len(plan) > 1:
            total.merge(_old_logprobs(worker, plan))
        for epoch in range(worker.spec.epochs):
            for mini_batch in plan:
                row, step_total = _optimizer_step(worker, mini_batch)
                row["step"] = epoch * len(plan) + mini_batch.index
                steps.append(row)
                total.merge(step_total)
    return _report(worker, iteration, plan, empty, steps, total, time.perf_counter() - started)


def _logprobs(module: Any, batch: MicroBatch) -> Tensor:
    result: Tensor = module(batch.token_ids, batch.positions, batch.targets, batch.temperatures)
    return result


def _old_logprobs(worker: TrainWorker, plan: list[MiniBatch]) -> Totals:
    """Set the trainer's own logprobs from before the update; how far the sampler's are from them.

    An update of one optimizer step does without: its own forward pass gives the same numbers.
    """
    total = Totals()
    with torch.no_grad():
        for mini_batch in plan:
            if mini_batch.skipped is None:
                mini_batch.old_logprobs = [_logprobs(worker.policy, b) for b in mini_batch.micro_batches]
                for old, batch in zip(mini_batch.old_logprobs, mini_batch.micro_batches, strict=True):
                    _add_gap(total, old, batch)
    return total.over_ranks(worker.device)


def _add_gap(total: Totals, old: Tensor, batch: MicroBatch) -> None:
    gap = sampler_gap(old, batch.behaviour_logprobs, batch.mask)
    total.add(gap=gap.absolute, gap_kl=gap.kl, gap_tokens=gap.num_tokens, gap_max=gap.maximum)


def _optimizer_step(worker: TrainWorker, mini_batch: MiniBatch) -> tuple[dict[str, Any], Totals]:
    """Forward and backward over all micro-batches, then one step; the row of it and its totals.

    Raises:
        RunFailed: a loss or the gradient is not finite. The weights are those from before the step.
    """
    started = time.perf_counter()
    spec, engine, total = worker.spec, worker.engine, Totals()
    row: dict[str, Any] = {
        "kind": "step",
        "num_rows": mini_batch.num_rows,
        "num_tokens": mini_batch.num_tokens,
        "num_forward_tokens": mini_batch.num_forward_tokens,
        "learning_rate": spec.learning_rate,
        "skipped": mini_batch.skipped,
    }
    if mini_batch.skipped is None:
        last = len(mini_batch.micro_batches) - 1
        for index, batch in enumerate(mini_batch.micro_batches):
            new = _logprobs(engine, batch)
            if mini_batch.old_logprobs:
                old = mini_batch.old_logprobs[index]
            else:
                old = new.detach()
                _add_gap(total, old, batch)
            sums = clipped_surrogate(
                new,
                old,
                batch.advantages,
                batch.mask,
                clip_low=spec.clip_low,
                clip_high=spec.clip_high,
                dual_clip=spec.dual_clip,
            )
            total.add(
                loss=sums.loss.detach(),
                tokens=sums.num_tokens,
                kl_old=sums.kl_old,
                clipped=sums.clipped,
                ratio=sums.ratio_max,
            )
            if not bool(torch.isfinite(sums.loss)):
                raise RunFailed(
                    f"model {spec.model_id!r}: the loss of optimizer step {mini_batch.index} is "
                    f"{float(sums.loss.detach())}, in rows {_names(batch)}; the weights are unchanged"
                )
            engine.set_gradient_accumulation_boundary(index == last)
            # DeepSpeed averages gradients over ranks; ours are parts of one sum.
            engine.backward(sums.loss * (spec.ranks / mini_batch.num_tokens), scale_wrt_gas=False)
            rows, tokens = worker.trained
            worker.trained = (rows + len(batch.keys), tokens + batch.num_forward_tokens)
        row["gradient_norm"] = _apply(worker, mini_batch)
        total = total.over_ranks(worker.device)
    row |= _measured(total)
    row["seconds"] = time.perf_counter() - started
    return row, total


def _apply(worker: TrainWorker, mini_batch: MiniBatch) -> float:
    """Clip and step; the gradient norm from before clipping."""
    engine, norm = worker.engine, math.nan
    sharded = hasattr(engine.optimizer, "overflow")
    if not sharded:  # DeepSpeed leaves plain fp32 to torch, and keeps no norm
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in engine.module.parameters()]))
    if sharded or math.isfinite(norm):
        engine.step()
    if sharded:  # DeepSpeed itself leaves out a step whose gradient is not finite
        norm = math.inf if engine.optimizer.overflow else float(engine.get_global_grad_norm())
    if not math.isfinite(norm):
        engine.zero_grad()
        names = ", ".join(_names(b) for b in mini_batch.micro_batches if b.keys)
        raise RunFailed(
            f"model {worker.spec.model_id!r}: the gradient of optimizer step {mini_batch.index} is not "
            f"finite; rows of rank {worker.rank}: {names}; the weights are unchanged"
        )
    return norm


def _names(batch: MicroBatch, limit: int = 8) -> str:
    names = [f"({episode}, {turn})" for episode, turn in batch.keys]
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _measured(total: Totals) -> dict[str, Any]:
    """The measured columns of an `UPDATES` row; null where there was nothing to measure."""
    some, gap = total.sums["tokens"] > 0, total.sums["gap_tokens"] > 0
    return {
        "loss": total.mean("loss"),
        "policy_loss": total.mean("loss"),
        "kl_old": total.mean("kl_old"),
        "clip_fraction": total.mean("clipped"),
        "importance_ratio_max": total.maxima["ratio"] if some else None,
        "sampler_gap_mean": total.mean("gap", "gap_tokens"),
        "sampler_gap_max": total.maxima["gap_max"] if gap else None,
        "sampler_kl": total.mean("gap_kl", "gap_tokens"),
    }


def _report(
    worker: TrainWorker,
    iteration: int,
    plan: list[MiniBatch],
    empty: int,
    steps: list[dict[str, Any]],
    total: Totals,
    seconds: float,
) -> UpdateReport:
    made = [m for m in plan if m.skipped is None]
    skipped = None if made else next((m.skipped for m in plan if m.skipped == NO_SIGNAL), NO_ROWS)
    before = worker.version
    after = before + bool(made)
    shared = {
        "iteration": iteration,
        "model_id": worker.spec.model_id,
        "version_before": before,
        "version_after": after,
    }
    norms = [row["gradient_norm"] for row in steps if "gradient_norm" in row]
    num_rows = sum(m.num_rows for m in made)
    num_tokens = sum(m.num_tokens for m in made)
    num_forward_tokens = sum(m.num_forward_tokens for m in made)
    excluded = {
        "no response": empty,
        "no signal": sum(m.num_rows for m in plan if m.skipped == NO_SIGNAL),
    }
    summary = {
        "kind": "summary",
        "gradient_norm": sum(norms) / len(norms) if norms else None,
        "learning_rate": worker.spec.learning_rate,
        "num_rows": num_rows,
        "num_tokens": num_tokens,
        "num_forward_tokens": num_forward_tokens,
        "seconds": seconds,
        "skipped": skipped,
        **_measured(total),
    }
    return UpdateReport(
        model_id=worker.spec.model_id,
        iteration=iteration,
        version_before=before,
        version_after=after,
        num_rows=num_rows,
        num_tokens=num_tokens,
        num_forward_tokens=num_forward_tokens,
        seconds=seconds,
        skipped=skipped,
        excluded={reason: n for reason, n in excluded.items() if n},
        steps=[{**shared, **row} for row in steps],
        summary={**shared, **summary},
    )
