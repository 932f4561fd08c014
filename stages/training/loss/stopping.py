"""What a stop decision is trained on: two losses over the probability of stopping at each decision point.

A decision is a choice between two given continuations of one context; the probability of stopping is the
softmax over their two log-probabilities. Legend: D decisions of one forward pass, in the order of their
traces; all of a trace are in one pass, so both losses see it whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from stages.training.loss.spec import LossSpec


@dataclass(frozen=True, slots=True)
class StopBatch:
    """The decisions of one forward pass, (D,) each.

    `stop_logprobs` and `continue_logprobs` carry the graph: the log-probability of each option, the sum over
    its tokens. A trace ends with `ends`, its utility where it runs to its end.
    """

    stop_logprobs: Tensor
    continue_logprobs: Tensor
    old_logits: Tensor  # log p(stop) - log p(continue) of the policy that played
    utility: Tensor  # of a stop here
    continued: Tensor  # of going on: seen on the trace, where the loss needs it
    weight: Tensor  # of the decision; 0 where it was not the policy's, which takes it out
    trace: Tensor  # int64: which of the `num_traces` traces a decision belongs to
    ends: Tensor  # (num_traces,): utility at the end of each
    num_traces: int


@dataclass(frozen=True, slots=True)
class StopSums:
    """What one forward pass adds to a step. `loss` carries the graph; the rest is detached float64.

    `loss` and `value` are to be divided by the number of traces, `probability` by that of decisions.
    """

    loss: Tensor
    value: Tensor  # what the loss is minus of: expected utility
    probability: Tensor
    num_traces: int
    num_decisions: Tensor  # with a weight


def stop_loss(spec: LossSpec, batch: StopBatch) -> StopSums:
    """The loss of `spec.stop_loss`, summed over traces."""
    batch = _chosen(batch)
    logits = (batch.stop_logprobs - batch.continue_logprobs).double()  # [D]: sums of logs lose digits
    loss, value = STOP_LOSSES[spec.stop_loss](spec, batch, logits)
    return StopSums(
        loss=loss,
        value=value.detach(),
        probability=logits.detach().sigmoid().sum(),
        num_traces=batch.num_traces,
        num_decisions=torch.tensor(len(logits), dtype=torch.float64, device=logits.device),
    )


def _chosen(batch: StopBatch) -> StopBatch:
    """The decisions with a weight: all others go out before any sum, so that they change no bit of it."""
    kept = batch.weight > 0
    each = {f.name: getattr(batch, f.name) for f in fields(batch) if f.name not in ("ends", "num_traces")}
    return replace(batch, **{name: values[kept] for name, values in each.items()})


def hazard(spec: LossSpec, batch: StopBatch, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Minus the sum over traces of J = sum_j S_j p_j u_j, with S_j the probability of coming to point j.

    J is exact for any weights on a trace that went on to its end, so its gradient is that of the expected
    utility without sampling: dJ = sum_j S_j dp_j (u_j - C_j). Where nobody was asked, a trace goes on.
    """
    stop, on = logsigmoid(logits), logsigmoid(-logits)  # [D] log p_j and log (1 - p_j)
    total = on.cumsum(0)
    so_far = total - on  # of all decisions before, in this pass
    first = _first_of(batch.trace, batch.num_traces)  # [num_traces]
    alive = so_far - so_far[first][batch.trace] if len(first) else so_far
    each = (alive + stop).exp() * batch.utility
    nothing = torch.zeros(batch.num_traces, dtype=on.dtype, device=on.device)
    left = nothing.index_add(0, batch.trace, on).exp()  # [num_traces] never stopped
    value = each.sum() + (left * batch.ends).sum()
    return -value, value


def all_action(spec: LossSpec, batch: StopBatch, logits: Tensor) -> tuple[Tensor, Tensor]:
    """PPO's clipped objective with both options weighed by their probability, at the decisions that were met.

    The values of the options are the utility of a stop and what going on came to; the baseline is their mean
    under the policy that played. At the weights that played its gradient is that of p · (stop - continue).
    Source: the sum over all actions is Mean Actor Critic's, arXiv:1709.00503, the clip PPO's,
    arXiv:1707.06347.
    """
    old = batch.old_logits.sigmoid()
    baseline = old * batch.utility + (1 - old) * batch.continued
    value = torch.zeros_like(logits)
    for p, p_old, worth in (
        (logits.sigmoid(), old, batch.utility),
        ((-logits).sigmoid(), 1 - old, batch.continued),
    ):
        advantage = worth - baseline
        low, high = (1 - spec.clip_low) * p_old, (1 + spec.clip_high) * p_old
        held = torch.minimum(torch.maximum(p, low), high)
        value = value + torch.minimum(p * advantage, held * advantage)
    value = (value * batch.weight).sum()
    return -value, value


STOP_LOSSES: Final[Mapping[str, Callable[[LossSpec, StopBatch, Tensor], tuple[Tensor, Tensor]]]] = {
    "hazard": hazard,
    "all_action": all_action,
}


def _first_of(trace: Tensor, num_traces: int) -> Tensor:
    """Where each trace's decisions begin, (num_traces,); any place for a trace without one."""
    places = torch.arange(len(trace), device=trace.device)
    first = torch.full((num_traces,), len(trace), device=trace.device)
    first = first.scatter_reduce(0, trace, places, "amin")
    return first.clamp(max=max(len(trace) - 1, 0)) if len(trace) else first[:0]
