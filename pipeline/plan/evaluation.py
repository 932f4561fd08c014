"""What evaluations of a team play, how they sample, and what their stages depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline.plan.fingerprints import rewards_fingerprint, team_fingerprint
from pipeline.plan.resolve import Resolved
from pipeline.settings.schema import EvaluateSection, RewardSection
from rewards.scoring.weighted import WeightedRewards
from stages.base import Stage
from stages.evaluate import EvaluateStage
from stages.players.actor import PlayerSpec
from stages.rollout import RolloutStage
from stages.sample import SampleStage
from workflows.data.tasks import LoadedTasks, choose
from workflows.errors import UsageError, did_you_mean
from workflows.trajectory import seed_for

NOT_METRICS = ("format", "length")  # terms of a reward that say nothing about how well a team does


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """All that evaluations of a run need, checked."""

    split: str
    num_tasks: int
    metrics: WeightedRewards
    best: str  # the metric that chooses the best checkpoint
    solved_at: float
    stages: tuple[Stage, ...]
    fingerprints: Mapping[str, Mapping[str, Any]]
    player_spec: PlayerSpec


def evaluation_plan(
    resolved: Resolved, metrics: WeightedRewards, tasks: LoadedTasks, players: PlayerSpec
) -> EvaluationPlan:
    """Check [evaluate] against the tasks and the metrics (of `metric_sections`).

    Raises:
        UsageError: no such split or metric, more tasks than there are, or several greedy samples.
    """
    section, rollout, seed = resolved.evaluate, resolved.rollout, resolved.run.seed
    if section.samples > 1 and section.temperature == 0:
        raise UsageError(
            f"[evaluate] samples = {section.samples} at temperature 0 would play {section.samples} equal "
            "episodes of every task; set evaluate.temperature above 0, or samples = 1"
        )
    if section.best is not None and section.best not in metrics.names:
        raise UsageError(
            f"[evaluate] best = {section.best!r} is not a metric{did_you_mean(section.best, metrics.names)}; "
            f"the metrics are: {', '.join(metrics.names)}"
        )
    count = section.tasks or tasks.tasks["split"].to_pylist().count(section.split) or 1
    choose(tasks.tasks, section.split, seed, 0, count)
    roles = {name: replace(role, temperature=section.temperature) for name, role in players.roles.items()}
    stages = (
        SampleStage(
            tasks=tasks.tasks,
            split=section.split,
            seed=seed,
            tasks_per_iteration=count,
            tasks_per_shard=rollout.tasks_per_shard,
            always_first=True,
            remarks=tuple(tasks.remarks),
        ),
        RolloutStage(
            section.samples,
            rollout.max_in_flight,
            section.max_failed_share,
            stall_seconds=resolved.cluster.player_call_seconds,
        ),
        EvaluateStage(metrics),
    )
    return EvaluationPlan(
        split=section.split,
        num_tasks=count,
        metrics=metrics,
        best=section.best or metrics.names[0],
        solved_at=section.solved_at,
        stages=stages,
        fingerprints=_fingerprints(resolved, tasks, players),
        # other seeds than training's, so that a task that is in both is not sampled alike
        player_spec=replace(players, roles=roles, run_seed=seed_for(seed, "evaluate")),
    )


def metric_sections(evaluate: EvaluateSection, rewards: Sequence[RewardSection]) -> tuple[RewardSection, ...]:
    """The rewards that evaluate: those of [evaluate], or the run's own without its regularisers.

    Raises:
        UsageError: nothing is left that says how well a team does.
    """
    if evaluate.rewards:
        return evaluate.rewards
    sections = tuple(reward for reward in rewards if reward.use not in NOT_METRICS)
    if not sections:
        raise UsageError(
            f"[[rewards]] has {', '.join(reward.use for reward in rewards) or 'no entry'}, which do not say "
            "how well a team does, so there is nothing to evaluate by; add an [[evaluate.rewards]] section"
        )
    return sections


def _fingerprints(resolved: Resolved, tasks: LoadedTasks, players: PlayerSpec) -> dict[str, dict[str, Any]]:
    section = resolved.evaluate
    return {
        "sample": {
            "source": tasks.source,
            "rows": tasks.fingerprint,
            "split": section.split,
            "tasks": section.tasks,
            "seed": resolved.run.seed,
            "shard": resolved.rollout.tasks_per_shard,
        },
        "rollout": {
            **team_fingerprint(resolved),
            "samples": section.samples,
            "temperature": section.temperature,
            "limits": asdict(players.limits),
        },
        "evaluate": rewards_fingerprint(metric_sections(section, resolved.rewards)),
    }
