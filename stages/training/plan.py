"""What all ranks agree on before an update: which rows, in how many optimizer steps and forward passes.

Each rank reads its own rows only. The facts about them are gathered, so that every rank knows the token
count of each optimizer step, and makes as many backward calls as the rank with the most micro-batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch.distributed as dist
from torch import Tensor

from rewards.scoring.reasons import kind_of
from stages.tables.parquet import TableRef
from stages.training.gradients.parts import Part
from stages.training.gradients.spec import MOST_COPIES
from stages.training.loss.loss import denominator
from stages.training.loss.spec import LossSpec
from stages.training.network.packing import (
    ADVANTAGE_COLUMNS,
    COLUMNS,
    SCORE_COLUMNS,
    MicroBatch,
    empty_micro_batch,
    problem_with,
    split,
)
from stages.training.stops import StopPass, empty_pass, read_stops, stop_facts
from workflows.errors import RunFailed
from workflows.trajectory import TURN_KEYS

if TYPE_CHECKING:
    from stages.training.unit import Unit

NO_SIGNAL: Final = "no signal: every advantage is zero"
NO_ROWS: Final = "no rows with response tokens"
NO_RESPONSE: Final = "no response"
# Losses that a zero advantage takes everything out of. Others are never called silent.
_SCALED_BY_ADVANTAGE: Final = ("ppo", "gspo", "message", "cispo", "clip_cov", "kl_cov", "policy_gradient")


@dataclass(frozen=True, slots=True)
class PartCount:
    """The rows of one part, a role or a copy of one, in one optimizer step."""

    num_rows: int = 0
    num_tokens: int = 0
    reward: float = 0.0  # sum over the rows that have one
    rewarded: int = 0  # how many have one

    def __add__(self, other: PartCount) -> PartCount:
        return PartCount(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(slots=True)
class MiniBatch:
    """One optimizer step of an epoch: this rank's micro-batches, and what all ranks have together."""

    index: int
    micro_batches: list[MicroBatch]
    num_rows: int
    num_tokens: int
    num_forward_tokens: int
    denominator: float  # of the policy's loss
    signal: bool  # whether there is anything to learn
    old_logprobs: list[Tensor] = field(default_factory=list)  # empty: taken from the step's own forward
    old_values: list[Tensor] = field(default_factory=list)  # likewise
    chosen: list[Tensor] = field(default_factory=list)  # tokens that the loss holds back: by `choose_tokens`
    # where measured by role: the part of each of this rank's micro-batches (None of a filler), and the counts
    # of all ranks by part, in the order of their names
    parts: Sequence[Part | None] = ()
    counts: Mapping[Part, PartCount] = field(default_factory=dict)
    # stop decisions: this rank's passes, and the traces of all ranks; they come after the micro-batches
    stops: list[StopPass] = field(default_factory=list)
    num_traces: int = 0

    @property
    def skipped(self) -> str | None:
        if not self.num_tokens and not self.num_traces:
            return NO_ROWS
        return None if self.signal or self.num_traces else NO_SIGNAL


def plan_update(
    unit: Unit,
    partition: TableRef,
    advantages: TableRef | None,
    scores: TableRef | None,
    off_policy: bool = False,
    stop_rows: TableRef | None = None,
    *,
    returns: bool = True,
) -> tuple[list[MiniBatch], Counter[str]]:
    """This rank's rows as mini-batches that all ranks agree on, and the rows left out, by reason.

    `returns` says that a critic learns returns, which rows must have then; a head that ranks plays does not.

    Raises:
        RunFailed: on every rank, if any rank has rows that can't be trained on.
    """
    spec = unit.spec
    rows, excluded, problem = read_rows(unit, partition, advantages, scores, off_policy, returns)
    mine = split(rows, spec.shared_prefix) if problem is None else {}
    decided, stop_problem = read_stops(unit, stop_rows, off_policy)
    problem = problem or stop_problem
    if problem is None and spec.measure.is_on:
        problem = _mixed(batch for batches in mine.values() for batch in batches)
    if empty := rows.num_rows - sum(len(b.keys) for batches in mine.values() for b in batches):
        excluded[NO_RESPONSE] += empty
    facts = {
        index: {
            "micro_batches": len(batches),
            "num_rows": sum(len(b.keys) for b in batches),
            "num_tokens": sum(b.num_tokens for b in batches),
            "num_forward_tokens": sum(b.num_forward_tokens for b in batches),
            "signal": any(has_signal(spec.loss, b) for b in batches),
            "counts": counted(batches) if spec.measure.is_on else {},
            **stop_facts(decided.get(index, [])),
        }
        for index, batches in ((i, mine.get(i, [])) for i in sorted(mine.keys() | decided.keys()))
    }
    gathered: list[Any] = [None] * spec.ranks
    dist.all_gather_object(gathered, (problem, excluded, facts))
    if problems := [p for p, _, _ in gathered if p]:
        raise RunFailed(f"model {spec.model_id!r} can't train on {partition.folder}: {problems[0]}")
    told_apart = roles_with_copies(f["counts"] for _, _, facts in gathered for f in facts.values())
    plan: list[MiniBatch] = []
    for index in sorted({i for _, _, f in gathered for i in f}):
        parts = [f[index] for _, _, f in gathered if index in f]
        batches = list(mine.get(index, []))
        while len(batches) < max(p["micro_batches"] for p in parts):
            batches.append(empty_micro_batch(spec.shared_prefix))
        stops = list(decided.get(index, []))
        while len(stops) < max(p["stop_passes"] for p in parts):
            stops.append(empty_pass(spec.shared_prefix))
        num_rows, num_tokens = (sum(p[name] for p in parts) for name in ("num_rows", "num_tokens"))
        plan.append(
            MiniBatch(
                index=len(plan),
                micro_batches=[b.to(unit.device) for b in batches],
                num_rows=num_rows,
                num_tokens=num_tokens,
                num_forward_tokens=sum(p["num_forward_tokens"] for p in parts),
                denominator=denominator(spec.loss, num_tokens, num_rows),
                signal=any(p["signal"] for p in parts),
                parts=[part_of(b, told_apart) for b in batches] if spec.measure.is_on else (),
                counts=_added((p["counts"] for p in parts), told_apart),
                stops=[each.to(unit.device) for each in stops],
                num_traces=sum(p["num_traces"] for p in parts),
            )
        )
    return plan, sum((counts for _, counts, _ in gathered), Counter())


