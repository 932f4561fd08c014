"""The trust region of one update: it watches the steps, and judges the weights that they end in.

Five enforcements, each a switch of `TrustSpec`. While the update is made: a penalty on the divergence, whose
coefficient is steered (`penalty`), an end of the steps once the divergence is too large (`stop_at`), and
messages that are taken out of the loss because they alone have moved too far (`mask_above`). After it:
backtracking, to the first of 1, 1/2, 1/4 … of the way that is good enough (`backtrack`), and rejection, with
weights, optimizer, critic and running means put back (`reject`). Good enough is a divergence within the
radius and, with a certificate, a lower bound on the gain above minus the tolerance.

A candidate that is good enough may have to stand a trial too: the team plays held-out tasks with it and
without it (`stages.trial`). Until that is decided, the unit holds what it was before.

An update that is made again takes what was recorded of it, and judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stages.training.loss.kl import clamped_log_ratio, k3, masked_sum
from stages.training.network.packing import MicroBatch
from stages.training.plan import MiniBatch
from stages.training.snapshot import Snapshot
from stages.training.trust.measure import (
    Measured,
    Message,
    exact_divergence,
    measured,
    token_divergence,
    with_rest,
)
from stages.training.trust.spec import (
    ACCEPTED,
    PARTLY,
    REJECTED,
    Recorded,
    TrustSpec,
    TrustState,
    state_after,
)
from stages.training.unit import Unit

Rows = dict[tuple[str, int], Message]


@dataclass(frozen=True, slots=True)
class Watched:
    """A micro-batch of this rank's whose divergence is measured, as it was at the start of the block."""

    batch: MicroBatch
    old: Tensor  # (N,) logprobs
    top: tuple[Tensor, Tensor] | None  # (N, k) ids and log probabilities of the likeliest tokens


