"""The tokens that clip_cov and kl_cov hold back: chosen before an update, over all ranks of a step.

The arithmetic is in `stages.training.loss.covariance`. A token's random number depends on the seed, the
version and its place in the run, so the choice is the same however a step is cut over ranks and passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from stages.training.loss.covariance import (
    Floats,
    chosen_of,
    covariances,
    lowest,
    number_chosen,
    sort_keys,
    token_sums,
)
from stages.training.network.packing import MicroBatch
from stages.training.plan import MiniBatch
from stages.training.unit import Unit
from workflows.trajectory import seed_for


def choose_tokens(unit: Unit, plan: list[MiniBatch]) -> None:
    """Fill `chosen` of every mini-batch that is trained on. Collective; nothing to do for other losses.

    Old logprobs of all mini-batches must be there.
    """
    if unit.spec.loss.chooses_tokens:
        for mini_batch in plan:
            if mini_batch.skipped is None:
                mini_batch.chosen = _chosen(unit, mini_batch)


def _chosen(unit: Unit, mini_batch: MiniBatch) -> list[Tensor]:
    loss = unit.spec.loss
    tokens = [
        (_numbers(old, batch), _numbers(batch.advantages, batch))
        for old, batch in zip(mini_batch.old_logprobs, mini_batch.micro_batches, strict=True)
    ]
    sums = sum(_gathered([token_sums(*each) for each in tokens]), np.zeros(3))
    keys = [
        sort_keys(loss, covariances(*each, sums), _random(unit, batch))
        for each, batch in zip(tokens, mini_batch.micro_batches, strict=True)
    ]
    number = number_chosen(loss, mini_batch.num_tokens)
    mine = lowest(np.concatenate([np.empty((0, 2)), *keys]), number)
    everybodys = lowest(np.concatenate(_gathered([mine])), number)
    last = everybodys[-1] if len(everybodys) else np.array([-np.inf, -np.inf])
    chosen = []
    for of_batch, batch in zip(keys, mini_batch.micro_batches, strict=True):
        where = np.zeros(len(batch.mask), np.bool_)
        where[batch.mask.cpu().numpy()] = chosen_of(of_batch, last)
        chosen.append(torch.from_numpy(where).to(batch.mask.device))
    return chosen


def _numbers(values: Tensor, batch: MicroBatch) -> Floats:
    """The values of the tokens that are trained."""
    numbers: Floats = values.detach()[batch.mask].double().cpu().numpy()
    return numbers


def _random(unit: Unit, batch: MicroBatch) -> Floats:
    """A number from 0 to 1 for each token that is trained."""
    rows = batch.row[batch.mask].cpu().numpy()
    counts = np.bincount(rows, minlength=len(batch.keys))
    numbers = [
        np.random.default_rng(seed_for(unit.spec.seed, "covariance", unit.version, *key)).random(count)
        for key, count in zip(batch.keys, counts, strict=True)
    ]
    return np.concatenate([np.empty(0), *numbers])


def _gathered(mine: list[Floats]) -> list[Floats]:
    """The arrays of all ranks, in their order."""
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, mine)
    return [array for arrays in of_ranks for array in arrays]
