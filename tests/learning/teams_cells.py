"""The runs of `teams`: their settings, and what became of each, read from its tables and its policies.

`TEAM` has the settings that all share. A unit is an adapter with embeddings of its own on one random base.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import polars as pl

from pipeline.metrics.shift import Spoken
from pipeline.plan.assemble import Plan, assemble
from pipeline.run.session import session
from pipeline.settings.reading import load_settings
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from pipeline.store.shelf import shelf_of
from stages.base import Quiet
from stages.weights.resolve import resolve_checkpoint
from tests.learning.chain import COLOURS
from tests.learning.chain import tasks as chain_tasks
from tests.learning.chain_exact import Chain, Floats, Policies, Step, steps_of, tabulate, words

TEAM: Final = Path(__file__).parent / "teams.toml"
Part = Literal["gap", "twice", "final", "radius"]

SIZES: Final = (2, 3, 5, 8)
ORDERS: Final = ("random", "forward", "reverse")
GAP_ITERATIONS, FINAL_ITERATIONS, RADIUS_ITERATIONS = 6, 24, 12
FREE: Final = ("trust_region.radius=1000.0", "trust_region.backtrack=0", "trust_region.reject=false")
HIGH: Final = ("ppo.learning_rate=1e-2",)
WATCHED: Final = ("trust_region.backtrack=0", "trust_region.reject=false")
RADIUS, WIDE_RADIUS = 0.05, 0.25  # that of teams.toml, and one that about a fourth of the updates are outside
FINALS: Final[Mapping[str, tuple[str, ...]]] = {
    "fresh": ("fresh", "random"),
    "suffix": ("suffix", "reverse"),
    "every_second": ("every_k", "random"),
    "reweighted": ("reweighted", "random"),
    "budget": ("budget", "random"),
    "stale": ("stale", "random"),
    "no_radius": ("fresh", "random", *FREE),
    "simultaneous": ("simultaneous", "random"),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting, run with every seed."""

    part: Part
    label: str
    units: int
    rollouts: str
    order: str
    iterations: int
    rounds: int = 1
    more: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.part}/{self.label}"

    @property
    def blocks(self) -> int:
        """Blocks of all iterations: a measure of how long the run takes."""
        return self.iterations * (1 if self.rollouts == "simultaneous" else self.units)

    def overrides(self) -> list[str]:
        """The settings that are not those of teams.toml."""
        schedule = (
            f'schedule={{use="sequential", options={{rollouts="{self.rollouts}", order="{self.order}"}}}}'
        )
        return [
            f'data.path="{self.units}"',
            f"workflow.options={{units={self.units}, rounds={self.rounds}}}",
            *([] if self.rollouts == "simultaneous" else [schedule]),
            *self.more,
        ]


def cells() -> Iterator[Cell]:
    """All of them: gaps by size and order, the same with two rounds, final returns, and the radius."""
    for units in SIZES:
        for order in ORDERS:
            yield Cell("gap", f"{order}-{units}", units, "stale", order, GAP_ITERATIONS)
    for units in SIZES:
        for rollouts in ("stale", "fresh"):
            label = f"{rollouts}-{units}"
            yield Cell("twice", label, units, rollouts, "random", GAP_ITERATIONS, rounds=2)
    for label, (rollouts, order, *more) in FINALS.items():
        yield Cell("final", label, 5, rollouts, order, FINAL_ITERATIONS, more=tuple(more))
    wide = ("with_wide", (*HIGH, f"trust_region.radius={WIDE_RADIUS}"))
    for label, settings in (("without", (*HIGH, *WATCHED)), ("with", HIGH), wide):
        yield Cell("radius", label, 5, "fresh", "random", RADIUS_ITERATIONS, more=settings)


@dataclass(frozen=True, slots=True)
class Update:
    """What the tables say of one update, and by enumeration what it did on all tasks and on those of dev."""

    iteration: int
    step: Step
    held_out: Step  # of tasks that trained nothing
    trust: Mapping[str, Any]  # its row of `trust`
    shift: Mapping[str, Any]  # its unit's row of `shift`, of the block of the update


