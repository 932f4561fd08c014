"""What a run has to say for itself afterwards: its settings, and the numbers of all that it finished.

Read from the small JSON and TOML files of the run folder alone: no table, no checkpoint, no tracker.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.metrics.forecast import Made
from pipeline.store.pace import read_record
from pipeline.store.run import Run, finished_metrics

Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class History:
    """One run. `iterations` has the metrics of the finished ones, in order."""

    name: str
    url: str
    info: Mapping[str, Any]  # run.json
    kept: Mapping[str, Any]  # settings.toml, as it stands there
    iterations: tuple[Metrics, ...]
    unfinished: tuple[int, ...]
    evaluations: tuple[Mapping[str, Any], ...]  # every `result.json`, by split and index
    forecasts: tuple[Made, ...] = ()  # those whose outcome is known

    @property
    def seed(self) -> int:
        return int(self.kept.get("run", {}).get("seed", 0))

    @property
    def settings_changes(self) -> list[tuple[int, str]]:
        return changes_in(self.info)

    @property
    def regime(self) -> str:
        return str(self.info.get("regime", "unknown"))


def changes_in(info: Mapping[str, Any]) -> list[tuple[int, str]]:
    """`(iteration, changes)` of each time that settings changed within a run (of its `run.json`): they hold
    from that iteration on."""
    return [(change["iteration"], change["changes"]) for change in info.get("settings_changes", [])]


def read_history(run: Run) -> History:
    """The history of a run whose `run.json` is there."""
    settings = run.folder.read_text("settings.toml")
    finished = finished_metrics(run)
    return History(
        name=run.name,
        url=run.folder.url,
        info=run.read_info(),
        kept=tomllib.loads(settings) if settings else {},
        iterations=tuple(finished.values()),
        unfinished=tuple(i for i in run.iterations() if i not in finished),
        evaluations=tuple(evaluation_results(run)),
        forecasts=tuple(made for made in read_record(run).made if made.pairs()),
    )


def evaluation_results(run: Run) -> list[dict[str, Any]]:
    """The results of every finished evaluation, by split and number of iterations before it."""
    evaluations = run.folder.child("evaluations")
    names = [(split, name) for split in evaluations.names() for name in evaluations.child(split).names()]
    texts = [evaluations.child(f"{split}/{name}").read_text("result.json") for split, name in names]
    found = [json.loads(text) for text in texts if text is not None]
    return sorted(found, key=lambda result: (result["split"], result["index"]))
