"""What an update says of itself: the rows of the `UPDATES` table."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Final

from stages.training.plan import NO_ROWS, NO_SIGNAL, MiniBatch
from stages.training.roles import RoleMeasures
from stages.training.spec import UpdateReport
from stages.training.totals import Totals
from stages.training.trust.spec import REJECTED, TrustSpec, TrustState, state_after
from stages.training.unit import Unit

JUDGED: Final = ("radius", "divergence", "decision", "kept_share", "candidate_version")
"""Columns of an update's summary that its trust region fills."""


def report_of(
    unit: Unit,
    update_id: str,
    at: tuple[int, int],
    plan: list[MiniBatch],
    excluded: Counter[str],
    steps: list[dict[str, Any]],
    total: Totals,
    seconds: float,
    roles: RoleMeasures,
    trust: dict[str, Any] | None = None,
    ratios: list[dict[str, Any]] | None = None,
) -> UpdateReport:
    """The report of an update that made `steps`; the unit is still at the version from before it.

    `at` is the iteration and the block, `trust` what its trust region decided, as a row, and `ratios` how far
    it moved each message, as rows.
    """
    made = [m for m in plan if m.skipped is None]
    skipped = None if made else next((m.skipped for m in plan if m.skipped == NO_SIGNAL), NO_ROWS)
    before = unit.version
    after = before + bool(made)
    if made and trust is not None:
        after = before if trust["decision"] == REJECTED else trust["candidate_version"]
    iteration, block = at
    shared = {
        "iteration": iteration,
        "block": block,
        "place": block,  # schedules update one unit, or a group, in a block
        "update_id": update_id,
        "model_id": unit.spec.model_id,
        "version_before": before,
        "version_after": after,
    }
    norms = [row["gradient_norm"] for row in steps if "gradient_norm" in row]
    counts: dict[str, Any] = {
        "num_rows": sum(m.num_rows for m in made),
        "num_tokens": sum(m.num_tokens for m in made),
        "num_forward_tokens": sum(m.num_forward_tokens for m in made),
    }
    excluded = excluded.copy()
    excluded["no signal"] += sum(m.num_rows for m in plan if m.skipped == NO_SIGNAL)
    summary = {
        "kind": "summary",
        "gradient_norm": sum(norms) / len(norms) if norms else None,
        "learning_rate": unit.learning_rate,
        "seconds": seconds,
        "skipped": skipped,
        **counts,
        **total.measured(),
        **({name: trust.get(name) for name in JUDGED} if trust is not None else {}),
    }
    role_rows, pair_rows = roles.tables(shared)
    return UpdateReport(
        model_id=unit.spec.model_id,
        iteration=iteration,
        version_before=before,
        version_after=after,
        **counts,
        seconds=seconds,
        skipped=skipped,
        excluded={reason: n for reason, n in sorted(excluded.items()) if n},
        steps=[{**shared, **row} for row in steps],
        summary={**shared, **summary},
        block=block,
        update_id=update_id,
        measures=total.further(),
        roles=role_rows,
        pairs=pair_rows,
        trust=None if trust is None else {**_of_update(shared), **trust},
        ratios=ratios or [],
    )


def taken_back(report: UpdateReport, spec: TrustSpec, reason: str) -> UpdateReport:
    """The report of an update whose candidate is taken back after all."""
    assert report.trust is not None, "an update on trial has a trust region"
    before, row = report.version_before, report.trust
    state = TrustState(row["shrink"], row["scale"], row["spent_before"])
    after = state_after(spec, state, REJECTED, row["whole_divergence"])
    nothing = {"decision": REJECTED, "kept_share": 0.0, "divergence": 0.0}
    trust = {**row, **nothing, "reason": reason, "per_episode": 0.0}
    trust |= {"next_shrink": after.shrink, "next_scale": after.scale}
    return replace(
        report,
        version_after=before,
        steps=[{**step, "version_after": before} for step in report.steps],
        summary={**report.summary, **nothing, "version_after": before},
        trust=trust,
        ratios=[],
        on_trial=False,
    )


def _of_update(shared: dict[str, Any]) -> dict[str, Any]:
    return {name: shared[name] for name in ("iteration", "block", "model_id", "update_id", "version_before")}
