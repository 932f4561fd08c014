"""A newcomer is taught on what its predecessor said, before it speaks in the team: all ranks together.

Two ways. With a teacher, which shares the vocabulary, each state's target is a mixture of teacher and
newcomer (`stages.training.loss.mixture`), and the loss KL(target ‖ newcomer). Without one, the rows' own
responses are imitated, token by token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import torch
import torch.distributed as dist
from torch import Tensor

from stages.tables.parquet import TableRef
from stages.training.loss.mixture import largest_exponent, mixture
from stages.training.network.packing import COLUMNS, MicroBatch, split
from stages.training.network.policy import Policy, load_network
from stages.training.plan import MiniBatch, plan_update
from stages.training.spec import DistillReport, DistillSpec
from workflows.errors import RunFailed

if TYPE_CHECKING:
    from stages.training.unit import Unit


@dataclass(slots=True)
class Lesson:
    """One forward pass of the newcomer, and what it is to be taught there."""

    batch: MicroBatch
    taught: MicroBatch | None  # the same responses with the teacher's prompts; None: the responses themselves
    exponent: Tensor | None = None  # (N,) of the mixture, found in the first pass


def run_distill(
    unit: Unit, partition: TableRef, spec: DistillSpec, prompts: TableRef | None = None
) -> DistillReport:
    """Teach this rank's share of the rows; every rank calls it and gets the same report.

    Args:
        partition: the rows, as the newcomer reads them.
        spec: the teacher, the bound, passes and learning rate.
        prompts: the same rows with the teacher's prompts, where its chat template writes others.

    Raises:
        RunFailed: rows that can't be trained on, or a loss or gradient that is not finite.
    """
    plan, _ = plan_update(unit, partition, None, None, off_policy=True)
    if not any(mini_batch.num_tokens for mini_batch in plan):
        raise RunFailed(f"model {unit.spec.model_id!r} has nothing to be taught: {partition.folder} is empty")
    lessons = _lessons(unit, plan, spec, prompts)
    teacher, start = (
        (_frozen(unit, spec.teacher), _frozen(unit, unit.spec.checkpoint)) if spec.teacher else 2 * (None,)
    )
    report = DistillReport(tokens=sum(m.num_tokens for m in plan))
    for number in range(spec.passes):
        for mini_batch, its in zip(plan, lessons, strict=True):
            if not mini_batch.num_tokens:
                continue
            sums = torch.zeros(4, dtype=torch.float64)
            for place, lesson in enumerate(its):
                loss, parts = _loss(unit, lesson, teacher, start, spec.bound)
                loss = loss * (unit.spec.ranks / mini_batch.num_tokens)
                if not bool(torch.isfinite(loss)):
                    raise RunFailed(
                        f"model {unit.spec.model_id!r}: the loss of what it is taught is {float(loss)}"
                    )
                unit.network.backward(loss, last=place == len(its) - 1)
                sums += parts
            norm = unit.network.step(spec.learning_rate)
            if norm != norm or norm == float("inf"):
                raise RunFailed(
                    f"model {unit.spec.model_id!r}: the gradient of what it is taught is not finite"
                )
            dist.all_reduce(sums)
            means = (sums / sums[3]).tolist()
            report.steps.append({"pass": number, "loss": means[0], "gradient_norm": norm})
            if number == 0:
                report.weigh(mini_batch.num_tokens, means[1], means[2])
    return report


def _lessons(
    unit: Unit, plan: list[MiniBatch], spec: DistillSpec, prompts: TableRef | None
) -> list[list[Lesson]]:
    if spec.teacher is None:
        return [[Lesson(batch, None) for batch in m.micro_batches] for m in plan]
    if prompts is None:
        return [[Lesson(batch, batch) for batch in m.micro_batches] for m in plan]
    tables = [prompts.read_part(index, COLUMNS) for index in range(len(prompts.parts))]
    rows = pa.concat_tables(tables)
    taught = split(rows.filter(pc.equal(rows["rank"], unit.rank)), unit.spec.shared_prefix)
    # equal keys in equal places of the plan: tokens of both stand in the same order
    lessons = []
    for mini_batch in plan:
        theirs = [batch.to(unit.device) for batch in taught.get(mini_batch.index, [])]
        of_step = []
        for place, batch in enumerate(mini_batch.micro_batches):
            other = theirs[place] if place < len(theirs) else batch  # the filler of an empty share
            if other.keys != batch.keys or not torch.equal(other.targets, batch.targets):
                raise RunFailed(f"{prompts.folder} has other rows than the newcomer's table")
            of_step.append(Lesson(batch, other))
        lessons.append(of_step)
    return lessons


def _loss(
    unit: Unit, lesson: Lesson, teacher: Policy | None, start: Policy | None, bound: float
) -> tuple[Tensor, Tensor]:
    """The summed loss of a forward pass, and sums over its tokens: the loss, KL(teacher ‖ target), the
    exponent, and how many there are."""
    batch = lesson.batch
    if lesson.taught is None:
        new, _, _ = unit.network(batch)
        kept = batch.mask.to(new.dtype)
        loss = -(new * kept).sum()
        zero = torch.zeros(())
        return loss, _sums(loss, zero, zero, kept)
    assert teacher is not None, "a lesson that is taught has a teacher"
    assert start is not None, "and a newcomer to start with"
    with torch.no_grad():
        old = teacher.distributions(lesson.taught)  # [N, V]
        own = start.distributions(batch)
        width = min(old.shape[-1], own.shape[-1])  # rows of padding that no token has
        old, own = old[:, :width].log_softmax(-1), own[:, :width].log_softmax(-1)
        if lesson.exponent is None:
            lesson.exponent = largest_exponent(old, own, bound)
        target = mixture(old, own, lesson.exponent)
        moved = (old.exp() * (old - target)).sum(-1)
    new = unit.network(batch, whole=True)[:, :width]
    kept = batch.mask.to(new.dtype)
    loss = ((target.exp() * (target - new)).sum(-1) * kept).sum()
    return loss, _sums(loss, (moved * kept).sum(), (lesson.exponent * kept).sum(), kept)


def _sums(loss: Tensor, moved: Tensor, exponent: Tensor, kept: Tensor) -> Tensor:
    return torch.tensor(
        [float(loss.detach()), float(moved), float(exponent), float(kept.sum())], dtype=torch.float64
    )


def _frozen(unit: Unit, folder: str) -> Policy:
    spec = unit.spec
    loaded = load_network(folder, precision=spec.precision, packed=spec.shared_prefix)
    return Policy(loaded.model.requires_grad_(False)).to(unit.device)
