"""tasks, turns, episodes → evaluation: the metrics of every episode, failures among them; no GPU.

What an evaluation says is the mean over *all* episodes that were asked for. An episode that failed
counts as 0 and is counted apart, so a sampler that breaks on hard tasks can't look better for it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Final

import pyarrow as pa

from rewards.scoring.joined import EPISODES_SEEN, TASKS_SEEN, TURNS_SEEN
from rewards.scoring.opened import opened
from rewards.scoring.reasons import kind_of
from rewards.scoring.score import NO_FAILURES, score_turns
from rewards.scoring.weighted import WeightedRewards
from stages.base import Account, Context, StageResult
from stages.lease import Lease
from stages.parts import map_parts
from stages.tables.parquet import TableRef, TableSink, aligned_parts
from workflows.trajectory import EPISODES, EVALUATION
from workflows.vocabulary import NOT_THE_POLICYS_DOING

CONFIDENCE: Final = 0.95
_EPISODES: Final = pa.schema([*EPISODES_SEEN, EPISODES.field("sample")])


@dataclass(frozen=True, slots=True)
class EvaluateStage:
    """Score every episode by each metric. Frozen roles count like trained ones."""

    metrics: WeightedRewards  # weights are not used: each metric stands by itself

    name: str = "evaluate"
    folder: str = "evaluation"
    lease: Lease = "none"

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {"tasks": TASKS_SEEN, "turns": TURNS_SEEN, "episodes": _EPISODES}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {"evaluation": EVALUATION}

    @property
    def places(self) -> dict[str, str]:
        return {"evaluation": ""}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        tables = {name: inputs[name] for name in self.inputs}
        indices = aligned_parts(tables)
        context.progress.start("evaluate", len(indices), "part")
        with opened([self.metrics]) as (metrics,):
            receipts = map_parts(
                evaluate_part,
                indices,
                on_done=lambda _: context.progress.advance(),
                tables=tables,
                sink=outputs["evaluation"],
                metrics=metrics,
            )
        context.progress.finish()
        failed: Counter[str] = Counter()
        for receipt in receipts:
            failed.update(receipt["failed"])
        episodes = sum(r["part"].rows for r in receipts)
        notes = [f"{n} episodes count as 0: {reason}" for reason, n in failed.most_common(3)]
        account = Account("episodes to evaluation", "episode", inputs["episodes"].rows, episodes)
        counts = {"episodes": float(episodes), "episodes_failed": float(failed.total())}
        return StageResult({"evaluation": [r["part"] for r in receipts]}, [account], counts, notes)


def evaluate_part(
    index: int, tables: Mapping[str, TableRef], sink: TableSink, metrics: WeightedRewards
) -> dict[str, Any]:
    """Score part `index` and write it; the receipt has its part and why episodes failed."""
    tasks, turns, episodes = (
        tables[name].read_part(index, schema.names)
        for name, schema in (("tasks", TASKS_SEEN), ("turns", TURNS_SEEN), ("episodes", _EPISODES))
    )
    scored = evaluate(tasks, turns, episodes, metrics)
    failed = Counter(kind_of(reason) for reason in scored["failed"].to_pylist() if reason is not None)
    return {"part": sink.write_part(index, scored), "failed": failed}


def evaluate(tasks: pa.Table, turns: pa.Table, episodes: pa.Table, metrics: WeightedRewards) -> pa.Table:
    """One row of `EVALUATION` for every episode, sorted by id.

    The value of a metric is the mean over the episode's llm turns that have one: an outcome that all
    turns share is that outcome. An episode without a value of some metric has failed, and says why.
    """
    position = turns.schema.get_field_index("trainable")
    everyone = turns.set_column(position, "trainable", pa.array([True] * turns.num_rows, pa.bool_()))
    rewards = score_turns(tasks, everyone, episodes.select(EPISODES_SEEN.names), metrics)
    values: dict[str, dict[str, list[float]]] = {}
    reasons: dict[str, str] = {}
    for row in rewards.select(["episode_id", "reward_parts", "no_reward_reason"]).to_pylist():
        found = values.setdefault(row["episode_id"], {})
        for part in row["reward_parts"]:
            if part["value"] is not None:
                found.setdefault(part["name"], []).append(part["value"])
        if (reason := row["no_reward_reason"]) and reason not in NO_FAILURES:
            reasons.setdefault(row["episode_id"], reason)
    rows = []
    for episode in sorted(episodes.to_pylist(), key=lambda e: e["episode_id"]):
        episode_id = episode["episode_id"]
        found = values.get(episode_id, {})
        failed = reasons.get(episode_id)
        if failed is None and episode["status"] in NOT_THE_POLICYS_DOING:
            failed = f"episode {episode['status']}"
        if failed:
            found = {}
        elif missing := [name for name in metrics.names if name not in found]:
            failed = f"no value of {', '.join(missing)}"
        rows.append(
            {
                "task_id": episode["task_id"],
                "sample": episode["sample"],
                "episode_id": episode_id,
                "status": episode["status"],
                "failed": failed,
                "values": [
                    {"name": name, "value": fmean(found[name]) if name in found else None}
                    for name in metrics.names
                ],
            }
        )
    return pa.Table.from_pylist(rows, schema=EVALUATION)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks with its confidence interval; the interval is None for a single task."""

    mean: float
    low: float | None
    high: float | None
    tasks: int

    @property
    def interval(self) -> str:
        return "" if self.low is None else f"[{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Score:
    """One metric of an evaluation. `pass_at` maps k to pass@k: 1, and more where there are more samples.

    `by_source` has the same of the tasks of each source, where there are several.
    """

    name: str
    estimate: Estimate
    pass_at: Mapping[int, float] = field(default_factory=dict)
    by_source: Mapping[str, Score] = field(default_factory=dict)


