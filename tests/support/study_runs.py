"""Runs of a study as `results_of` reads them, written by hand: settings, metrics, evaluations with tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import tomlkit

from pipeline.experiments.process import Progress
from pipeline.settings.schema import Settings
from pipeline.store.folder import Folder
from pipeline.store.run import Run
from stages.base import StageResult
from tests.support.small_runs import make_run
from workflows.trajectory import EPISODES, EVALUATION, VOTES, rows_to_table

TASKS = tuple(f"t{i}" for i in range(12))
STUDY: dict[str, Any] = {
    "study": {
        "iterations": 4,
        "seeds": [0, 1],
        "workflows": [
            {
                "name": "voting",
                "use": "voting",
                "regimes": ["full", "separate"],
                "overrides": {"roles": {"generator": {"max_response_tokens": 5}}},
            },
            {"name": "single", "use": "single", "options": {"task": "questions"}, "regimes": ["full"]},
        ],
        "regime": {"separate": {"ppo": {"learning_rate": 0.5}}},
    },
    "run": {"name": "s"},
    "models": {"team": {"checkpoint": "tiny-words"}},
    "evaluate": {"every": 2, "test": {"split": "test"}, "rewards": [{"use": "team_right"}]},
    "tracking": {"uri": "none"},
}


def write_study(folder: Path, raw: Mapping[str, Any] = STUDY) -> str:
    """The file of a study whose runs lie under `<folder>/runs`; its path."""
    path = folder / "study.toml"
    whole = {**raw, "run": {**raw.get("run", {}), "root": str(folder / "runs")}}
    path.write_text(tomlkit.dumps(whole), "utf-8")
    return str(path)


@dataclass(frozen=True)
class Table:
    """A stage that has written one table by hand."""

    name: str
    schema: pa.Schema
    folder: str = ""
    inputs: Mapping[str, Any] = ()  # type: ignore[assignment]

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {self.name: self.schema}

    @property
    def places(self) -> dict[str, str]:
        return {self.name: ""}


def evaluate(
    run: Run,
    label: str,
    index: int,
    values: Mapping[str, Sequence[float]],
    *,
    tokens: int = 10,
    ballots: bool = False,
) -> None:
    """An evaluation: the values of every task's plays, each of which cost `tokens`; with ballots a vote."""
    rows = [
        {
            "task_id": task,
            "sample": k,
            "episode_id": f"{task}/{k}",
            "status": "ok",
            "values": [{"name": "team_right", "value": value}],
            "num_response_tokens": tokens,
            "ballot": f"answer {value}",
        }
        for task, plays in values.items()
        for k, value in enumerate(plays)
    ]
    place = run.evaluation(label, index)
    tables = {"evaluation": EVALUATION, "episodes": EPISODES} | ({"votes": VOTES} if ballots else {})
    for name, schema in tables.items():
        stage: Any = Table(name, schema, name)
        kept = [{k: v for k, v in row.items() if k in schema.names} for row in rows]
        part = place.sinks(stage)[name].write_part(0, rows_to_table(kept, schema))
        place.commit(stage, StageResult({name: [part]}, []), {}, {}, 0.0)
    mean = sum(sum(plays) / len(plays) for plays in values.values()) / len(values)
    score = {"name": "team_right", "mean": mean, "low": None, "high": None, "tasks": len(values)}
    result = {"split": label, "index": index, "scores": [score | {"pass_at": {}}]}
    place.folder.write_text("result.json", json.dumps(result))


def share(right: float, tasks: Sequence[str] = TASKS) -> dict[str, list[float]]:
    """One play of each task, of which this share is right: the first ones."""
    return {task: [float(i < round(right * len(tasks)))] for i, task in enumerate(tasks)}


class Written:
    """Trains a run by writing its folder: `dev` and `test` are shares of right answers by checkpoint."""

    def __init__(
        self,
        dev: Mapping[str, Mapping[int, float]],
        test: Mapping[str, Mapping[int, float]],
        tokens: Mapping[str, float] | None = None,
        broken: Mapping[str, str] | None = None,
    ) -> None:
        self.dev, self.test, self.tokens = dev, test, tokens or {}
        self.broken = dict(broken or {})
        self.calls: list[tuple[str, int]] = []

    def __call__(
        self, settings: Settings, iterations: int, logs: Folder, on_progress: Progress
    ) -> str | None:
        name = settings.run.name
        self.calls.append((name, iterations))
        if name in self.broken:
            return self.broken[name]
        workflow = settings.workflow.use
        metrics = {"rollout/response_tokens": self.tokens.get(workflow, 100.0)}
        run = make_run(
            Path(settings.run.root), name, [0.1] * iterations, seed=settings.run.seed, metrics=metrics
        )
        dev, test = self.dev[workflow], self.test[workflow]
        for at, right in dev.items():
            if at <= iterations:
                evaluate(run, "dev", at, share(right))
                evaluate(run, "test", at, share(test[at]), tokens=30 if workflow == "voting" else 10)
                if settings.evaluate.vote is not None:
                    plays = {t: [v[0], v[0], 1 - v[0], 1 - v[0]] for t, v in share(test[at]).items()}
                    evaluate(run, "test.vote", at, plays, ballots=True)
        best = max((at for at in dev if at <= iterations), key=lambda at: (dev[at], -at))
        run.read_info()
        run.write_info(best={"dev": {"metric": "team_right", "value": dev[best], "iterations": best}})
        on_progress(iterations)
        return None
