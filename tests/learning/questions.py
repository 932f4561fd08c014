"""Does a team of real (small) models learn to answer the shipped questions? SmolLM2-135M, `qa_decompose`.

Two phases, each a run of its own whose gain is told apart:

- `warm`: a supervised warm start from a few demonstrations of the training split (`teacher.py`), as short
  as gives plays of which some are right and some are wrong.
- `learn`: reinforcement learning from there, with the settings of docs/examples/qa_learn.toml.

The score is the token F1 of greedy answers to 150 questions of the dev split, failures as 0; gains are
paired by question, with Student's t intervals at 95 %. About an hour a regime on two cores that compute in
bfloat16, twice that on others. With `--keep`, a second call goes on where the first was stopped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.plan.assemble import Plan, assemble
from pipeline.settings.reading import load_settings
from pipeline.settings.schema import Settings
from pipeline.store.finished import Finished
from stages.evaluate import Estimate, estimate_mean
from tests.learning.teacher import write_demonstrations
from tests.learning.train import EXAMPLES, evaluated, exported, scores_of
from tests.learning.train import learn as learn_on

METRIC: Final = "token_f1"
F1_OF_PLAYS: Final = f"reward/{METRIC}/mean"
REGIMES: Final = {
    "full": ['sharing.regime="full"'],
    # three engines and three trainers in 24 GB, also where they compute in float32
    "separate": ['sharing.regime="separate"', "models.team.kv_cache_gib=0.25", "ppo.micro_batch_tokens=1024"],
}
PHASES: Final = {"warm": 4, "learn": 20}
"""Iterations of each."""
WARM_TASKS: Final = 24
WARM: Final = [
    f"data.tasks_per_iteration={WARM_TASKS}",
    "rollout.group_size=1",  # a second play of a demonstration is the same
    'credit={use="rejection", options={at_least=0.5}}',  # F1 of at least a half, in its own format
    'ppo={loss="supervised", learning_rate=1e-4, mini_batches=4, micro_batch_tokens=1536, weight_decay=0.0}',
]
Scores = dict[str, float]  # by task


@dataclass(frozen=True, slots=True)
class Gain:
    """One regime: dev F1 at the start, after the warm start and at the end, and the gains between them."""

    regime: str
    seed: int
    before: Scores
    warmed: Scores
    after: Scores
    curve: Sequence[float]  # of learning: mean F1 of the plays of every iteration
    seconds: float
    settings: Mapping[str, Any]

    @property
    def total(self) -> Estimate:
        return paired(self.before, self.after)

    @property
    def reached(self) -> bool:
        """The gain's interval excludes 0, and the F1 is at least twice what it was."""
        low = self.total.low
        doubled = mean(self.after).mean >= 2 * mean(self.before).mean
        return low is not None and low > 0 and doubled

    def as_dict(self) -> dict[str, Any]:
        gains = {
            "warm": paired(self.before, self.warmed),
            "learn": paired(self.warmed, self.after),
            "total": self.total,
        }
        return {**asdict(self), "gains": {k: asdict(g) for k, g in gains.items()}, "reached": self.reached}

    def lines(self) -> list[str]:
        """The three scores, the gains, the verdict."""
        scores = " → ".join(f"{mean(s).mean:.3f}" for s in (self.before, self.warmed, self.after))
        return [
            f"  {self.regime:<10} seed {self.seed}: dev F1 {scores} (start, warm start, end), "
            f"{mean(self.after).tasks} questions, {self.seconds / 60:.0f} min",
            f"    warm start {told(paired(self.before, self.warmed))}, learning "
            f"{told(paired(self.warmed, self.after))}, both {told(self.total)}",
            "    goal: an interval above 0, and twice the F1   " + ("reached" if self.reached else "short"),
        ]