def sources_of(tasks: pa.Table) -> dict[str, str]:
    """By task, its source."""
    return dict(zip(tasks["task_id"].to_pylist(), tasks["source"].to_pylist(), strict=True))


def summarise(
    evaluation: pa.Table,
    names: Sequence[str],
    solved_at: float = 1.0,
    sources: Mapping[str, str] | None = None,
) -> list[Score]:
    """The scores of an evaluation: means over tasks of the mean over a task's samples.

    Failed episodes count as 0. The interval is over tasks, at 95 %: samples of one task are not independent,
    tasks are. It is Wilson's where all values are from 0 to 1 (`estimate_share`), else Student's t. With n
    samples of which c are solved (value ≥ `solved_at`), pass@k is the unbiased 1 - C(n-c, k) / C(n, k) of
    arXiv:2107.03374, averaged over tasks.

    Args:
        evaluation: the table of that name.
        names: of the metrics.
        solved_at: see above.
        sources: by task, where it is from; where there are several, scores have those of each.
    """
    by_task: dict[str, dict[str, list[float]]] = {}
    for row in evaluation.to_pylist():
        values = {v["name"]: v["value"] for v in row["values"]}
        of_task = by_task.setdefault(row["task_id"], {name: [] for name in names})
        for name in names:
            of_task[name].append(values.get(name) or 0.0)
    groups: dict[str, list[str]] = {}
    for task in sorted(by_task):
        groups.setdefault((sources or {}).get(task) or "", []).append(task)

    def score(name: str, tasks: Sequence[str]) -> Score:
        samples = [by_task[task][name] for task in tasks]
        estimate = estimate_score([math.fsum(s) / len(s) for s in samples])
        return Score(name, estimate, _pass_at(samples, solved_at))

    scores = []
    for name in names:
        apart = {source: score(name, groups[source]) for source in sorted(groups)} if len(groups) > 1 else {}
        scores.append(replace(score(name, sorted(by_task)), by_source=apart))
    return scores


def estimate_mean(values: Sequence[float]) -> Estimate:
    """Mean and 95 % interval (Student's t) of independent values.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("an estimate needs at least one value")
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return Estimate(mean, None, None, n)
    half = students_t(n - 1) * statistics.stdev(values) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def estimate_score(values: Sequence[float], *, of_means: bool = False) -> Estimate:
    """Mean and 95 % interval of scores: inside 0 to 1 where all values are, else Student's t.

    Args:
        of_means: each value is itself a mean, as that of a run over its tasks. Equal ones then say that runs
            do not differ; equal answers, right or wrong, say less (three of three may be luck).

    Raises:
        ValueError: no values.
    """
    share = bool(values) and all(0 <= value <= 1 for value in values)
    share = share and not (of_means and len(set(values)) == 1)
    return estimate_share(values) if share else estimate_mean(values)


def estimate_share(values: Sequence[float]) -> Estimate:
    """Mean and 95 % interval of independent values from 0 to 1, which the interval never leaves.

    It is Wilson's score interval (J. Am. Stat. Assoc. 22, 1927) with Student's t in place of the normal
    quantile. Values between 0 and 1 vary less than yes and no of the same mean p: each counts as
    p(1 - p) / s² values, s² being their variance.

    Raises:
        ValueError: no values.
    """
    plain = estimate_mean(values)
    if plain.low is None:
        return plain
    p, variance = plain.mean, statistics.variance(values)
    n = plain.tasks * (p * (1 - p) / variance if variance > 0 and 0 < p < 1 else 1.0)
    c = students_t(plain.tasks - 1)
    middle = (p + c * c / (2 * n)) / (1 + c * c / n)
    half = c / (1 + c * c / n) * math.sqrt(p * (1 - p) / n + c * c / (4 * n * n))
    return Estimate(p, max(0.0, min(middle - half, p)), min(1.0, max(middle + half, p)), plain.tasks)


def students_t(freedom: float) -> float:
    """How many standard errors half of an interval of `CONFIDENCE` is, by degrees of freedom."""
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, freedom))


def _pass_at(samples: Sequence[Sequence[float]], solved_at: float) -> dict[int, float]:
    n = min(map(len, samples), default=0)
    if n < 1:
        return {}
    ks = sorted({1, *(2**i for i in range(1, n.bit_length()) if 2**i <= n), n})
    solved = [(len(s), sum(value >= solved_at for value in s)) for s in samples]
    return {
        k: math.fsum(1 - math.comb(m - c, k) / math.comb(m, k) for m, c in solved) / len(solved) for k in ks
    }
