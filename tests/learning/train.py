"""Training a run from a settings file until it has learned, in this process, and its curve."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline.plan.assemble import Plan, assemble, assemble_evaluation
from pipeline.run.runner import Runner
from pipeline.run.session import session
from pipeline.settings.reading import load_settings
from pipeline.store.export import export_model
from pipeline.store.finished import Finished
from pipeline.store.runs import find_run
from stages.base import Quiet

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@dataclass(frozen=True, slots=True)
class Learned:
    """One run: a metric of every iteration, and how it ended."""

    name: str
    seed: int
    curve: tuple[float, ...]
    goal: float | None  # None: there is none, and all iterations are run
    window: int  # iterations whose mean must reach the goal
    seconds: float
    settings: Mapping[str, Any]

    @property
    def last(self) -> float:
        return fmean(self.curve[-self.window :])

    @property
    def reached(self) -> bool:
        return len(self.curve) >= self.window and (self.goal is None or self.last >= self.goal)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "last": self.last, "reached": self.reached}

    def line(self) -> str:
        told = (
            f"  {self.name:<28} seed {self.seed}: {self.curve[0]:.3f} → {self.last:.3f} in "
            f"{len(self.curve)} iterations, {self.seconds:.0f} s"
        )
        if self.goal is None:
            return told
        return f"{told}   goal {self.goal:g} over {self.window}   {'reached' if self.reached else 'short'}"


def train(
    name: str,
    settings: Path,
    overrides: Sequence[str],
    *,
    root: str,
    seed: int,
    iterations: int,
    goal: float | None,
    window: int = 5,
    metric: str = "return/mean",
) -> Learned:
    """Train until the mean of `metric` over the last `window` iterations reaches `goal`, or to the end.

    Iterations that the run has already are not run again; their time is not in `seconds`.
    """
    own = [f"run.root={root}", f"run.name={name.replace(' ', '-')}-{seed}", f"run.seed={seed}"]
    plan = assemble(load_settings(settings, [*overrides, *own, "tracking.uri=none"]))
    curve: list[float] = []

    def is_over() -> bool:
        return goal is not None and len(curve) >= window and fmean(curve[-window:]) >= goal

    def on_done(finished: Finished) -> bool:
        curve.append(finished.metrics[metric])
        return is_over()

    started = time.monotonic()
    with session(plan, Quiet(), signals=False) as runner:
        curve += played_before(runner, metric, iterations)
        if not is_over():
            runner.train(iterations, on_done=on_done)
    return Learned(
        name,
        seed,
        tuple(curve),
        goal,
        window,
        time.monotonic() - started,
        plan.settings.model_dump(mode="json"),
    )


def learn(plan: Plan, iterations: int, metric: str, told: Callable[[Finished], str]) -> list[float]:
    """Train until the run has so many iterations, with a printed line of each; `metric` of all of them."""
    curve: list[float] = []

    def on_done(finished: Finished) -> bool:
        curve.append(finished.metrics[metric])
        print(f"    {told(finished)}", flush=True)
        return False

    with session(plan, Quiet(), signals=False) as runner:
        curve += played_before(runner, metric, iterations)
        runner.train(iterations, on_done=on_done)
    return curve


def evaluated(plan: Plan) -> Finished:
    """An evaluation of the team as it stands; what an earlier call made is loaded."""
    evaluation = assemble_evaluation(plan)
    with session(plan, Quiet(), signals=False) as runner:
        return runner.evaluate(evaluation).done


def scores_of(done: Finished, metric: str) -> dict[str, float]:
    """A metric of an evaluation by task, failures as 0."""
    rows = done.tables["evaluation"].read().to_pylist()
    return {r["task_id"]: {v["name"]: v["value"] for v in r["values"]}.get(metric) or 0.0 for r in rows}


def exported(plan: Plan, folder: str, *, merge: bool = False) -> dict[str, str]:
    """By model: its newest weights as a folder of their own; `merge` writes adapters into their base."""
    run = find_run(plan.settings.run.root, plan.settings.run.name)
    out = {}
    for model in plan.models.trainable:
        target = Path(folder) / model.model_id
        out[model.model_id] = str(target)
        if not (target / "cadre.json").exists():  # written last
            shutil.rmtree(target, ignore_errors=True)
            export_model(run, str(target), model_id=model.model_id, version="latest", merge=merge)
    return out


def played_before(runner: Runner, metric: str, iterations: int) -> list[float]:
    """A metric of the iterations that an earlier call has finished, of the first `iterations`."""
    folders = [runner.run.iteration(index).folder for index in range(min(runner.next_index(), iterations))]
    return [float(json.loads(f.read_text("done.json") or "{}")["metrics"][metric]) for f in folders]
