"""How far each unit has moved its teammates' contexts: metrics `shift/<unit>/…`, from logged columns. Pure.

A unit is a model that is trained. Divergences of updates are in the tables `trust/<model>`, which models
with a trust region have, and weights of teammates' updates in `shift`; without one only what needs no
divergence is there. Nothing is played for these numbers but trials of candidates: gaps to fresh plays are
estimated by weights, and realised gains are read off the plays that a schedule makes anyway
(`pipeline.metrics.realised`).

Bounds hold for teams in which one speaks at a time. Parallel branches and joins are outside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import polars as pl

from pipeline.metrics.drift import drift
from pipeline.metrics.realised import gain_of, realised_gains
from pipeline.settings.names import slug
from stages.tables.parquet import TableRef

# Columns of `trust/<model>`, and what they are called.
_TRUST: Final = {
    "radius": "radius",
    "divergence": "divergence",
    "whole_divergence": "whole_divergence",
    "per_episode": "kl_seq",
    "surrogate": "surrogate",
    "certificate": "certificate_lcb",
    "coefficient": "penalty",
    "masked_share": "masked_share",
    "kept_share": "kept_share",
}
# Columns of `shift`: the weights of teammates' updates. Metrics have the same names.
_WEIGHTS: Final = (
    *("ess_prefix", "ess_suffix", "ess_joint", "tv_hat", "max_weight_share", "clipped_share"),
    *("log_weight_p05", "log_weight_p50", "log_weight_p95"),
)
_DECISIONS: Final = ("accepted", "partly", "rejected")


def shift_metrics(tables: Mapping[str, TableRef]) -> dict[str, float]:
    """Of each unit's newest update in an iteration.

    Args:
        tables: `turns`, `updates/<model>`, `trust/<model>`, `trial/<model>` and `shift` of an iteration, as
            far as there are any; for realised gains `credit`, too.
    """
    updates = dict(_rows(tables, "updates", "kind", "summary"))
    decided = {model: rows[-1] for model, rows in _rows(tables, "trust") if rows[-1]["decision"]}
    metrics: dict[str, float] = {}
    spoken = _spoken(tables["turns"]) if updates and "turns" in tables else None
    for model, rows in updates.items():
        named = f"shift/{slug(model)}"
        if rows[-1]["sampler_kl"] is not None:
            metrics[f"{named}/rollout_train_mismatch"] = rows[-1]["sampler_kl"]
        if spoken is not None and rows[-1]["skipped"] is None:
            metrics |= _of_teammates(named, model, updates, decided, spoken)
            metrics |= _of_classifier(named, model, rows[-1]["block"] or 0, spoken, tables["turns"])
    for row in tables["shift"].read().to_pylist() if "shift" in tables else []:
        model = row["model_id"]
        if model in updates and (updates[model][-1]["block"] or 0) == (row["block"] or 0):
            metrics |= _of_weights(f"shift/{slug(model)}", row)
    for model, gain in realised_gains(tables, updates).items():
        metrics |= {f"shift/{slug(model)}/{name}": value for name, value in gain.items()}
        if model in decided and decided[model]["surrogate"] is not None:
            ahead = decided[model]["surrogate"] - gain["realised_gain"]
            metrics[f"shift/{slug(model)}/pred_vs_real"] = ahead
    for model, rows in _rows(tables, "trial"):
        metrics |= _of_trial(f"shift/{slug(model)}", rows, decided.get(model))
    metrics |= _trial_tokens(tables)
    for model, row in decided.items():
        metrics |= _of_trust(f"shift/{slug(model)}", row)
    if total := math.fsum(row["per_episode"] or 0.0 for row in decided.values()):
        for model, row in decided.items():
            metrics[f"shift/{slug(model)}/kl_share"] = (row["per_episode"] or 0.0) / total
    return metrics


def _of_weights(named: str, row: Mapping[str, Any]) -> dict[str, float]:
    """What the weights of teammates' updates say of the rows that a unit's own update was made on."""
    metrics = {f"{named}/{name}": row[name] for name in _WEIGHTS if row[name] is not None}
    if row["surrogate_cached"] is not None:
        gap = abs(row["surrogate_cached"] - row["surrogate_fresh"])
        metrics |= {f"{named}/stale_gap": gap, f"{named}/stale_low": row["stale_low"]}
        metrics |= {f"{named}/stale_high": row["stale_high"], f"{named}/kl_seq_post": row["kl_seq_post"]}
        if row["surrogate_fresh"]:
            metrics[f"{named}/stale_gap_share"] = gap / abs(row["surrogate_fresh"])
    if row["rows"]:
        metrics[f"{named}/unscored_share"] = row["unscored"] / row["rows"]
    return metrics


def _of_trial(
    named: str, rows: Sequence[Mapping[str, Any]], decided: Mapping[str, Any] | None
) -> dict[str, float]:
    """What the pairs of plays with a candidate and without it say; of its newest trial."""
    newest = max((row["block"] or 0) for row in rows)
    compared = [row for row in rows if (row["block"] or 0) == newest and row["failed"] is None]
    sides = {
        side: pl.DataFrame(
            [(row["task_id"], row["sample"], row[f"return_{side}"]) for row in compared],
            schema=["task_id", "sample", "return"],
            orient="row",
        )
        for side in ("before", "candidate")
    }
    gain = gain_of(sides["before"], sides["candidate"])
    metrics = {f"{named}/trial_{name.removeprefix('realised_')}": value for name, value in gain.items()}
    if decided is not None and decided["surrogate"] is not None:
        metrics[f"{named}/trial_pred_vs_real"] = decided["surrogate"] - gain["realised_gain"]
    return metrics


def _trial_tokens(tables: Mapping[str, TableRef]) -> dict[str, float]:
    """What trials have sampled and asked, which is in no other metric."""
    rows = [row for _, of_model in _rows(tables, "trial") for row in of_model]
    if not rows:
        return {}
    return {
        f"trial/{what}": float(
            sum(row[f"{what}_{side}"] or 0 for row in rows for side in ("before", "candidate"))
        )
        for what in ("response_tokens", "prompt_tokens")
    } | {"trial/episodes": 2.0 * len(rows)}


def _of_trust(named: str, row: Mapping[str, Any]) -> dict[str, float]:
    metrics = {f"{named}/{name}": row[column] for column, name in _TRUST.items() if row[column] is not None}
    metrics |= {f"{named}/{word}": float(row["decision"] == word) for word in _DECISIONS}
    if row["divergence"] is not None:  # of an update that was made again nothing is measured
        metrics[f"{named}/outside"] = float(row["divergence"] > row["radius"])
    if row["per_episode"]:
        metrics[f"{named}/gain_per_kl"] = row["surrogate"] / row["per_episode"]
    return metrics


def _of_teammates(
    named: str,
    model: str,
    updates: Mapping[str, list[dict[str, Any]]],
    decided: Mapping[str, Mapping[str, Any]],
    spoken: Spoken,
) -> dict[str, float]:
    """What teammates' updates on the plays of this unit's newest one did to its contexts."""
    block = updates[model][-1]["block"] or 0
    plays = spoken.plays(block)
    teammates = [
        other
        for other, rows in updates.items()
        if other != model
        and any(
            row["version_after"] > row["version_before"]
            and spoken.plays(row["block"] or 0) == plays
            and (row["block"] or 0) <= block
            for row in rows
        )
    ]
    metrics = {f"{named}/lag_updates": float(len(teammates))}
    above = [other for other in teammates if (other, model) in spoken.before]
    if all(other in decided and decided[other]["per_episode"] is not None for other in above):
        far = [max(decided[other]["per_episode"], 0.0) for other in above]
        metrics[f"{named}/shift_budget"] = math.sqrt(math.fsum(far) / 2)
        metrics[f"{named}/shift_budget_triangle"] = math.fsum(math.sqrt(each / 2) for each in far)
    return metrics


def _of_classifier(named: str, model: str, block: int, spoken: Spoken, turns: TableRef) -> dict[str, float]:
    """How far a unit's contexts in the plays that it was updated on are from those of the first plays."""
    first, played = min(spoken.blocks, default=block), spoken.plays(block)
    found = drift(turns, model, first, played) if played > first else None
    return (
        {}
        if found is None
        else {f"{named}/tv_classifier": found[0], f"{named}/tv_classifier_error": found[1]}
    )