def run(folder: str, seeds: Sequence[int], only: str = "", learn: int = PHASES["learn"]) -> list[Gain]:
    """Train and evaluate every regime, with the first of the seeds."""
    phases = {**PHASES, "learn": learn}
    results = []
    for regime in REGIMES:
        if only in regime:
            results.append(prove(f"{folder}/{regime}", regime, seeds[0], phases))
            print("\n".join(results[-1].lines()), flush=True)
    return results


def prove(
    folder: str,
    regime: str,
    seed: int,
    phases: Mapping[str, int] = PHASES,
    overrides: Sequence[str] = (),
) -> Gain:
    """Both phases of one regime; what is finished under `folder` is not done again."""
    started = time.monotonic()
    own = [
        *(*REGIMES[regime], f"run.seed={seed}", f"run.root={folder}", "tracking.uri=none"),
        *("evaluate.every=0", *overrides),
    ]
    example = EXAMPLES / "qa_learn.toml"
    before = _evaluated(assemble(load_settings(example, [*own, "run.name=before"])))
    shown = _demonstrated(
        load_settings(example, [*WARM, *own]), f"{folder}/demonstrations.jsonl", phases["warm"]
    )
    speak = ['models.team.engine="demonstrations"', f'models.team.engine_options={{file="{shown}"}}']
    warm = assemble(load_settings(example, [*WARM, *own, *speak, "run.name=warm"]))
    learn_on(warm, phases["warm"], F1_OF_PLAYS, _line)
    start = exported(warm, f"{folder}/start")
    learn = assemble(_from(load_settings(example, [*own, "run.name=learn"]), start))
    warmed = _evaluated(learn)
    curve = learn_on(learn, phases["learn"], F1_OF_PLAYS, _line)
    after = _evaluated(learn)
    return Gain(
        regime,
        seed,
        before,
        warmed,
        after,
        curve,
        time.monotonic() - started,
        {"warm": warm.settings.model_dump(mode="json"), "learn": learn.settings.model_dump(mode="json")},
    )


def mean(scores: Scores) -> Estimate:
    return estimate_mean(list(scores.values()))


def paired(first: Scores, second: Scores) -> Estimate:
    """The mean gain over tasks that both have, which must be the same ones."""
    assert first.keys() == second.keys()
    return estimate_mean([second[task] - first[task] for task in sorted(first)])


def told(gain: Estimate) -> str:
    return f"{gain.mean:+.3f} {gain.interval}"


def _demonstrated(settings: Settings, path: str, iterations: int) -> str:
    """The file of demonstrations of all tasks that the warm start will have."""
    if not Path(path).exists():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        workflow = {"use": settings.workflow.use, "options": settings.workflow.options}
        starts = range(0, iterations * WARM_TASKS, WARM_TASKS)
        count = write_demonstrations(Path(path), workflow, settings.run.seed, starts, WARM_TASKS)
        print(f"    {count} demonstrated turns of {iterations * WARM_TASKS} questions", flush=True)
    return path


def _line(finished: Finished) -> str:
    parts = {name: m.seconds for name, m in finished.manifests.items() if m.seconds >= 1}
    times = ", ".join(f"{name} {seconds:.0f}" for name, seconds in parts.items())
    f1 = finished.metrics[F1_OF_PLAYS]
    return f"iteration {finished.index}: F1 of plays {f1:.3f}, {finished.seconds:.0f} s ({times})"


def _evaluated(plan: Plan) -> Scores:
    """Each dev task's F1 as the team stands; what an earlier call found is loaded."""
    done = evaluated(plan)
    scores = scores_of(done, METRIC)
    print(
        f"    {plan.settings.run.name}: dev F1 after {done.index} iterations "
        f"{mean(scores).mean:.3f}, {done.seconds:.0f} s",
        flush=True,
    )
    return scores


def _from(settings: Settings, start: Mapping[str, str]) -> Settings:
    """The settings with each model's own starting point."""
    filled = assemble(settings).settings
    models = {
        model_id: section.model_copy(update={"checkpoint": start[model_id]})
        for model_id, section in filled.models.items()
    }
    return filled.model_copy(update={"models": models})