def counted(batches: Iterable[MicroBatch]) -> dict[tuple[str, str | None], PartCount]:
    """Rows, tokens and rewards of micro-batches by role and branch; None for a batch of several branches."""
    counts: dict[tuple[str, str | None], PartCount] = {}
    for batch in batches:
        if batch.keys:
            rewards = [reward for reward in batch.rewards if reward is not None]
            count = PartCount(len(batch.keys), batch.num_tokens, sum(rewards), len(rewards))
            key = (batch.roles[0] or "", batch.branches[0] if len(set(batch.branches)) == 1 else None)
            counts[key] = counts.get(key, PartCount()) + count
    return counts


def roles_with_copies(counts: Iterable[Mapping[tuple[str, str | None], PartCount]]) -> frozenset[str]:
    """Roles whose copies are told apart: from 2 to `MOST_COPIES` branches, and no micro-batch mixes them."""
    branches: dict[str, set[str | None]] = {}
    for role, branch in (key for each in counts for key in each):
        branches.setdefault(role, set()).add(branch)
    return frozenset(
        role
        for role, names in branches.items()
        if None not in names and 2 <= len(names - {""}) <= MOST_COPIES
    )


def part_of(batch: MicroBatch, told_apart: Collection[str]) -> Part | None:
    """The part that a micro-batch is of: its role, and its branch where copies are told apart; None for the
    filler."""
    if not batch.keys:
        return None
    role = batch.roles[0] or ""
    return role, batch.branches[0] if role in told_apart else ""


def _added(
    of_ranks: Iterable[Mapping[tuple[str, str | None], PartCount]], told_apart: Collection[str]
) -> dict[Part, PartCount]:
    """The counts of all ranks, in the order of the parts' names: the same on every rank."""
    total: dict[Part, PartCount] = {}
    for counts in of_ranks:
        for (role, branch), count in counts.items():
            part = (role, branch or "") if role in told_apart else (role, "")
            total[part] = total.get(part, PartCount()) + count
    return dict(sorted(total.items()))


def _mixed(batches: Iterable[MicroBatch]) -> str | None:
    """Why gradients can't be told apart by role: a micro-batch mixes them."""
    for batch in batches:
        if len(set(batch.roles)) > 1:
            roles = ", ".join(sorted({str(role) for role in batch.roles}))
            return (
                f"a micro-batch mixes the roles {roles}, so their gradients can't be told apart; it was cut "
                'without [measure]: make the partition anew, or set measure.gradients = "off"'
            )
    return None


def has_signal(loss: LossSpec, batch: MicroBatch) -> bool:
    """Whether there is anything to learn from a micro-batch.

    Where every advantage is zero a critic still learns from returns, and an entropy bonus and a KL term to
    the reference still act on the tokens of the roles that have them.
    """
    if batch.keys and (loss.name not in _SCALED_BY_ADVANTAGE or batch.returns is not None):
        return True
    if any(_acts_alone(loss, role) for role in set(batch.roles)):
        return True
    return bool((batch.advantages != 0).any())


def _acts_alone(loss: LossSpec, role: str | None) -> bool:
    terms = loss.of(role)
    return bool(terms.weight and (terms.entropy_coefficient or terms.kl_coefficient))


