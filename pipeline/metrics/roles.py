"""Metrics of roles within updates, from the tables `role_updates/<model>` and `role_pairs/<model>`. Pure.

The names are those of roles, so they are the same whether roles share a model or not. What is not defined,
such as a cosine between roles of different models, has no metric.
"""

from __future__ import annotations

from typing import Any, Final

from pipeline.settings.names import slug
from stages.tables.parquet import TableRef

# Columns of the summary rows of `role_updates`, and what they are called.
_OF_ROLE: Final = {
    "gradient_norm": "gradient_norm",
    "gradient_share": "gradient_share",
    "token_share": "token_share",
    "cosine_whole": "gradient_cosine",
    "cosine_mean": "gradient_persistence",
    "redundancy": "copies_redundancy",
    "copies": "copies",
    "copies_cosine": "copies_cosine",
    "factor": "gradient_factor",
    "kl_old": "kl_old",
    "kl_reference": "kl_reference",
    "sampler_kl": "sampler_kl",
    "entropy": "entropy",
    "clip_fraction": "clip_fraction",
}
_OF_MODEL: Final = {
    "interference": "gradient_interference",
    "redundancy": "gradient_redundancy",
    "factor": "gradient_factor",
}


def role_update_metrics(model: str, table: TableRef) -> dict[str, float]:
    """`role/<role>/…` of one model's newest update, and `model/<model>/…` of all its roles together."""
    metrics: dict[str, float] = {}
    for row in _newest(table):
        if row["branch"] is not None:
            continue  # copies are in the table alone: their number would make that of names unbounded
        kind, name, names = (
            ("model", model, _OF_MODEL) if row["role"] is None else ("role", row["role"], _OF_ROLE)
        )
        for column, metric in names.items():
            if row[column] is not None:
                metrics[f"{kind}/{slug(name)}/{metric}"] = float(row[column])
    return metrics


def role_pair_metrics(table: TableRef) -> dict[str, float]:
    """The cosine of each two roles of one model, under the names of both."""
    metrics: dict[str, float] = {}
    for row in _newest(table):
        if row["branch"] is None:
            one, other = slug(row["role"]), slug(row["other_role"])
            for role, beside in ((one, other), (other, one)):
                metrics[f"role/{role}/gradient_cosine_with/{beside}"] = row["cosine"]
    return metrics


def _newest(table: TableRef) -> list[dict[str, Any]]:
    """The summary rows of the newest update in the table."""
    rows = [row for row in table.read().to_pylist() if row["kind"] == "summary"]
    newest = max(((row["block"] or 0) for row in rows), default=0)
    return [row for row in rows if (row["block"] or 0) == newest]