@dataclass(frozen=True, slots=True)
class Played:
    """One run. Scores are exact mean returns of the team before the first and after every iteration."""

    cell: Cell
    seed: int
    scores: tuple[float, ...]
    held_out: tuple[float, ...]  # the same over the tasks that trained nothing
    updates: tuple[Update, ...]
    sampled_tokens: int
    copied_tokens: int
    rows_trained: int
    seconds: float  # of its iterations, as they noted them

    @property
    def iterations(self) -> int:
        return len(self.scores) - 1

    def line(self) -> str:
        outside = [u.trust["divergence"] > u.trust["radius"] for u in self.updates]
        return (
            f"  {self.cell.name:<20} seed {self.seed}: {self.scores[0]:.3f} → {self.scores[-1]:.3f} in "
            f"{self.iterations} iterations, {self.sampled_tokens} tokens sampled, stale gap "
            f"{sum(u.step.stale_gap for u in self.updates) / self.iterations:.2g} an iteration, "
            f"{sum(outside)} of {len(outside)} updates outside the radius, {self.seconds:.0f} s"
        )

    def as_dict(self) -> dict[str, Any]:
        steps = [
            {"unit": u.step.unit, "iteration": u.iteration, "decision": u.trust["decision"]}
            | {
                name: getattr(u.step, name)
                for name in ("gain", "promise", "fresh_promise", "shift", "own_shift")
            }
            | {
                name: u.trust[name]
                for name in ("divergence", "radius", "per_episode", "surrogate", "certificate")
            }
            | {"held_out_gain": u.held_out.gain}
            for u in self.updates
        ]
        return {
            "name": self.cell.name,
            "seed": self.seed,
            "scores": self.scores,
            "held_out": self.held_out,
            "sampled_tokens": self.sampled_tokens,
            "copied_tokens": self.copied_tokens,
            "seconds": self.seconds,
            "updates": steps,
        }


def play(cell: Cell, folder: str, seed: int) -> Played:
    """Train one run, or go on with it; what is finished is not done again."""
    name = f"{cell.name.replace('/', '-')}-{seed}"
    own = [f"run.root={folder}", f"run.name={name}", f"run.seed={seed}"]
    plan = assemble(load_settings(TEAM, [*cell.overrides(), *own]))
    run = Run(folder, name)
    if sum(map(run.is_finished, run.iterations())) < cell.iterations or not _tables_of(plan, run):
        with session(plan, Quiet(), signals=False) as runner:
            _keep_policies(plan, runner.run)  # those of before a kill

            def on_done(finished: Finished) -> bool:
                _keep_policies(plan, runner.run)
                return False

            runner.train(cell.iterations, on_done=on_done)
    return read(cell, plan, run, seed)


def forecast(waiting: Sequence[tuple[Cell, int]], seconds_per_block: float) -> str:
    """How long the runs that are left will take."""
    blocks = sum(cell.blocks for cell, _ in waiting)
    minutes = blocks * seconds_per_block / 60
    return (
        f"  {len(waiting)} runs of {blocks} blocks are left: about {minutes:.0f} minutes at "
        f"{seconds_per_block:.1f} s a block"
    )


def is_finished(cell: Cell, folder: str, seed: int) -> bool:
    run = Run(folder, f"{cell.name.replace('/', '-')}-{seed}")
    return sum(map(run.is_finished, run.iterations())) >= cell.iterations


def read(cell: Cell, plan: Plan, run: Run, seed: int) -> Played:
    """What a finished run did, from its tables and the policies that were kept beside them."""
    base = resolve_checkpoint(plan.settings.models[plan.models.trainable[0].base_id].checkpoint)
    policies = _Kept(run)
    chain = Chain(cell.units, _texts(base), cell.rounds)
    held_out = _held_out(chain)
    shelf = shelf_of(run)
    units = [model.model_id for model in plan.models.trainable]
    team: Policies = {unit: policies(unit, 0) for unit in units}
    scores, scores_held_out = [chain.score(team)], [chain.score(team, held_out)]
    updates: list[Update] = []
    sampled = copied = rows = 0
    seconds = 0.0
    for index in range(cell.iterations):
        done = shelf.place(index)
        made, played_with = _updates(done, units)
        new = [(row["model_id"], policies(row["model_id"], row["version_after"])) for row, _, _ in made]
        every = steps_of(chain, team, new, lambda k, of=played_with: of[k])
        apart = steps_of(chain, team, new, lambda k, of=played_with: of[k], held_out)
        updates += [
            Update(index, step, dev, trust, shift)
            for step, dev, (_, trust, shift) in zip(every, apart, made, strict=True)
            if trust["decision"] is not None
        ]
        team = {**team, **dict(new)}
        scores.append(chain.score(team))
        scores_held_out.append(chain.score(team, held_out))
        turns = pl.DataFrame(done.tables["turns"].read(["origin", "num_response_tokens"]))
        of_origin = dict(turns.group_by("origin").agg(pl.col("num_response_tokens").sum()).iter_rows())
        sampled, copied = sampled + of_origin.get("sampled", 0), copied + of_origin.get("copied", 0)
        rows += sum(row["num_rows"] or 0 for row, _, _ in made)
        seconds += done.seconds
    return Played(
        cell, seed, tuple(scores), tuple(scores_held_out), tuple(updates), sampled, copied, rows, seconds
    )