class TrustRegion:
    """Made after the pass that gives old logprobs, before the first step of an update.

    Args:
        unit: what is trained; its weights are those at the start of the block.
        plan: the mini-batches of the update.
        state: what the block before left, and of an update that is made again what was decided.
    """

    def __init__(self, unit: Unit, plan: list[MiniBatch], state: TrustState) -> None:
        assert unit.spec.trust is not None
        self.unit, self.spec, self.state = unit, unit.spec.trust, state
        self.radius = self.spec.radius * state.shrink
        self.coefficient = self.spec.penalty * state.scale
        self.masked = self.seen = 0  # messages of all passes of this rank, and those that were taken out
        self.watched = [] if state.recorded is not None else list(self._watched(plan))
        takes_back = self.spec.judges if state.recorded is None else state.recorded.kept_share < 1
        self.snapshot = Snapshot(unit) if takes_back and not unit.warms_up else None
        self.ratios: list[dict[str, Any]] = []  # rows of `RATIOS`, once it has judged what moved

    def held(self, row: dict[str, Any]) -> Snapshot | None:
        """What a candidate that is judged so far, by `row`, may still be taken back to; None where that is
        decided."""
        decided = self.state.recorded is not None or row["decision"] == REJECTED
        return None if decided or not self.spec.trial_tasks else self.snapshot

    def ends_after(self, steps: int) -> bool:
        """Whether no further optimizer step is made after so many. Collective."""
        if self.state.recorded is not None:
            return steps >= self.state.recorded.steps
        if not self.spec.stop_at or self.unit.warms_up:
            return False
        return self.measure().divergence > self.spec.stop_at * self.radius

    def kept(self, batch: MicroBatch, new: Tensor, old: Tensor) -> Tensor:
        """The mask (N,) of a micro-batch without the messages that have moved too far."""
        if not self.spec.mask_above:
            return batch.mask
        log_ratio = clamped_log_ratio(new.detach(), old)
        of_tokens = token_divergence(log_ratio, self.spec.estimator_of_samples, self.spec.direction)
        sums = torch.zeros(len(batch.roles), dtype=torch.float64, device=new.device)
        sums.index_add_(0, batch.row, torch.where(batch.mask, of_tokens.double(), 0.0))
        far = sums > self.spec.mask_above
        self.seen += len(batch.keys)
        self.masked += int(far.sum())
        return batch.mask & ~far[batch.row]

    def penalty(self, new: Tensor, old: Tensor, mask: Tensor, weights: Tensor) -> Tensor | None:
        """What the divergence adds to the loss of a micro-batch; None where there is no penalty.

        The gradient of k3 is right on average for tokens that the start sampled.
        """
        if not self.coefficient:
            return None
        of_tokens = token_divergence(clamped_log_ratio(new, old), "k3", self.spec.direction)
        return self.coefficient * masked_sum(of_tokens * weights, mask)

    def measure(self) -> Measured:
        """How far the weights of now are from the start, on the rows that are watched. Collective."""
        mine: Rows = {}
        with torch.no_grad():
            for each in self.watched:
                mine |= self._messages(each)
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, mine)
        return measured(self.spec, {key: message for rows in gathered for key, message in rows.items()})

    def judge(self, steps: int, planned: int) -> dict[str, Any]:
        """Decide on the weights of now, and put back what is not kept; the row of it. Collective.

        Args:
            steps: optimizer steps that were made.
            planned: that there would have been.
        """
        recorded = self.state.recorded
        if recorded is not None:
            if self.snapshot is not None:
                self.snapshot.policy.keep(recorded.kept_share)
            return self._row(recorded, decision=PARTLY if recorded.kept_share < 1 else ACCEPTED)
        whole = self.measure()
        share, now = self._share(whole)
        decision, reason = (ACCEPTED, None) if share == 1 else (PARTLY, f"{share:g} of the step is kept")
        if share == 1 and steps < planned:
            decision, reason = PARTLY, f"stopped after {steps} of {planned} steps"
        if share == 0:
            decision = REJECTED
            outside = f"divergence {whole.divergence:.3g} is above the radius"
            reason = outside if whole.divergence > self.radius else "the certificate is too low"
        elif self.spec.share == 1:
            self.ratios = [
                {"episode_id": episode, "turn_index": turn, "log_ratio": message.log_ratio}
                for (episode, turn), message in now.by_row.items()
            ]
        return self._row(
            Recorded(self.state.candidate(self.unit.version), steps, share),
            decision=decision,
            reason=reason,
            whole=whole,
            now=now,
        )

    def _share(self, whole: Measured) -> tuple[float, Measured]:
        """The share of the step that is kept, with what the weights are then; the weights are set to it."""
        if self.snapshot is None or self._is_good(whole):
            return 1.0, whole
        share, now = 1.0, whole
        for _ in range(self.spec.backtrack):
            share /= 2
            self.snapshot.policy.keep(share)
            now = self.measure()
            if self._is_good(now) and (now.surrogate > 0 or not self.spec.reject):
                return share, now
        if self.spec.reject:
            self.snapshot.restore()
            return 0.0, whole
        return share, now

    def _is_good(self, now: Measured) -> bool:
        inside = now.divergence <= self.radius
        return inside and (not self.spec.certificate or now.certificate(self.spec) >= -self.spec.tolerance)

    def _row(
        self,
        made: Recorded,
        *,
        decision: str,
        reason: str | None = None,
        whole: Measured | None = None,
        now: Measured | None = None,
    ) -> dict[str, Any]:
        spec, state = self.spec, self.state
        row = {
            "radius": self.radius,
            "measure": spec.measure,
            "estimator": spec.estimator,
            "direction": spec.direction,
            "shrink": state.shrink,
            "scale": state.scale,
            "spent_before": state.spent,
            "coefficient": self.coefficient,
            "candidate_version": made.candidate,
            "steps": made.steps,
            "kept_share": made.kept_share,
            "decision": decision,
            "reason": reason,
            "masked_share": self._masked_share(),
        }
        if whole is None or now is None:
            return row
        after = state_after(spec, state, decision, whole.divergence)
        return row | {
            "whole_divergence": whole.divergence,
            "divergence": 0.0 if decision == REJECTED else now.divergence,
            "per_episode": 0.0 if decision == REJECTED else now.per_episode,
            "surrogate": now.surrogate,
            "surrogate_error": now.error,
            "certificate": now.certificate(spec) if spec.share == 1 else None,
            "turns": now.turns,
            "messages": now.messages,
            "next_shrink": after.shrink,
            "next_scale": after.scale,
        }

    def _masked_share(self) -> float | None:
        if not self.spec.mask_above:
            return None
        counts = torch.tensor([self.masked, self.seen], dtype=torch.float64, device=self.unit.device)
        dist.all_reduce(counts)
        masked, seen = counts.tolist()
        return masked / seen if seen else None

    def _watched(self, plan: list[MiniBatch]) -> Iterator[Watched]:
        """A share of this rank's micro-batches, spread evenly over them."""
        mine = [
            (batch, mini_batch.old_logprobs[index])
            for mini_batch in plan
            if mini_batch.skipped is None
            for index, batch in enumerate(mini_batch.micro_batches)
            if batch.keys
        ]
        count = -int(-len(mine) * self.spec.share // 1)
        for place in range(count):
            batch, old = mine[place * len(mine) // count]
            top = None
            if self.spec.estimator == "exact":
                with torch.no_grad():
                    logprobs = self.unit.policy.distributions(batch)
                values, ids = logprobs.topk(min(self.spec.top_k, logprobs.shape[-1]), dim=-1)
                top = ids, values
            yield Watched(batch, old, top)

    def _messages(self, watched: Watched) -> Rows:
        batch = watched.batch
        if watched.top is None:
            new = self.unit.policy(batch)[0]
        else:
            logprobs = self.unit.policy.distributions(batch)
            new = logprobs.gather(-1, batch.targets[:, None])[:, 0]
        log_ratio = clamped_log_ratio(new, watched.old).double()
        if watched.top is None:
            of_tokens = token_divergence(log_ratio, self.spec.estimator, self.spec.direction)
        else:
            ids, start = watched.top
            now = logprobs.gather(-1, ids)
            of_tokens = exact_divergence(
                with_rest(start.double()), with_rest(now.double()), self.spec.direction
            )
        estimates, rows = k3(log_ratio), Rows()
        for place, key in enumerate(batch.keys):
            of_row = (batch.row == place) & batch.mask
            values = of_tokens[of_row].tolist()
            rows[key] = Message(
                divergence=sum(values),
                k3=float(estimates[of_row].sum()),
                log_ratio=float(log_ratio[of_row].sum()),
                advantage=float(batch.advantages[of_row].double().mean()),
                tokens=len(values),
                of_tokens=tuple(values) if self.spec.measure == "token" else (),
            )
        return rows


def trust_region(unit: Unit, plan: list[MiniBatch], state: TrustState | None) -> TrustRegion | None:
    """The trust region of an update that is about to be made; None where the unit has none."""
    if unit.spec.trust is None:
        return None
    return TrustRegion(unit, plan, state or TrustState())


def without_judgement(spec: TrustSpec, state: TrustState, version: int) -> dict[str, Any]:
    """The row of an update that made no step: no candidate, and the state as it was."""
    return {
        "radius": spec.radius * state.shrink,
        "measure": spec.measure,
        "estimator": spec.estimator,
        "direction": spec.direction,
        "shrink": state.shrink,
        "scale": state.scale,
        "spent_before": state.spent,
        "candidate_version": max(version, state.spent),
        "steps": 0,
        "kept_share": 0.0,
        "next_shrink": state.shrink,
        "next_scale": state.scale,
    }
