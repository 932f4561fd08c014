"""Run folders as `compare` reads them, written by hand: settings, metrics and evaluations, no tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.plan.resolve import complete
from pipeline.settings.reading import parse_settings, settings_toml
from pipeline.store.run import Run

ROLES = ["sender", "receiver"]


def make_run(
    root: Path,
    name: str,
    returns: Sequence[float],
    *,
    regime: str = "full",
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    scores: Mapping[int, float] | None = None,
    unfinished: bool = False,
    metrics: Mapping[str, float] | None = None,
) -> Run:
    """A run with a return for each iteration; `scores` are evaluations by the iterations before them."""
    raw = {"run": {"name": name, "root": str(root), "seed": seed}, "sharing": {"regime": regime}}
    filled = complete(parse_settings({**raw, **(settings or {})}), ROLES)
    run = Run(str(root), name)
    identity = {"data": {"rows": "r"}, "tasks_per_iteration": 8, "workflow": {"use": "signal"}}
    run.write_info(
        name=name, identity=identity, regime=regime, created_at=0.0, used_at=0.0,
        parameters={"trained": 10, "held": 20},
    )  # fmt: skip
    run.folder.write_text("settings.toml", settings_toml(filled))
    for index, value in enumerate(returns):
        found = {
            "return/mean": value,
            "role/sender/return_mean": value,
            "role/receiver/return_mean": value / 2,
            "rollout/response_tokens": 100.0,
            "model/a/tokens_trained": 30.0,
            "model/b/tokens_trained": 40.0,
            "time/total_seconds": 2.0,
            "memory/peak_gib": 1.0 + index,
            **(metrics or {}),
        }
        run.iteration(index).folder.write_text("done.json", json.dumps({"metrics": found}))
    if unfinished:
        run.iteration(len(returns)).folder.write_text("tasks/begun.json", "{}")
    for index, mean in (scores or {}).items():
        score = {"name": "exact_match", "mean": mean, "low": mean - 0.1, "high": mean + 0.1, "tasks": 9}
        result = {"split": "dev", "index": index, "scores": [score]}
        run.folder.write_text(f"evaluations/dev/{index:05d}/result.json", json.dumps(result))
    return run