def _updates(done: Finished, units: Sequence[str]) -> tuple[list[tuple[Any, Any, Any]], list[int]]:
    """The updates of an iteration in their order, each with its rows of `trust` and `shift`, and for each how
    many updates the team had had when it played what the update was made on."""
    made = []
    shifts = {(row["block"], row["model_id"]): row for row in done.tables["shift"].read().to_pylist()}
    for unit in units:
        (row,) = [r for r in done.tables[f"updates/{unit}"].read().to_pylist() if r["kind"] == "summary"]
        (trust,) = done.tables[f"trust/{unit}"].read().to_pylist()
        made.append((row, trust, shifts[row["block"] or 0, unit]))
    made.sort(key=lambda each: each[0]["block"] or 0)  # stable: units of one block as in the settings
    blocks = done.tables["turns"].read(["block"])["block"].fill_null(0).unique().to_pylist()
    spoken = Spoken(blocks, set())
    played = [spoken.plays(row["block"] or 0) for row, _, _ in made]
    return made, [sum((row["block"] or 0) < at for row, _, _ in made) for at in played]


def _held_out(chain: Chain) -> Any:
    """A mask [T] of the tasks of dev."""
    apart = {t["task_id"] for t in chain_tasks(str(chain.units)) if t["split"] == "dev"}
    starts = np.repeat(np.arange(4), len(chain.facts) // 4)
    names = [
        f"{COLOURS[s]}-{''.join(map(str, f))}" for s, f in zip(starts, chain.facts.tolist(), strict=True)
    ]
    return np.array([name in apart for name in names])


def _texts(base: str) -> tuple[str, ...]:
    from transformers import AutoTokenizer

    return words(AutoTokenizer.from_pretrained(base))[0]


@dataclass(frozen=True, slots=True)
class _Kept:
    """The policies of a run by unit and version, from the folder beside its tables."""

    run: Run

    def __call__(self, unit: str, version: int) -> Floats:
        table: Floats = np.load(_policy_file(self.run, unit, version))
        return table


def _policy_file(run: Run, unit: str, version: int) -> Path:
    return Path(run.folder.url) / "policies" / f"{unit}-{version:05d}.npy"


def _tables_of(plan: Plan, run: Run) -> bool:
    """Whether the policies of all versions that updates made are kept."""
    rows = [
        (model.model_id, row["version_after"])
        for index in run.iterations()
        for model in plan.models.trainable
        for row in shelf_of(run).place(index).tables[f"updates/{model.model_id}"].read().to_pylist()
        if row["kind"] == "summary"
    ]
    return all(_policy_file(run, *each).exists() for each in rows)


def _keep_policies(plan: Plan, run: Run) -> None:
    """Tabulate every unit's weights of now, and the first ones: older versions are not kept by the run."""
    for model in plan.models.trainable:
        base = resolve_checkpoint(plan.settings.models[model.base_id].checkpoint)
        versions = run.weights_versions(model.model_id)
        for version in (0, *versions[-1:]):
            file = _policy_file(run, model.model_id, version)
            if file.exists():
                continue
            folder = f"{run.folder.url}/checkpoints/{model.model_id}/{version:05d}/weights" if version else ""
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, tabulate(folder, model.adapter, base))


def measured_pace(played: Sequence[Played], default: float) -> float:
    """Seconds of a block, of the runs that are finished."""
    blocks = sum(one.cell.blocks for one in played)
    return sum(one.seconds for one in played) / blocks if blocks else default
