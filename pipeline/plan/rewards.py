"""The rewards of a plan, loaded and checked, with their weights and whom they go to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pipeline.plan.resolve import Resolved
from pipeline.settings.schema import RewardSection
from rewards.base import RewardHooks
from rewards.loading import load_reward, reward_takes
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from stages.reward_model.model import read_model
from stages.reward_model.scorer import ModelScorer
from workflows.errors import UsageError, did_you_mean
from workflows.hooks import hooks_of
from workflows.script import AnyWorkflow
from workflows.tools.code.isolation import Sandbox


def weighted_rewards(
    sections: Sequence[RewardSection],
    workflow: AnyWorkflow,
    format_weights: Mapping[str, float],
    sandbox: Sandbox,
    root: str = "runs",
) -> WeightedRewards:
    """Rewards with their weights; what the settings leave out of their options comes from the team.

    Args:
        sections: [[rewards]] or [[evaluate.rewards]].
        workflow: gives the step whose answer is graded.
        format_weights: by role, for the reward `format`.
        sandbox: for rewards that run programs.
        root: of runs, where reward models are looked for by name.

    Raises:
        UsageError: a reward that can't be loaded or is not ready, or a role or step that the workflow does
            not have.
    """
    items = []
    for section in sections:
        name, options = section.label, dict(section.options)
        if section.use == "format":
            options.setdefault("weights", dict(format_weights))
        if workflow.answer_step and reward_takes(section.use, "answer_step"):
            options.setdefault("answer_step", workflow.answer_step)
        for option in ("branch_steps", "verdict_step", "task"):
            if (declared := getattr(workflow, option)) and reward_takes(section.use, option):
                options.setdefault(option, declared)
        if reward_takes(section.use, "sandbox"):
            options.setdefault("sandbox", sandbox)
        if reads_model(section.use):
            options.setdefault("scorer", _scorer(name, options, root))
        roles = _named(f"reward {name!r}: roles", section.roles, workflow.roles)
        steps = _named(f"reward {name!r}: steps", section.steps, workflow.order)
        reward = load_reward(section.use, options)
        hooks_of(reward, RewardHooks).check_ready()
        items.append(WeightedReward(name, section.weight, reward, roles, steps))
    return WeightedRewards(tuple(items))


def rewards_of(sections: Sequence[RewardSection], resolved: Resolved) -> WeightedRewards:
    """`weighted_rewards` of resolved settings."""
    return weighted_rewards(
        sections, resolved.workflow, resolved.format_weights, resolved.sandbox, resolved.run.root
    )


def model_folder(name: str, root: str) -> str:
    """The folder or URL of a reward model: a path as it is, a bare name under the root of runs."""
    return name.rstrip("/") if "/" in name else f"{root.rstrip('/')}/{name}"


def reads_model(use: str) -> bool:
    """Whether a reward pays by a reward model: it takes its name, and what computes its scores."""
    return reward_takes(use, "scorer") and reward_takes(use, "model")


def reward_model_hashes(sections: Sequence[RewardSection], root: str) -> dict[str, str]:
    """By the name of each reward that reads a reward model, a hash of all that its scores depend on."""
    return {
        section.label: read_model(model_folder(str(section.options["model"]), root)).hash
        for section in sections
        if reads_model(section.use) and "model" in section.options
    }


def _scorer(name: str, options: Mapping[str, Any], root: str) -> ModelScorer:
    """What computes the scores of a reward model.

    Raises:
        UsageError: no model is named, or there is none.
    """
    if not isinstance(options.get("model"), str):
        raise UsageError(
            f'reward {name!r} names no reward model; set options = {{ model = "…" }} to what '
            "`reward-model train --out` wrote"
        )
    model = read_model(model_folder(options["model"], root))
    return ModelScorer(model, options.get("device_gpus", 0.0), options.get("workers", 1))


def check_returns(sections: Sequence[RewardSection], workflow: AnyWorkflow) -> None:
    """Refuse a choice of the round whose answer is given where no reward reads the answer.

    Raises:
        UsageError: naming the setting.
    """
    returns = getattr(workflow, "returns", "last")
    if returns == "last" or any(reward_takes(section.use, "answer_step") for section in sections):
        return
    names = ", ".join(section.label for section in sections)
    raise UsageError(
        f'workflow.returns = "{returns}" has no effect: none of the rewards ({names}) reads the answer of an '
        "episode, as exact_match and team_right do; add one, or remove it"
    )


def measured_sections(sections: Sequence[RewardSection], workflow: AnyWorkflow) -> list[RewardSection]:
    """The rewards of a run, and of weight 0 what is always stored of a team whose branches are graded.

    These are the own correctness of every branch and of the team's answer, and what verdicts say
    (`rewards.team_answers`); one that the settings have is not added again.
    """
    if not (workflow.task and workflow.branch_steps):
        return [*sections]
    names = ["branch_right", "final_right", *(["satisfied"] if workflow.verdict_step else [])]
    taken = {section.label for section in sections} | {section.use for section in sections}
    added = [
        RewardSection(use=name, weight=0.0, options={"strict": False}) for name in names if name not in taken
    ]
    return [*sections, *added]


def _named(what: str, names: Sequence[str] | None, known: Collection[str]) -> frozenset[str] | None:
    """Names of the workflow that settings single out; None: all of them."""
    if names is None:
        return None
    if not names:
        raise UsageError(f"{what} is an empty list, so no turn would get it; name some, or remove the key")
    for name in names:
        if name not in known:
            raise UsageError(
                f"{what} names {name!r}, which the workflow does not have{did_you_mean(name, known)}; "
                f"it has: {', '.join(known)}"
            )
    return frozenset(names)
