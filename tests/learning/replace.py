"""A sender from another team: put in cold the team loses, taught and aligned it does not, and a loss is taken
back.

Two teams learn the signalling game from the same random weights, each with a seed of its own, so each has a
language of its own. The sender of the second then takes the place of the first team's:

- `swap`: put in cold and judged. It must be rolled back, and the next iteration of its run must be the one
  that the parent would have made: every table and the weights, bit for bit (a fork of the parent makes it).
- `taught`: every step. The direct swap must lose, the gate must take the newcomer in the end.
- `aligned`: it is taught nothing, and learns its teammate's language in the team alone.
- `imitated`: the newcomer has another vocabulary, so it is taught by the text of stored turns.

The gate is greedy, over the four symbols.

The same with adapters on a real model, SmolLM2-135M, is in `replace_reading`: `reading-swap` and
`reading-taught`, with the first seed alone.

With `--only` the cases whose name has that text.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.plan.assemble import assemble
from pipeline.replacement.asked import asked_of
from pipeline.replacement.replace import ACCEPTED, ROLLED_BACK, run_replacement
from pipeline.replacement.show import rows_of
from pipeline.replacement.state import State
from pipeline.replacement.team import stored_settings
from pipeline.run.cluster import start_ray
from pipeline.run.session import session
from pipeline.store.export import export_model
from pipeline.store.fork import fork_run
from pipeline.store.run import Run
from stages.base import Quiet
from stages.training.checkpoint import read_manifest
from tests.learning import replace_reading as reading
from tests.learning.train import EXAMPLES, train

GOAL: Final = 0.9
ITERATIONS: Final = 120
TEAM: Final = [
    'sharing.regime="separate"',
    "evaluate.every=0",
    "checkpoints.every=1000",
    "checkpoints.keep=3",
]
LESSON: Final = ["replace.distill_learning_rate=2e-3", "replace.distill_passes=20"]
ALONE: Final = ["replace.align_iterations=60", "replace.step_radius=0.5", "replace.radius=50"]
# whatever batch a request lands in changes its last bits
FIXED: Final = [
    "models.sender.max_batch_size=1",
    "models.receiver.max_batch_size=1",
    "rollout.max_in_flight=1",
]
CASES: Final = {
    "swap": (["swap"], []),
    "taught": (None, LESSON),
    "aligned": (["swap", "align", "settle"], ALONE),
    "imitated": (None, LESSON),
    **reading.CASES,
}
"""Steps (None: all) and settings of each case."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """One replacement and what came of it."""

    name: str
    seed: int
    wanted: str
    outcome: str
    steps: tuple[dict[str, Any], ...]
    seconds: float
    alike: bool | None = None  # of one that was rolled back: whether its next iteration is its parent's

    @property
    def reached(self) -> bool:
        cold = next((step for step in self.steps if step["step"] == "swap"), None)
        lost = cold is not None and cold["gain"] < 0
        return self.outcome == self.wanted and lost and self.alike is not False

    def line(self) -> str:
        course = " → ".join(f"{step['step']} {step['score']:.2f}" for step in self.steps)
        alike = {None: "", True: ", next iteration as the parent's", False: ", next iteration DIFFERS"}
        word = "reached" if self.reached else "short"
        return (
            f"  {self.name:<14} seed {self.seed}: {course}: {self.outcome}{alike[self.alike]}, "
            f"{self.seconds:.0f} s   {word}"
        )

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "reached": self.reached}


def run(folder: str, seeds: Sequence[int], only: str = "") -> list[Replaced]:
    """Two teams of each seed, and every case with them."""
    import ray

    start_ray("local", 0.2)
    results = []
    try:
        for place, seed in enumerate(seeds):
            for case in CASES:
                if only in case and not (place and case in reading.CASES):
                    results.append(play(case, folder, seed))
                    print(results[-1].line(), flush=True)
    finally:
        ray.shutdown()
    return results


def play(case: str, folder: str, seed: int) -> Replaced:
    """One case; what an earlier call has finished is loaded."""
    is_reading = case in reading.CASES
    parent = reading.team(folder, seed) if is_reading else team(folder, seed)
    stranger = reading.newcomer(folder, seed) if is_reading else newcomer(case, folder, seed)
    started = time.monotonic()
    steps, overrides = CASES[case]
    asked = asked_of(
        parent,
        reading.MODEL if is_reading else "sender",
        stranger,
        name=f"{case}-{seed}",
        steps=steps,
        overrides=overrides,
    )
    state = run_replacement(
        asked, Quiet(), lambda: None, lambda line: print(f"    {line}", flush=True), signals=False
    )
    alike = None
    if state.outcome == ROLLED_BACK:
        alike = goes_on_as_its_parent(asked.parent, asked.run, reading.FIXED if is_reading else FIXED)
    rows = tuple(rows_of(asked, State(asked.run)))
    wanted = ROLLED_BACK if steps == ["swap"] else ACCEPTED
    return Replaced(case, seed, wanted, str(state.outcome), rows, time.monotonic() - started, alike)


def team(folder: str, seed: int, words: str = "tiny-words") -> Run:
    """A team that has learned the game."""
    name = "team" if words == "tiny-words" else words
    learned = train(
        name,
        EXAMPLES / "signal.toml",
        [*TEAM, f'models.team.checkpoint="{words}"'],
        root=folder,
        seed=seed,
        iterations=ITERATIONS,
        goal=GOAL,
    )
    print(f"  {learned.line().strip()}", flush=True)
    run = Run(folder, f"{name}-{seed}")
    run.read_info()
    return run


def newcomer(case: str, folder: str, seed: int) -> str:
    """The sender of another team; of another vocabulary, one that has learned nothing."""
    if case == "imitated":
        return "tiny-answers"
    target = Path(folder) / f"sender-{seed}"
    if not (target / "cadre.json").exists():  # written last
        shutil.rmtree(target, ignore_errors=True)
        export_model(team(folder, seed + 100), str(target), model_id="sender", version="latest")
    return str(target)


def goes_on_as_its_parent(parent: Run, run: Run, fixed: Sequence[str]) -> bool:
    """Whether the next iteration of `run` has the tables and weights of the parent's next one.

    Args:
        fixed: settings with which plays repeat bit for bit.
    """
    twin = Run(parent.folder.url.rpartition("/")[0], f"{parent.name}-twin")
    if not twin.exists:
        fork_run(parent, twin.name)
    index = len(parent.iterations())
    made = []
    for each in (twin, run):
        with session(assemble(stored_settings(each, each.name, fixed)), Quiet(), signals=False) as runner:
            if runner.next_index() == index:
                runner.run_iteration()
        each.read_info()
        made.append(contents(each, index))
    return made[0] == made[1]


def contents(run: Run, index: int) -> dict[str, Any]:
    """The rows of every table of an iteration but for times, and the hashes of the weights that it made."""
    tables, _ = run.iteration(index).tables()
    found: dict[str, Any] = {}
    for name, table in tables.items():
        timed = [c for c in table.schema.names if c.endswith(("_at", "seconds", "uri"))]
        rows = table.read([c for c in table.schema.names if c not in timed])
        keys = [c for c in ("episode_id", "turn_index", "step", "kind") if c in rows.column_names]
        found[name] = rows.sort_by(
            [(k, "ascending") for k in keys] or [(rows.column_names[0], "ascending")]
        ).to_pylist()
    for model in run.folder.child("checkpoints").names():
        newest = run.weights_versions(model)[-1]
        found[f"weights of {model}"] = (newest, read_manifest(run.checkpoint_uri(model, newest))["hash"])
    return found
