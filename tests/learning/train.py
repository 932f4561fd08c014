"""Training a run from a settings file until it has learned, in this process, and its curve."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline.plan.assemble import assemble
from pipeline.run.runner import Runner
from pipeline.run.session import session
from pipeline.settings.reading import load_settings
from pipeline.store.finished import Finished
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


def played_before(runner: Runner, metric: str, iterations: int) -> list[float]:
    """A metric of the iterations that an earlier call has finished, of the first `iterations`."""
    folders = [runner.run.iteration(index).folder for index in range(min(runner.next_index(), iterations))]
    return [float(json.loads(f.read_text("done.json") or "{}")["metrics"][metric]) for f in folders]
