"""Credit in channels and replays of messages, from the settings: loaded, and checked against each other."""

from __future__ import annotations

import math
from typing import Any, Final

from pipeline.plan.resolve import Resolved
from rewards.base import Credit, CreditHooks
from rewards.channels.base import ChannelHooks, Mix, WeightedChannel
from rewards.channels.loading import load_channel
from rewards.channels.paths import Shapley
from stages.base import Stage
from stages.counterfactual import CounterfactualStage
from stages.messages import MessagesStage, ReplayRewardStage
from stages.players.choices import Choosing, ops_of
from stages.reward import RewardStage
from workflows.errors import UsageError
from workflows.hooks import hooks_of
from workflows.plugins import load_function, source_hash
from workflows.vocabulary import Op


def channel_mix(resolved: Resolved) -> Mix:
    """The channels of [[credit.channels]] with their names and weights; none where there are none.

    Raises:
        UsageError: a channel that can't be loaded, two of one name, or one that has no effect or no data
        here.
    """
    sections = resolved.credit.channels
    mix: list[WeightedChannel] = []
    for section in sections:
        where = f"[[credit.channels]] {section.label!r}"
        if section.label in [weighted.name for weighted in mix]:
            raise UsageError(f"two channels are named {section.label!r}; give one of them another name")
        if not math.isfinite(section.weight):
            raise UsageError(f"{where}: weight = {section.weight}; use a finite number")
        channel = load_channel(section.use, section.options)
        if missing := [op for op in hooks_of(channel, ChannelHooks).needs_ops if op not in _ops(resolved)]:
            have = ", ".join(_ops(resolved)) or "nothing"
            raise UsageError(
                f"{where} reads what {missing[0]} makes of messages, and [counterfactuals] ops replays "
                f"{have}; "
                f'add "{missing[0]}" to counterfactuals.ops'
            )
        if isinstance(channel, Shapley) and not (resolved.workflow.branch_steps and resolved.workflow.task):
            raise UsageError(
                f"{where} needs to know which branches are right, and workflow "
                f"{resolved.workflow_section.use!r} declares no branch_steps and task; use another channel, "
                "or a workflow such as voting"
            )
        mix.append(WeightedChannel(section.label, section.weight, channel))
    if mix:
        _check_use(resolved, mix)
    return tuple(mix)


def has_spans(mix: Mix) -> bool:
    """Whether some channel's credit may count on some tokens of a turn only."""
    return any(hooks_of(weighted.channel, ChannelHooks).has_spans for weighted in mix)


def _check_use(resolved: Resolved, mix: Mix) -> None:
    if not any(weighted.weight for weighted in mix):
        raise UsageError(
            "every channel of [[credit.channels]] has weight 0, so nothing would be learned; give one a "
            "weight"
        )
    if resolved.advantage.use == "gae":
        raise UsageError(
            '[[credit.channels]] has no effect with [advantage] use = "gae", which makes advantages of a '
            'critic\'s values; use [advantage] use = "from_credit", or remove the channels'
        )
    for model in resolved.trained:
        if model.ppo.loss == "supervised":
            raise UsageError(
                f"model {model.model_id!r}: the supervised loss imitates turns by weights that are never "
                "negative, and [[credit.channels]] gives others; remove the channels, or use another loss"
            )


def replay_stages(resolved: Resolved, reward: RewardStage) -> list[Stage]:
    """The pure stages after replays of messages; none where there are no replays."""
    section = resolved.counterfactuals
    games = Op.SHAPLEY in section.ops
    return [ReplayRewardStage(reward), MessagesStage(section.cheap, games)] if section.ops else []


def replays(resolved: Resolved, method: Credit) -> list[Stage]:
    """The stage that replays messages; none where the settings ask for no replays.

    Raises:
        UsageError: an op, a role or a function that can't be.
    """
    section = resolved.counterfactuals
    if not section.ops:
        return []
    for role in section.roles:
        if role not in resolved.workflow.roles:
            raise UsageError(
                f"counterfactuals.roles names {role!r}, which the workflow does not have; it has: "
                f"{', '.join(resolved.workflow.roles)}"
            )
    if hooks_of(method, CreditHooks).needs_greedy and resolved.credit.channels:
        raise UsageError(
            f'credit.use = "{resolved.credit.use}" compares with greedy plays, which have no replays; use '
            "another credit.use with [counterfactuals]"
        )
    if section.unit == "act" and getattr(resolved.workflow, "spawning", None) is None:
        raise UsageError(
            f'counterfactuals.unit = "act" has no effect: workflow {resolved.workflow_section.use!r} spawns '
            'nobody, so replies hand over nothing by acts; use unit = "reply"'
        )
    choosing = Choosing(
        ops=ops_of(",".join(section.ops)),
        alternatives=section.alternatives,
        roles=frozenset(section.roles),
        tokens=section.tokens,
        seed=resolved.run.seed,
        placeholder=section.placeholder,
        paraphrase=None if section.paraphrase is None else load_function(section.paraphrase, "paraphrase"),
        permutations=section.permutations,
        acts=section.unit == "act",
    )
    stall = resolved.cluster.player_call_seconds
    return [CounterfactualStage(choosing, stall_seconds=stall, within=True, explore=section.explore)]


def channels_fingerprint(resolved: Resolved) -> dict[str, Any]:
    """What channels depend on beside the settings of [credit]: the sources of one's own."""
    uses = [section.use for section in resolved.credit.channels]
    sources = {use: hashed for use in uses if (hashed := source_hash(use)) is not None}
    return {"channel_sources": sources} if sources else {}


def replays_fingerprint(resolved: Resolved, play: dict[str, Any]) -> dict[str, Any]:
    """What replays depend on beside the tables: the team, and what is replaced; `play` is the rollout's."""
    section = resolved.counterfactuals
    source = None if section.paraphrase is None else source_hash(section.paraphrase)
    return {"rollout": play, "counterfactuals": section.fingerprint(), "paraphrase_source": source}


def check_counterfactuals(resolved: Resolved) -> None:
    """Refuse keys of [counterfactuals] that are set where they have no effect.

    Raises:
        UsageError: the first such key, and what it would act with.
    """
    section = resolved.counterfactuals
    ops = _ops(resolved)
    default = type(section)()
    for key, value in section:
        if key == "ops" or value == getattr(default, key):
            continue
        if not ops:
            raise UsageError(
                f"counterfactuals.{key} = {value!r} has no effect without counterfactuals.ops; remove it, or "
                'set ops, such as ["resample"]'
            )
        needed = _NEEDED.get(key)
        if needed is not None and not any(op in ops for op in needed):
            raise UsageError(
                f"counterfactuals.{key} = {value!r} has no effect without {' or '.join(needed)} among "
                "counterfactuals.ops; remove it, or add that"
            )
        if key == "explore" and section.tokens is None:
            raise UsageError(
                f"counterfactuals.explore = {value!r} has no effect without counterfactuals.tokens, where "
                "every message is replayed; remove it, or set tokens"
            )


_NEEDED: Final = {
    "alternatives": (Op.RESAMPLE,),
    "paraphrase": (Op.PARAPHRASE,),
    "placeholder": (Op.NULL, Op.SHAPLEY),
    "permutations": (Op.SHAPLEY,),
}
"""Keys of [counterfactuals] that act with some ops only."""


def _ops(resolved: Resolved) -> list[str]:
    return list(resolved.counterfactuals.ops)
