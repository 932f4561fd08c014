"""What evaluations of a team play, how they sample, and what their stages depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline.plan.fingerprints import rewards_fingerprint, team_fingerprint
from pipeline.plan.resolve import Resolved
from pipeline.settings.schema import EvaluateSection, RewardSection
from rewards.ballots import BallotBox
from rewards.scoring.weighted import WeightedRewards
from stages.base import Stage
from stages.evaluate import EvaluateStage
from stages.players.actor import PlayerSpec
from stages.rollout import RolloutStage
from stages.sample import SampleStage
from stages.vote import VoteStage
from workflows.data.tasks import LoadedTasks, choose
from workflows.errors import UsageError, did_you_mean
from workflows.trajectory import seed_for

NOT_METRICS = ("format", "length")  # terms of a reward that say nothing about how well a team does


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """All that evaluations of a run need, checked. `also` are evaluations that choose no checkpoint."""

    split: str
    num_tasks: int
    metrics: WeightedRewards
    best: str  # the metric that chooses the best checkpoint
    best_by: str  # which number of it: "mean" or "solved"
    solved_at: float
    stages: tuple[Stage, ...]
    fingerprints: Mapping[str, Mapping[str, Any]]
    player_spec: PlayerSpec
    label: str  # its folder, and its name in tables: the split, and for a vote `<split>.vote`
    vote_tokens: int | None = None  # of a vote: its budget of sampled tokens a task
    always: bool = True  # whether it is played each time, or for the first, the best and the last weights
    also: tuple[EvaluationPlan, ...] = ()

    @property
    def is_vote(self) -> bool:
        return any(isinstance(stage, VoteStage) for stage in self.stages)


@dataclass(frozen=True, slots=True)
class _Plays:
    """Which tasks one evaluation plays, how often and how."""

    split: str
    tasks: int | None
    samples: int
    temperature: float
    always: bool = True


def evaluation_plan(
    resolved: Resolved, metrics: WeightedRewards, tasks: LoadedTasks, players: PlayerSpec
) -> EvaluationPlan:
    """Check [evaluate] against the tasks and the metrics (of `metric_sections`).

    Raises:
        UsageError: no such split or metric, more tasks than there are, several greedy samples, or a test
            split that chooses.
    """
    section = resolved.evaluate
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
    plays = _Plays(section.split, section.tasks, section.samples, section.temperature)
    plan = _one(resolved, metrics, tasks, players, plays)
    also = []
    tested = plays
    if section.test is not None:
        if section.test.split == section.split:
            raise UsageError(
                f"evaluate.test.split = {section.test.split!r} is evaluate.split too, which chooses the best "
                "checkpoint; name another split, or leave evaluate.test out"
            )
        always = section.test.when == "always"
        tested = replace(plays, split=section.test.split, tasks=section.test.tasks, always=always)
        also.append(_one(resolved, metrics, tasks, players, tested))
    if section.vote is not None:
        voting = replace(tested, samples=section.vote.answers, temperature=section.vote.temperature)
        voted = _one(resolved, metrics, tasks, players, replace(voting, always=False), _box(resolved))
        also.append(replace(voted, vote_tokens=section.vote.tokens))
    return replace(plan, also=tuple(also))


def _box(resolved: Resolved) -> BallotBox:
    """Reads the ballots of the workflow's plays.

    Raises:
        UsageError: no step gives the team's answer, or programs would need a sandbox that is missing.
    """
    workflow = resolved.workflow
    if workflow.answer_step is None:
        raise UsageError(
            f"[evaluate] vote needs a step that gives the team's answer, and workflow {workflow.name!r} "
            "declares no answer_step; declare it, or leave evaluate.vote out"
        )
    box = BallotBox(workflow.answer_step, workflow.task, resolved.sandbox)
    box.check_ready()
    return box


def _one(
    resolved: Resolved,
    metrics: WeightedRewards,
    tasks: LoadedTasks,
    players: PlayerSpec,
    plays: _Plays,
    box: BallotBox | None = None,
) -> EvaluationPlan:
    section, rollout, seed = resolved.evaluate, resolved.rollout, resolved.run.seed
    count = plays.tasks or tasks.tasks["split"].to_pylist().count(plays.split) or 1
    choose(tasks.tasks, plays.split, seed, 0, count)
    sampling = {"temperature": plays.temperature, **sampling_of(section)}
    roles = {name: replace(role, **sampling) for name, role in players.roles.items()}
    stages: tuple[Stage, ...] = (
        SampleStage(
            tasks=tasks.tasks,
            split=plays.split,
            seed=seed,
            tasks_per_iteration=count,
            tasks_per_shard=rollout.tasks_per_shard,
            always_first=True,
            remarks=tuple(tasks.remarks),
        ),
        RolloutStage(
            plays.samples,
            rollout.in_flight,
            section.max_failed_share,
            stall_seconds=resolved.cluster.player_call_seconds,
        ),
        EvaluateStage(metrics),
    )
    if box is not None:
        stages = (*stages, VoteStage(box))
    return EvaluationPlan(
        split=plays.split,
        num_tasks=count,
        metrics=metrics,
        best=section.best or metrics.names[0],
        best_by=section.best_by,
        solved_at=section.solved_at,
        stages=stages,
        fingerprints=_fingerprints(resolved, tasks, players, plays, box),
        # other seeds than training's, so that a task that is in both is not sampled alike
        player_spec=replace(
            players, roles=roles, run_seed=seed_for(seed, "vote" if box else "evaluate"), hold_stops=False
        ),
        label=f"{plays.split}.vote" if box else plays.split,
        always=plays.always,
    )


def sampling_of(section: EvaluateSection) -> dict[str, Any]:
    """The settings of sampling that [evaluate] has of its own beside the temperature."""
    values = {name: getattr(section, name) for name in ("top_p", "top_k", "min_p")}
    return {name: value for name, value in values.items() if value is not None}


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


def _fingerprints(
    resolved: Resolved, tasks: LoadedTasks, players: PlayerSpec, plays: _Plays, box: BallotBox | None
) -> dict[str, dict[str, Any]]:
    fingerprints: dict[str, dict[str, Any]] = {
        "sample": {
            "source": tasks.source,
            "rows": tasks.fingerprint,
            "split": plays.split,
            "tasks": plays.tasks,
            "seed": resolved.run.seed,
            "shard": resolved.rollout.tasks_per_shard,
        },
        "rollout": {
            **team_fingerprint(resolved),
            "samples": plays.samples,
            "temperature": plays.temperature,
            **sampling_of(resolved.evaluate),
            "limits": asdict(players.limits),
        },
        "evaluate": rewards_fingerprint(
            metric_sections(resolved.evaluate, resolved.rewards), resolved.run.root
        ),
    }
    return fingerprints | ({"vote": {"step": box.answer_step, "task": box.task}} if box else {})
