"""What an update measures: sums and maxima that merge exactly over micro-batches, steps and ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from rewards.credit.moments import Moments
from stages.training.loss.kl import SamplerGap, clamped_log_ratio, k3, masked_sum
from stages.training.loss.loss import TokenSums, ValueSums, explained_variance
from stages.training.loss.stopping import StopSums

# A measured thing, and the sum that it is divided by.
_MEANS: Final = {
    "loss": "denominator",
    "policy_loss": "denominator",
    "value_loss": "value_tokens",
    "kl_old": "tokens",
    "kl_reference": "reference_tokens",
    "entropy": "entropy_tokens",
    "clip_fraction": "tokens",
    "dual_clip_fraction": "tokens",
    "importance_weight_mean": "importance_tokens",
    "importance_masked": "importance_tokens",
    "sampler_gap_mean": "gap_tokens",
    "sampler_kl": "gap_tokens",
    "sampled_entropy": "sampled_tokens",
    "drift": "drift_tokens",
}
# Measured like these, and no columns of `UPDATES`: an update's report and manifest have them.
_FURTHER: Final = {
    "covariance_fraction": "chosen_tokens",
    "stop_loss": "stop_traces",
    "stop_value": "stop_traces",
    "stop_probability": "stop_decisions",
}
_BY_ROLE: Final = ("sampled_entropy", "drift")  # measured for tables by role alone
_MOMENTS: Final = ("returns", "errors")
_MAXIMA: Final = {
    "importance_ratio_max": "tokens",
    "importance_weight_max": "importance_tokens",
    "sampler_gap_max": "gap_tokens",
}


class Totals:
    """Named sums, maxima and moments of one rank. A thing that was not measured anywhere is null."""

    def __init__(self) -> None:
        self.sums = dict.fromkeys((*_MEANS, *_MEANS.values(), *_FURTHER, *_FURTHER.values()), 0.0)
        self.maxima = dict.fromkeys(_MAXIMA, 0.0)
        self.moments = dict.fromkeys(_MOMENTS, Moments())

    def add(self, **values: Tensor | float) -> None:
        for name, value in values.items():
            if name in self.sums:
                self.sums[name] += float(value)
            else:
                self.maxima[name] = max(self.maxima[name], float(value))

    def add_policy(
        self, sums: TokenSums, *, reference: bool, entropies: bool, importance: bool, chosen: bool
    ) -> None:
        """Of one micro-batch; the flags say which of the optional terms were there to be measured."""
        tokens = sums.num_tokens
        self.add(
            loss=sums.loss.detach(),
            policy_loss=sums.policy,
            tokens=tokens,
            kl_old=sums.kl_old,
            clip_fraction=sums.clipped,
            dual_clip_fraction=sums.dual_clipped,
            importance_ratio_max=sums.ratio_max,
        )
        if reference:
            self.add(kl_reference=sums.kl_reference, reference_tokens=tokens)
        if entropies:
            self.add(entropy=sums.entropy, entropy_tokens=tokens)
        if importance:
            self.add(
                importance_weight_mean=sums.importance_weight,
                importance_weight_max=sums.importance_weight_max,
                importance_masked=sums.importance_masked,
                importance_tokens=tokens,
            )
        if chosen:
            self.add(covariance_fraction=sums.chosen, chosen_tokens=tokens)

    def add_values(self, sums: ValueSums) -> None:
        self.add(
            value_loss=sums.loss.detach(),
            value_tokens=sums.num_tokens,
        )
        self._add_moments({"returns": sums.returns, "errors": sums.errors})

    def add_stops(self, sums: StopSums) -> None:
        self.add(
            stop_loss=sums.loss.detach(),
            stop_value=sums.value,
            stop_traces=float(sums.num_traces),
            stop_probability=sums.probability,
            stop_decisions=sums.num_decisions,
        )

    def _add_moments(self, moments: Mapping[str, Moments]) -> None:
        for name, each in moments.items():
            self.moments[name] = self.moments[name].merge(each)

    def add_gap(self, gap: SamplerGap) -> None:
        self.add(
            sampler_gap_mean=gap.absolute,
            sampler_kl=gap.kl,
            gap_tokens=gap.num_tokens,
            sampler_gap_max=gap.maximum,
        )

    def add_by_role(self, new_logprobs: Tensor, reference: Tensor | None, mask: Tensor) -> None:
        """What tables by role have besides: the entropy of sampled tokens, and the KL to a reference.

        Args:
            new_logprobs: (N,) of the current policy.
            reference: (N,) of the reference, where it was asked for this.
            mask: (N,) bool.
        """
        self.add(
            sampled_entropy=-masked_sum(new_logprobs.double(), mask),
            sampled_tokens=mask.sum(dtype=torch.float64),
        )
        if reference is not None:
            gap = clamped_log_ratio(reference, new_logprobs).double()
            self.add(drift=masked_sum(k3(gap), mask), drift_tokens=mask.sum(dtype=torch.float64))

    def merge(self, other: Totals) -> None:
        self.add(**other.sums, **other.maxima)
        self._add_moments(other.moments)

    def over_ranks(self, device: torch.device) -> Totals:
        """The totals of all ranks. Collective; the names are the same on every rank."""
        merged = Totals()
        for mine, theirs, op in (
            (self.sums, merged.sums, dist.ReduceOp.SUM),
            (self.maxima, merged.maxima, dist.ReduceOp.MAX),
        ):
            values = torch.tensor(list(mine.values()), dtype=torch.float64, device=device)
            dist.all_reduce(values, op=op)
            theirs.update(zip(mine, values.tolist(), strict=True))
        of_ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, self.moments)
        for moments in of_ranks:  # in the order of the ranks: the same bits on each
            merged._add_moments(moments)
        return merged

    def further(self) -> dict[str, float]:
        """What was measured and has no column in `UPDATES`."""
        sums = self.sums
        return {name: sums[name] / sums[count] for name, count in _FURTHER.items() if sums[count]}

    def measured(self) -> dict[str, Any]:
        """The measured columns of an `UPDATES` row; null where there was nothing to measure."""
        sums = self.sums
        columns: dict[str, Any] = {
            name: sums[name] / sums[count] if sums[count] else None
            for name, count in _MEANS.items()
            if name not in _BY_ROLE
        }
        columns |= {name: self.maxima[name] if sums[count] else None for name, count in _MAXIMA.items()}
        columns["explained_variance"] = explained_variance(self.moments["returns"], self.moments["errors"])
        return columns

    def measured_by_role(self) -> dict[str, Any]:
        """The measures that only tables by role have; null where there was nothing to measure."""
        sums = self.sums
        return {name: sums[name] / sums[_MEANS[name]] if sums[_MEANS[name]] else None for name in _BY_ROLE}
