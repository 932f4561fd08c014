"""Do teams of a real model learn to read, by reinforcement alone? SmolLM2-135M, untrained, no demonstrations.

Two families of tasks that ship, `reading` (finder → answerer) and `reading_chains` (finder → follower →
answerer), under full sharing, separate models and adapters. The score is the exact match of greedy answers
to 300 held-out questions, failures as 0, at the start and at the last checkpoint: none is chosen. A gain is
paired by question, with Student's t interval at 95 %. What else could explain it is measured, too:

- *blind*: the best policy that does not read the question (one answer to all, or always the same place);
- *format*: the start among the replies that kept the format, so that learning the form alone is told apart;
- *resets*: the trained team with the weights that one role speaks with set back to the start, role by role.

A run takes about ten minutes on two cores that compute in bfloat16. With `--keep`, a second call goes on
where the first was stopped; `--only reading/full` runs what has that in its name.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from pipeline.plan.assemble import Plan, assemble
from pipeline.settings.reading import load_settings, parse_settings, read_settings
from pipeline.store.finished import Finished
from stages.evaluate import Estimate
from tests.learning.questions import Scores, mean, paired, told
from tests.learning.train import EXAMPLES, evaluated, exported, learn, scores_of
from workflows.data.tasks import load_tasks

METRIC: Final = "exact_match"
PLAYS: Final = f"reward/{METRIC}/mean"
START: Final = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class Family:
    """Tasks, the team that reads them, and how long it trains."""

    name: str
    roles: tuple[str, ...]
    iterations: int
    settings: tuple[str, ...]


FAMILIES: Final = (
    Family("reading", ("finder", "answerer"), 25, ()),
    Family(
        "reading_chains",
        ("finder", "follower", "answerer"),
        40,
        ('data.path="reading_chains"', "workflow.options={hops=2}"),
    ),
)
REGIMES: Final = {
    "full": ['sharing.regime="full"'],
    "separate": ['sharing.regime="separate"', "models.team.kv_cache_gib=0.25"],
    "adapters": [
        'sharing.regime="adapters"',
        "models.team.adapter={rank=16, alpha=32}",
        "ppo.learning_rate=3e-4",
    ],
}


@dataclass(frozen=True, slots=True)
class Read:
    """One run: greedy scores at the start and at the end by task, and what they are to be told apart from."""

    family: str
    regime: str
    seed: int
    before: Scores
    after: Scores
    in_format: Scores  # of the start, the tasks all of whose replies kept their format
    resets: Mapping[str, Scores]  # by role
    blind: float
    curve: Sequence[float]  # mean exact match of the plays of every iteration
    seconds: float
    settings: Mapping[str, Any]

    @property
    def gain(self) -> Estimate:
        return paired(self.before, self.after)

    @property
    def reached(self) -> bool:
        """The gain's interval is above 0, and the score's above the blind policies and the formed start."""
        score = mean(self.after).low
        formed = mean(self.in_format).mean if self.in_format else 0.0
        low = self.gain.low
        return low is not None and low > 0 and score is not None and score > max(self.blind, formed)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "gain": asdict(self.gain), "reached": self.reached}

    def lines(self) -> list[str]:
        """The scores, what they are told apart from, and the verdict."""
        formed = (
            f"{mean(self.in_format).mean:.3f} of {len(self.in_format)}" if self.in_format else "none kept it"
        )
        lost = ", ".join(
            f"{role} {paired(self.after, scores).mean:+.3f} {paired(self.after, scores).interval}"
            for role, scores in self.resets.items()
        )
        return [
            f"  {self.family}/{self.regime} seed {self.seed}: exact match {mean(self.before).mean:.3f} → "
            f"{mean(self.after).mean:.3f} {mean(self.after).interval}, gain {told(self.gain)}, "
            f"{len(self.curve)} iterations, {self.seconds / 60:.0f} min",
            f"    blind {self.blind:.3f}, start in format {formed}; set back to the start: {lost}   "
            + ("reached" if self.reached else "short"),
        ]


def run(folder: str, seeds: Sequence[int], only: str = "") -> list[Read]:
    """Train and evaluate every family under every regime and seed whose name has `only`."""
    results = []
    for seed in seeds:
        for family in FAMILIES:
            for regime in REGIMES:
                name = f"{family.name}/{regime}"
                if only and not f"{name}/{seed}".startswith(only):
                    continue
                results.append(prove(f"{folder}/{name}/{seed}", family, regime, seed))
                print("\n".join(results[-1].lines()), flush=True)
    return results


def prove(folder: str, family: Family, regime: str, seed: int, overrides: Sequence[str] = ()) -> Read:
    """Train one run; what is finished under `folder` is not done again."""
    started = time.monotonic()
    common = [
        *family.settings,
        *(f"run.seed={seed}", f'run.root="{folder}"', "tracking.uri=none", "evaluate.every=0"),
        *overrides,
    ]
    plan = assemble(load_settings(EXAMPLES / "reading.toml", [*common, *REGIMES[regime], "run.name=learn"]))
    before = _evaluated(plan)
    curve = learn(plan, family.iterations, PLAYS, _told)
    after = _evaluated(plan)
    trained = exported(plan, f"{folder}/trained", merge=regime == "adapters")
    model_of = {role: of.model_id for role, of in plan.resolved.role_plans.items()}
    resets = {
        role: scores_of(_evaluated(_with_reset(common, family, role, model_of, trained)), METRIC)
        for role in family.roles
    }
    return Read(
        family.name,
        regime,
        seed,
        scores_of(before, METRIC),
        scores_of(after, METRIC),
        _in_format(before),
        resets,
        blind_share(family.name),
        curve,
        time.monotonic() - started,
        plan.settings.model_dump(mode="json"),
    )


def blind_share(data: str) -> float:
    """The best share of dev that a policy which does not read the question can have right.

    It answers one place to all, the most frequent one, or takes the place of always the same sentence: of
    those that can hold an answer, which is generous.
    """
    tasks = load_tasks(data, split="dev").tasks.to_pylist()
    golds = [json.loads(task["gold"])["answers"][0] for task in tasks]
    texts = [json.loads(task["inputs"])["statements"] for task in tasks]
    of_one = max(Counter(golds).values())
    rooms = [[s for s in text if not data.endswith("chains") or s.startswith("The ")] for text in texts]
    at = Counter(
        place
        for sentences, gold in zip(rooms, golds, strict=True)
        for place, sentence in enumerate(sentences)
        if sentence.endswith(f" in {gold}.")
    )
    return max(of_one, *at.values()) / len(tasks)


def _told(finished: Finished) -> str:
    return f"iteration {finished.index}: plays {finished.metrics[PLAYS]:.3f}, {finished.seconds:.0f} s"


def _evaluated(plan: Plan) -> Finished:
    done = evaluated(plan)
    score = mean(scores_of(done, METRIC)).mean
    print(f"    {plan.settings.run.name}: {score:.3f} after {done.index} iterations", flush=True)
    return done


def _in_format(done: Finished) -> Scores:
    """The scores of the tasks all of whose replies kept their format."""
    turns = done.tables["turns"].read(["task_id", "format_valid"]).to_pylist()
    broken = {turn["task_id"] for turn in turns if turn["format_valid"] is False}
    return {task: score for task, score in scores_of(done, METRIC).items() if task not in broken}


def _with_reset(
    common: Sequence[str],
    family: Family,
    role: str,
    model_of: Mapping[str, str],
    trained: Mapping[str, str],
) -> Plan:
    """The team with a model for each role: that of `role` as it started, the others as they ended."""
    raw = read_settings(EXAMPLES / "reading.toml", [*common, f"run.name=without-{role}"])
    team = raw["models"].pop("team")
    del raw["sharing"]
    for name in family.roles:
        checkpoint = START if name == role else trained[model_of[name]]
        raw["models"][name] = {**team, "checkpoint": checkpoint, "kv_cache_gib": 0.25}
        raw.setdefault("roles", {}).setdefault(name, {})["model"] = name
    return assemble(parse_settings(raw))