def read_rows(
    unit: Unit,
    partition: TableRef,
    advantages: TableRef | None,
    scores: TableRef | None,
    off_policy: bool = False,
    returns: bool = True,
) -> tuple[pa.Table, Counter[str], str | None]:
    """The rows of this rank with all that is known of them, those left out by reason, and any problem.

    Rank 0 also reads rows of ranks that do not exist, to refuse them.
    """
    spec, excluded = unit.spec, Counter[str]()
    wanted = _wanted_columns(unit, advantages, scores)
    schema = pa.schema([partition.schema.field(c) for c in COLUMNS])
    schema = pa.schema([*schema, *(table.schema.field(name) for table, names in wanted for name in names)])
    tables = [schema.empty_table()]
    for table, what in ((advantages, "token_advantages"), (scores, "scores")):
        if table is not None and len(table.parts) != len(partition.parts):
            return tables[0], excluded, f"{what} has {len(table.parts)} parts, not {len(partition.parts)}"
    for index in range(len(partition.parts)):
        mask = _of_rank(partition.read_part(index, ["rank"])["rank"], unit.rank, spec.ranks)
        if not pc.any(mask).as_py():
            continue
        rows = partition.read_part(index, COLUMNS).filter(mask)
        if advantages is not None:
            marks = advantages.read_part(index, [*TURN_KEYS, "excluded"])
            places, problem = _places(rows, marks, "token_advantages")
            if problem:
                return tables[0], excluded, problem
            reasons = marks["excluded"].take(places)
            excluded.update(kind_of(reason) for reason in reasons.drop_null().to_pylist())
            rows = rows.filter(pc.is_null(reasons))
        for table, names in wanted:
            read = table.read_part(index, [*TURN_KEYS, *names])
            places, problem = _places(rows, read, table.name)
            if problem:
                return tables[0], excluded, problem
            for name in names:
                rows = rows.append_column(table.schema.field(name), read[name].take(places))
        tables.append(rows)
    rows = pa.concat_tables(tables)
    problem = problem_with(
        rows,
        model_id=spec.model_id,
        version=None if off_policy else unit.version,
        vocabulary=unit.vocabulary,
        ranks=spec.ranks,
        window=unit.window,
    )
    problem = problem or _missing(unit, rows, returns) or _stale(unit, scores)
    return rows, excluded, problem or (_uncorrected(unit, rows) if off_policy else None)


def _of_rank(owner: pa.ChunkedArray, rank: int, ranks: int) -> pa.ChunkedArray:
    mine = pc.equal(owner, rank)
    if rank == 0:
        return pc.or_(mine, pc.or_(pc.less(owner, 0), pc.greater_equal(owner, ranks)))
    return mine


def _wanted_columns(
    unit: Unit, advantages: TableRef | None, scores: TableRef | None
) -> list[tuple[TableRef, list[str]]]:
    """Columns of the other tables that hold anything, and that this update has a use for.

    A column is null in all rows where the plan does not need it.
    """
    unused = set() if unit.critic is not None else {"returns", "values"}
    wanted = []
    for table, names in ((advantages, ADVANTAGE_COLUMNS), (scores, SCORE_COLUMNS)):
        if table is not None:
            parts = [table.read_part(index, names) for index in range(len(table.parts))]
            filled = [n for n in names if any(part[n].null_count < part.num_rows for part in parts)]
            wanted.append((table, [name for name in filled if name not in unused]))
    return wanted


def _places(rows: pa.Table, other: pa.Table, what: str) -> tuple[pa.Array, str | None]:
    """Where the rows' keys are in another table."""
    there = {key: index for index, key in enumerate(_keys(other))}
    places = [there.get(key) for key in _keys(rows)]
    if None in places:
        episode, turn = _keys(rows)[places.index(None)]
        return pa.array([], pa.int64()), f"row ({episode}, {turn}) is not in {what}"
    return pa.array(places, pa.int64()), None


def _keys(rows: pa.Table) -> list[tuple[str, int]]:
    return list(zip(*(rows[key].to_pylist() for key in TURN_KEYS), strict=True))


def _missing(unit: Unit, rows: pa.Table, returns: bool) -> str | None:
    """What the objective needs and the rows lack."""
    if not rows.num_rows:
        return None
    spec = unit.spec
    if spec.loss.needs_reference and "reference_logprobs" not in rows.column_names:
        return "the loss has a KL term, but there are no reference_logprobs; the plan lacks a score stage"
    if returns and spec.critic is not None and "returns" not in rows.column_names:
        return "there is a critic, but no returns for it to learn; the plan lacks an advantage stage"
    return None


def _uncorrected(unit: Unit, rows: pa.Table) -> str | None:
    """Rows of other weights need their importance weights, but where they are imitated."""
    if not rows.num_rows or unit.spec.loss.name == "supervised" or "importance_weights" in rows.column_names:
        return None
    return (
        "its rows were sampled by other weights than the trainer's, and they have no importance_weights; set "
        'ppo.importance to "truncated" or "masked"'
    )


def _stale(unit: Unit, scores: TableRef | None) -> str | None:
    if scores is None:
        return None
    for index in range(len(scores.parts)):
        versions = np.unique(scores.read_part(index, ["scored_version"])["scored_version"].to_numpy())
        if len(versions) and list(versions) != [unit.version]:
            return f"its scores are of version {versions.max()}, but the trainer is at version {unit.version}"
    return None