class Spoken:
    """Who spoke before whom, and in which blocks the team played."""

    def __init__(self, blocks: Iterable[int], before: set[tuple[str, str]]) -> None:
        self.blocks, self.before = sorted(blocks), before

    def plays(self, block: int) -> int:
        """The block whose plays an update in `block` was made on: the newest that has any."""
        return max((played for played in self.blocks if played <= block), default=block)


def _spoken(turns: TableRef) -> Spoken:
    columns = ["episode_id", "turn_index", "model_id", "block"]
    frame = pl.DataFrame(turns.read(columns)).drop_nulls("model_id")
    spans = frame.group_by("episode_id", "model_id").agg(
        first=pl.col("turn_index").min(), last=pl.col("turn_index").max()
    )
    pairs = spans.join(spans, on="episode_id", suffix="_later").filter(
        (pl.col("model_id") != pl.col("model_id_later")) & (pl.col("first") < pl.col("last_later"))
    )
    before = set(pairs.select("model_id", "model_id_later").unique().iter_rows())
    return Spoken(frame["block"].fill_null(0).unique().to_list(), before)


def _rows(
    tables: Mapping[str, TableRef], kind: str, column: str | None = None, value: str | None = None
) -> Iterable[tuple[str, list[dict[str, Any]]]]:
    """By model, the rows of its table of a kind that have this value, where there are any."""
    for name, table in tables.items():
        of_kind, _, model = name.partition("/")
        if of_kind == kind and model:
            rows = [row for row in table.read().to_pylist() if column is None or row[column] == value]
            if rows:
                yield model, rows
