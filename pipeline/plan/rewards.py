"""The rewards of a plan, loaded and checked, with their weights and whom they go to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pipeline.settings.schema import RewardSection
from rewards.base import RewardHooks
from rewards.loading import load_reward, reward_takes
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from workflows.errors import UsageError, did_you_mean
from workflows.hooks import hooks_of
from workflows.script import AnyWorkflow
from workflows.tools.code.isolation import Sandbox


def weighted_rewards(
    sections: Sequence[RewardSection],
    workflow: AnyWorkflow,
    format_weights: Mapping[str, float],
    sandbox: Sandbox,
) -> WeightedRewards:
    """Rewards with their weights; what the settings leave out of their options comes from the team.

    Args:
        sections: [[rewards]] or [[evaluate.rewards]].
        workflow: gives the step whose answer is graded.
        format_weights: by role, for the reward `format`.
        sandbox: for rewards that run programs.

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
        roles = _named(f"reward {name!r}: roles", section.roles, workflow.roles)
        steps = _named(f"reward {name!r}: steps", section.steps, workflow.order)
        reward = load_reward(section.use, options)
        hooks_of(reward, RewardHooks).check_ready()
        items.append(WeightedReward(name, section.weight, reward, roles, steps))
    return WeightedRewards(tuple(items))


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
