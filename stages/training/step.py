"""One update of one rank: old logprobs, micro-batches, optimizer steps.

The loss is a sum over tokens divided by one number for the whole optimizer step, over all ranks, so
that a gradient does not depend on how a batch was cut.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stages.tables.parquet import TableRef
from stages.training.choice import choose_tokens
from stages.training.gradients.parts import Part
from stages.training.loss.batch import TokenBatch
from stages.training.loss.kl import sampler_gap
from stages.training.loss.loss import TokenSums, ValueSums, policy_loss, terms_of, token_weights, value_loss
from stages.training.network.packing import MicroBatch
from stages.training.plan import MiniBatch, plan_update
from stages.training.region import TrustRegion, trust_region, without_judgement
from stages.training.report import report_of
from stages.training.roles import RoleMeasures
from stages.training.spec import UpdateReport, update_id_of
from stages.training.stops import stop_sums
from stages.training.totals import Totals
from stages.training.trust.spec import TrustState
from stages.training.unit import Unit
from workflows.errors import RunFailed


def run_update(
    unit: Unit,
    partition: TableRef,
    version: int,
    advantages: TableRef | None,
    scores: TableRef | None,
    off_policy: bool = False,
    at: tuple[int, int] = (0, 0),
    kl_scale: TableRef | None = None,
    trust: TrustState | None = None,
    stop_rows: TableRef | None = None,
) -> UpdateReport:
    """See `TrainerGroup.update`; every rank calls this and gets the same report.

    Args:
        at: iteration and block, for the report.
        kl_scale: what multiplies the KL coefficients of the loss; None leaves them as they are.
        trust: what the trust region begins with; None is the beginning, or that there is none.
        stop_rows: stop decisions, which have a loss of their own.
    """
    more = [table for table in (kl_scale, stop_rows) if table is not None]
    tables = (partition, advantages, scores, *more)
    update_id = update_id_of(unit.spec.model_id, version, tables, trust)
    last = unit.last_report
    if last is not None and last.update_id == update_id:
        return last
    if version != unit.version:
        raise RunFailed(
            f"model {unit.spec.model_id!r}: the update of iteration {at[0]}, block {at[1]}, starts from "
            f"version {version}, and the trainer is at version {unit.version}; resume from the checkpoint "
            f"of version {version} to make it"
        )
    started = time.perf_counter()
    unit.held = None
    unit.kl_scale = 1.0 if kl_scale is None else float(kl_scale.read(["scale"])["scale"][0].as_py())
    plan, excluded = plan_update(unit, partition, advantages, scores, off_policy, stop_rows)
    steps, total, roles = [], Totals(), RoleMeasures(unit)
    judged: dict[str, Any] | None = None
    ratios: list[dict[str, Any]] = []
    if any(m.skipped is None for m in plan):
        many = unit.spec.epochs * len(plan) > 1
        if many or unit.spec.loss.chooses_tokens or unit.spec.trust is not None:
            _before_the_update(unit, plan)
        choose_tokens(unit, plan)
        with _within(unit, plan, trust) as region:
            for number in range(unit.spec.epochs * len(plan)):
                epoch, index = divmod(number, len(plan))
                row, step_total = _optimizer_step(unit, plan[index], number, roles, first=epoch == 0)
                row["step"] = number
                steps.append(row)
                total.merge(step_total)
                if region is not None and region.ends_after(len(steps)):
                    break
            if region is not None:
                judged = region.judge(len(steps), unit.spec.epochs * len(plan))
                ratios, unit.held = region.ratios, region.held(judged)
    elif unit.spec.trust is not None:
        judged = without_judgement(unit.spec.trust, trust or TrustState(), version)
    seconds = time.perf_counter() - started
    report = report_of(unit, update_id, at, plan, excluded, steps, total, seconds, roles, judged, ratios)
    return replace(report, on_trial=unit.held is not None)


@contextmanager
def _within(unit: Unit, plan: list[MiniBatch], trust: TrustState | None) -> Iterator[TrustRegion | None]:
    """The trust region of an update, which the losses of its steps see too."""
    unit.trust = trust_region(unit, plan, trust)
    try:
        yield unit.trust
    finally:
        unit.trust = None


def _before_the_update(unit: Unit, plan: list[MiniBatch]) -> None:
    """Old logprobs and values of every token, as far as the scores do not have them.

    An update of one optimizer step mostly does without: its own forward pass gives the same numbers.
    """
    with torch.no_grad():
        for mini_batch in plan:
            if mini_batch.skipped is not None:
                continue
            for batch in mini_batch.micro_batches:
                old, values = batch.old_logprobs, batch.values
                if old is None or (unit.critic is not None and values is None):
                    now, _, hidden = unit.policy(batch)
                    old = now if old is None else old
                    if unit.critic is not None and values is None:
                        values = unit.critic.values(batch, hidden)
                mini_batch.old_logprobs.append(old)
                if values is not None:
                    mini_batch.old_values.append(values)


def _optimizer_step(
    unit: Unit, mini_batch: MiniBatch, number: int, roles: RoleMeasures, *, first: bool
) -> tuple[dict[str, Any], Totals]:
    """Forward and backward over all micro-batches, then one step; the row of it and its totals.

    `first` says that no earlier step of this update saw these rows: the gap to the sampler is measured.

    Raises:
        RunFailed: a loss or the gradient is not finite. The weights are those from before the step.
    """
    started = time.perf_counter()
    total = Totals()
    by_part = {part: Totals() for part in mini_batch.counts}
    row: dict[str, Any] = {
        "kind": "step",
        "num_rows": mini_batch.num_rows,
        "num_tokens": mini_batch.num_tokens,
        "num_forward_tokens": mini_batch.num_forward_tokens,
        "learning_rate": unit.learning_rate,
        "skipped": mini_batch.skipped,
    }
    if mini_batch.skipped is None:
        if unit.parts is not None:
            unit.parts.start(tuple(mini_batch.counts))
        for index in range(len(mini_batch.micro_batches)):
            _micro_batch(unit, mini_batch, index, total, by_part, first)
        for index in range(len(mini_batch.stops)):
            _stop_pass(unit, mini_batch, index, total)
        roles.step(mini_batch, number, by_part)
        row["gradient_norm"] = _apply(unit, mini_batch)
        total = total.over_ranks(unit.device)
        total.add(denominator=mini_batch.denominator)
    row |= total.measured()
    row["seconds"] = time.perf_counter() - started
    return row, total


def _micro_batch(
    unit: Unit,
    mini_batch: MiniBatch,
    index: int,
    total: Totals,
    by_part: Mapping[Part, Totals],
    first: bool,
) -> None:
    """Forward and backward of one micro-batch, for the policy and for the critic."""
    batch, spec = mini_batch.micro_batches[index], unit.spec
    last = index == len(mini_batch.micro_batches) - 1 and not mini_batch.stops
    step_total, total = total, Totals()
    reference = _drift_reference(unit, mini_batch, index) if first else None
    with torch.set_grad_enabled(not unit.warms_up):
        new, entropies, hidden = unit.network(batch, spec.loss.needs_entropy)
    # old logprobs come from the pass before the update (or the scores), or else are this very pass's
    if mini_batch.old_logprobs:
        old = mini_batch.old_logprobs[index]
    else:
        old = new.detach() if batch.old_logprobs is None else batch.old_logprobs
    if first:
        total.add_gap(sampler_gap(old, batch.behaviour_logprobs, batch.mask))
    chosen = mini_batch.chosen[index] if mini_batch.chosen else None
    sums = _policy_sums(unit, batch, new, old, entropies, chosen)
    total.add_policy(
        sums,
        reference=batch.reference_logprobs is not None,
        entropies=entropies is not None,
        importance=batch.importance_weights is not None,
        chosen=chosen is not None,
    )
    # DeepSpeed averages gradients over ranks; ours are parts of one sum.
    loss = sums.loss * (spec.ranks / mini_batch.denominator)
    if unit.critic is not None:
        value_sums = _value_sums(unit, mini_batch, index, hidden)
        total.add_values(value_sums)
        of_values = value_sums.loss * (spec.ranks / mini_batch.num_tokens)
        _refuse_broken(unit, mini_batch, batch, of_values)
        if unit.critic.network is not None:
            unit.critic.network.backward(of_values, last=last)
        elif unit.warms_up:
            of_values.backward()
        else:
            loss = loss + unit.critic.spec.coefficient * of_values
    _refuse_broken(unit, mini_batch, batch, loss)
    if unit.parts is not None:
        unit.parts.begin(mini_batch.parts[index])
    if not unit.warms_up:
        unit.network.backward(loss, last=last)
    step_total.merge(total)
    if unit.parts is not None and (part := mini_batch.parts[index]) is not None:
        total.add_by_role(new.detach(), reference, batch.mask)
        by_part[part].merge(total)
    unit.count(batch)


def _stop_pass(unit: Unit, mini_batch: MiniBatch, index: int, total: Totals) -> None:
    """Forward and backward over the stop decisions of one pass."""
    stops, spec = mini_batch.stops[index], unit.spec
    new, _, _ = unit.network(stops.batch, False)
    sums = stop_sums(unit, stops, new)
    total.add_stops(sums)
    loss = sums.loss * (spec.loss.stop_coefficient * spec.ranks / max(mini_batch.num_traces, 1))
    _refuse_broken(unit, mini_batch, stops.batch, loss)
    unit.network.backward(loss.float(), last=index == len(mini_batch.stops) - 1)
    unit.count(stops.batch)


def _drift_reference(unit: Unit, mini_batch: MiniBatch, index: int) -> Tensor | None:
    """The reference's logprobs for the first micro-batch of a role in the update, where drift is measured.

    Before the policy's forward pass: of adapters on one base, the newest forward pass decides which is on.
    """
    parts = mini_batch.parts
    if unit.parts is None or not unit.spec.measure.drift or mini_batch.index or parts[index] is None:
        return None
    roles = [part[0] for part in parts[:index] if part is not None]
    batch, part = mini_batch.micro_batches[index], parts[index]
    if batch.reference_logprobs is not None or part is None or part[0] in roles:
        return None
    with torch.no_grad():
        return unit.reference(batch)


def _policy_sums(
    unit: Unit,
    batch: MicroBatch,
    new: Tensor,
    old: Tensor,
    entropies: Tensor | None,
    chosen: Tensor | None,
) -> TokenSums:
    loss, num_rows = unit.loss, len(batch.roles)
    weights = token_weights(loss, batch.mask, batch.row, num_rows)
    mask = batch.mask if unit.trust is None else unit.trust.kept(batch, new, old)
    sums = policy_loss(
        loss,
        TokenBatch(
            new_logprobs=new,
            old_logprobs=old,
            advantages=batch.advantages,
            mask=mask,
            row=batch.row,
            num_rows=num_rows,
            weights=weights,
            terms=terms_of(loss, batch.roles, batch.row),
            importance_weights=batch.importance_weights,
            reference_logprobs=batch.reference_logprobs,
            entropies=entropies,
            chosen=chosen,
        ),
    )
    penalty = None if unit.trust is None else unit.trust.penalty(new, old, mask, weights)
    return sums if penalty is None else replace(sums, loss=sums.loss + penalty)


def _value_sums(unit: Unit, mini_batch: MiniBatch, index: int, hidden: Tensor) -> ValueSums:
    critic, batch = unit.critic, mini_batch.micro_batches[index]
    assert critic is not None
    assert batch.returns is not None  # the plan has refused other rows
    values = critic.values(batch, hidden, train=True)
    if mini_batch.old_values:
        old = mini_batch.old_values[index]
    else:
        old = values.detach() if batch.values is None else batch.values
    counted = batch.mask.to(torch.float32)
    return value_loss(values, old, batch.returns, batch.mask, counted, critic.spec.value_clip)


def _refuse_broken(unit: Unit, mini_batch: MiniBatch, batch: MicroBatch, loss: Tensor) -> None:
    if not bool(torch.isfinite(loss)):
        raise RunFailed(
            f"model {unit.spec.model_id!r}: the loss of optimizer step {mini_batch.index} is "
            f"{float(loss.detach())}, in rows {_names(batch)}; the weights are unchanged"
        )


def _apply(unit: Unit, mini_batch: MiniBatch) -> float:
    """Clip and step; the gradient norm of the policy (of the critic, while only that learns).

    The critic goes first, so that a failure of either leaves the policy as it was.
    """
    norm = unit.critic.step(unit.version) if unit.critic is not None else 0.0
    if math.isfinite(norm) and not unit.warms_up:
        norm = unit.network.step(unit.learning_rate)
    if not math.isfinite(norm):
        names = ", ".join(_names(b) for b in mini_batch.micro_batches if b.keys)
        raise RunFailed(
            f"model {unit.spec.model_id!r}: the gradient of optimizer step {mini_batch.index} is not "
            f"finite; rows of rank {unit.rank}: {names}; the weights are unchanged"
        )
    return norm


def _names(batch: MicroBatch, limit: int = 8) -> str:
    names = [f"({episode}, {turn})" for episode, turn in batch.keys]
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
