"""What one update measures of each role, and what it changes of a role's gradient: step by step.

The rows are those of `ROLE_UPDATES` and `ROLE_PAIRS`. Every rank makes the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stages.training.gradients.held import HeldGradient
from stages.training.gradients.measures import Products, means_over_steps, pair_measures, role_measures
from stages.training.gradients.parts import Part, products
from stages.training.gradients.shaping import role_factors
from stages.training.plan import MiniBatch, PartCount
from stages.training.totals import Totals
from stages.training.unit import Unit
from workflows.trajectory import ROLE_PAIRS, ROLE_UPDATES

Rows = list[dict[str, Any]]
Who = tuple[str | None, str | None]  # role and branch of a row; (None, None) for the whole
_WHOM: Final = ("role", "branch", "other_role", "other_branch")
_NAMES: Final = {"iteration", "block", "model_id", "update_id", "version_before", "kind", "step", "method"}
_TOTALS: Final = ("policy_loss", "kl_old", "kl_reference", "sampler_kl", "entropy", "clip_fraction")


class RoleMeasures:
    """Collects the rows of one update; measures nothing where the unit's spec says off."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.rows: Rows = []
        self.pairs: Rows = []

    def step(self, mini_batch: MiniBatch, number: int, totals: Mapping[Part, Totals]) -> None:
        """Measure an optimizer step after its last backward pass, and hold back what the spec says.

        Collective.

        Args:
            mini_batch: what the step is made of.
            number: of the step within the update.
            totals: of this rank by part, for each part of the mini-batch.
        """
        unit = self.unit
        rows: dict[Who, dict[str, Any]] = {}
        if unit.parts is not None:
            rows = _counted(mini_batch.counts)
            _add_totals(rows, mini_batch, {p: t.over_ranks(unit.device) for p, t in totals.items()})
            self._add_gradients(rows, mini_batch, number)
        if unit.damping is not None and not unit.warms_up:
            factor = unit.damping.apply(_held(unit))
            rows.setdefault((None, None), {})["factor"] = factor
        if unit.parts is not None:
            named = [{"role": role, "branch": branch, **row} for (role, branch), row in rows.items()]
            self.rows += [{**row, "step": number} for row in named]

    def _add_gradients(self, rows: Mapping[Who, dict[str, Any]], mini_batch: MiniBatch, number: int) -> None:
        unit = self.unit
        assert unit.parts is not None
        if unit.warms_up:  # only the critic learns, and the policy has no gradient
            return
        parts = tuple(mini_batch.counts)
        vectors = unit.parts.take()  # [parts, size]
        compared = Products(parts, products(vectors).numpy())
        for row in role_measures(compared):
            rows[row["role"], row["branch"]].update(row)
        self.pairs += [{**pair, "step": number} for pair in pair_measures(compared)]
        shaping = unit.spec.shaping
        factors = role_factors(compared, shaping)
        for role, factor in factors.items():
            vector = vectors[compared.members(role)].sum(0)
            rows[role, None]["cosine_mean"] = unit.parts.compare_with_mean(role, vector)
            if shaping.by_part:
                rows[role, None]["factor"] = factor
            if factor != 1:
                _held(unit).add((factor - 1) * vector)

    def tables(self, names: Mapping[str, Any]) -> tuple[Rows, Rows]:
        """The rows of the update's two tables: those of its steps, and then their means.

        Args:
            names: the columns that all rows of an update share.
        """
        if self.unit.parts is None:
            return [], []
        measure = self.unit.spec.measure
        shared = {**{k: v for k, v in names.items() if k in _NAMES}, "method": measure.gradients}
        steps = self.unit.spec.epochs
        return (
            [{**shared, **row} for row in _with_means(self.rows, _WHOM[:2], ROLE_UPDATES.names, steps)],
            [{**shared, **row} for row in _with_means(self.pairs, _WHOM, ROLE_PAIRS.names, steps)],
        )


def _held(unit: Unit) -> HeldGradient:
    return HeldGradient(unit.engine, list(unit.policy.parameters()))


def _rows_of(part: Part) -> list[Who]:
    """Whose rows a part belongs to: the whole, its role, and where it is a copy its own."""
    role, branch = part
    return [(None, None), (role, None), *([(role, branch)] if branch else [])]


def _counted(counts: Mapping[Part, PartCount]) -> dict[Who, dict[str, Any]]:
    """What the whole, each role and each copy counts: rows, tokens and rewards."""
    sums: dict[Who, PartCount] = {}
    for part, count in counts.items():
        for who in _rows_of(part):
            sums[who] = sums.get(who, PartCount()) + count
    rows: dict[Who, dict[str, Any]] = {}
    for (role, branch), count in sums.items():
        above = sums[None if branch is None else role, None]
        rows[role, branch] = {
            "num_rows": count.num_rows,
            "num_tokens": count.num_tokens,
            "token_share": count.num_tokens / above.num_tokens if above.num_tokens else None,
            "reward": count.reward / count.rewarded if count.rewarded else None,
            "response_tokens": count.num_tokens / count.num_rows if count.num_rows else None,
        }
    return rows


def _add_totals(
    rows: Mapping[Who, dict[str, Any]], mini_batch: MiniBatch, totals: Mapping[Part, Totals]
) -> None:
    """Add what the losses of each part measured; a policy loss is the part's share of the model's."""
    merged: dict[Who, Totals] = {}
    for part, total in totals.items():
        for who in _rows_of(part):
            merged.setdefault(who, Totals()).merge(total)
    for who, total in merged.items():
        total.add(denominator=mini_batch.denominator)
        measured = {**total.measured(), **total.measured_by_role()}
        if measured["kl_reference"] is None:
            measured["kl_reference"] = measured["drift"]
        rows[who].update({name: measured[name] for name in (*_TOTALS, "sampled_entropy")})


def _with_means(rows: Rows, who: tuple[str, ...], columns: list[str], epochs: int) -> Rows:
    """The rows of steps, and after them one summary for each of `who`: means over the steps, and what was
    trained on once."""
    values = [name for name in columns if name not in _NAMES and name not in _WHOM]
    summaries = means_over_steps(rows, who, values)
    for summary in summaries:
        steps = [row for row in rows if all(row.get(name) == summary[name] for name in who)]
        for count in ("num_rows", "num_tokens"):
            if count in values:
                summary[count] = sum(row[count] for row in steps) // epochs
        if "copies" in summary:
            summary["copies"] = max(row.get("copies") or 0 for row in steps)
    return [*({**row, "kind": "step"} for row in rows), *({**s, "kind": "summary"} for s in summaries)]
