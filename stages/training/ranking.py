"""A reward model learns which of two plays earned more: all ranks together.

A play is one row, whose score is the value head's at the last token of its text. The scores of an optimizer
step are computed first, without gradients, and shared among ranks; from them comes the gradient of the pairs'
loss by each score, and a second pass, row by row, carries it into the weights. So a play is computed once a
pass whatever number of pairs it is in, and a step is the same however its rows are cut.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from stages.tables.parquet import TableRef
from stages.training.loss.pairs import PairSums, pair_gradient
from stages.training.network.packing import MicroBatch
from stages.training.plan import MiniBatch, plan_update
from stages.training.spec import RankingReport, RankingSpec
from workflows.errors import RunFailed
from workflows.trajectory import seed_for

if TYPE_CHECKING:
    from stages.training.unit import Unit


def run_ranking(
    unit: Unit, partition: TableRef, pairs: TableRef, spec: RankingSpec, until: int
) -> RankingReport:
    """Make the optimizer steps from the unit's version to before `until`; every rank gets the same report.

    The version of a reward model is how many steps it has made.

    Args:
        partition: the plays, a row each, whose `mini_batch` is the optimizer step of a pass.
        pairs: of `PAIRS`; both plays of a pair are in one optimizer step.
        spec: what is trained.
        until: the version that is reached.

    Raises:
        RunFailed: rows that can't be trained on, or a loss or gradient that is not finite.
    """
    plan, excluded = plan_update(unit, partition, None, None, off_policy=True, returns=False)
    if excluded or not plan:
        why = ", ".join(f"{count} {reason}" for reason, count in excluded.items()) or "no row at all"
        raise RunFailed(f"model {unit.spec.model_id!r} can't learn from {partition.folder}: {why}")
    of_step = _pairs_by_step(plan, pairs)
    report = RankingReport(len(plan))
    for number in range(unit.version, until):
        number_of_pass, place = divmod(number, len(plan))
        order = np.random.default_rng(seed_for(spec.seed, "pass", number_of_pass)).permutation(len(plan))
        index = int(order[place])
        row = _step(unit, plan[index], of_step[index], spec, number)
        report.steps.append({"step": number, "pass": number_of_pass, **row})
        unit.version = number + 1
    return report


def _pairs_by_step(plan: list[MiniBatch], pairs: TableRef) -> list[list[tuple[str, str]]]:
    """The pairs of each optimizer step, winner first."""
    mine = [{key[0] for batch in mini.micro_batches for key in batch.keys} for mini in plan]
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, mine)
    step_of = {play: step for plays in of_ranks for step, names in enumerate(plays) for play in names}
    found: list[list[tuple[str, str]]] = [[] for _ in plan]
    for row in pairs.read(["winner", "loser"]).to_pylist():
        winner, loser = row["winner"], row["loser"]
        if step_of.get(winner, -1) != step_of.get(loser, -2):
            raise RunFailed(
                f"the plays {winner!r} and {loser!r} of a pair are not rows of one optimizer step"
            )
        found[step_of[winner]].append((winner, loser))
    if not all(found):
        raise RunFailed(f"optimizer step {found.index([])} of {pairs.folder} has no pair")
    return found


def _step(
    unit: Unit, mini_batch: MiniBatch, pairs: list[tuple[str, str]], spec: RankingSpec, number: int
) -> dict[str, Any]:
    """Two passes over the rows, and one optimizer step."""
    started = time.perf_counter()
    scores = _all_scores(unit, mini_batch)
    names = sorted(scores)
    place = {name: index for index, name in enumerate(names)}
    gradient, sums = pair_gradient(
        torch.tensor([scores[name] for name in names], dtype=torch.float64),
        torch.tensor([place[winner] for winner, _ in pairs]),
        torch.tensor([place[loser] for _, loser in pairs]),
        spec.centring,
    )
    _refuse_broken(unit, sums, number)
    by_play = dict(zip(names, gradient.tolist(), strict=True))
    for index, batch in enumerate(mini_batch.micro_batches):
        _backward(unit, batch, by_play, spec, last=index == len(mini_batch.micro_batches) - 1)
    return {
        "pairs": len(pairs),
        "rows": mini_batch.num_rows,
        "tokens": mini_batch.num_forward_tokens,
        "loss": float(sums.loss.detach()),
        "likelihood": sums.likelihood,
        "accuracy": sums.right,
        "margin": sums.margin,
        "learning_rate": unit.learning_rate if spec.trunk else 0.0,
        "gradient_norm": _apply(unit, spec, number),
        "seconds": time.perf_counter() - started,
    }


def _all_scores(unit: Unit, mini_batch: MiniBatch) -> dict[str, float]:
    """The scores of an optimizer step's plays, of all ranks."""
    mine: dict[str, float] = {}
    with torch.no_grad():
        for batch in mini_batch.micro_batches:
            mine |= zip((key[0] for key in batch.keys), _scores(unit, batch).tolist(), strict=False)
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, mine)
    return {name: score for scores in of_ranks for name, score in scores.items()}


def _scores(unit: Unit, batch: MicroBatch) -> Tensor:
    """The scores of a forward pass's rows, (rows,); of the filler one number that counts for nothing."""
    assert unit.critic is not None, "a reward model has a value head"
    _, _, hidden = unit.policy(batch)
    return unit.critic.values(batch, hidden)


def _backward(
    unit: Unit, batch: MicroBatch, by_play: dict[str, float], spec: RankingSpec, *, last: bool
) -> None:
    assert unit.critic is not None, "a reward model has a value head"
    with torch.set_grad_enabled(spec.trunk):
        logprobs, _, hidden = unit.network(batch)
    values = unit.critic.values(batch, hidden)
    weights = torch.tensor([by_play[key[0]] for key in batch.keys] or [0.0], device=values.device)
    # DeepSpeed averages gradients over ranks; ours are parts of one sum
    loss = (values * weights).sum() * unit.spec.ranks
    if spec.trunk:
        # the output layer reads no score, and gets a gradient of zero like any other weight
        unit.network.backward(loss + 0.0 * logprobs.sum(), last=last)
    else:
        loss.backward()
    unit.count(batch)


def _apply(unit: Unit, spec: RankingSpec, number: int) -> float:
    """Clip and step; the gradient norm of all that is trained."""
    assert unit.critic is not None, "a reward model has a value head"
    norm = unit.critic.step(number)
    if math.isfinite(norm) and spec.trunk:
        norm = math.hypot(norm, unit.network.step(unit.learning_rate))
    if not math.isfinite(norm):
        raise RunFailed(
            f"model {unit.spec.model_id!r}: the gradient of optimizer step {number} is not finite; lower the "
            "learning rate"
        )
    return norm


def _refuse_broken(unit: Unit, sums: PairSums, number: int) -> None:
    if not bool(torch.isfinite(sums.loss)):
        raise RunFailed(
            f"model {unit.spec.model_id!r}: the loss of optimizer step {number} is "
            f"{float(sums.loss.detach())}; lower the learning rate"
        )
