"""The variants of an ablation: a file of settings, each a replay of the same turns."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.replays.labels import LABEL, checked_label
from pipeline.replays.plan import ReplayPlan, replay_plan
from pipeline.replays.settings import with_values
from pipeline.replays.source import Source
from pipeline.settings.reading import read_toml
from rewards.base import Reward
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from stages.base import Stage
from stages.reward import RewardStage
from workflows.errors import UsageError


def read_variants(path: str) -> dict[str, Mapping[str, Any]]:
    """`[variants.<name>]` tables of a file, by name and in their order.

    Raises:
        UsageError: no such file, not TOML, fewer than two variants, or a name that can't be a folder's.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"no file of variants {path!r} in {Path.cwd()}; pass --variants FILE.toml")
    raw = read_toml(file.read_bytes(), path)
    if alien := sorted(set(raw) - {"variants"}):
        raise UsageError(
            f"{path}: unknown table [{alien[0]}]; settings of a variant go under [variants.<name>]"
        )
    variants = raw.get("variants", {})
    if len(variants) < 2 or not all(isinstance(v, dict) for v in variants.values()):
        raise UsageError(
            f"{path}: an ablation compares two or more variants, each a [variants.<name>] table of settings; "
            f"the file has {', '.join(variants) or 'none'}; an empty table is the run as it is"
        )
    for name in variants:
        if not LABEL.fullmatch(name):
            raise UsageError(
                f"{path}: variant {name!r} names a folder: use letters, digits, '.', '_' and '-', at most 64"
            )
    return dict(variants)


def variant_plans(source: Source, path: str, label: str | None) -> dict[str, ReplayPlan]:
    """A replay for each variant of the file, under `<label>/<variant>`; label is by default the file's name.

    They stop at credit, or where GAE makes the advantages, there.

    Raises:
        UsageError: a variant that stored turns can't follow, named.
    """
    label = checked_label(label or Path(path).stem)
    plans = {}
    for name, values in read_variants(path).items():
        where = f"{path}: variant {name!r}"
        try:
            settings = with_values(source.run, values, where)
            until = "advantage" if settings.advantage.use == "gae" else "credit"
            plan = replay_plan(source, settings, until=until)
        except UsageError as error:
            text = str(error)
            raise UsageError(text if text.startswith(where) else f"{where}: {text}") from None
        plans[name] = replace(plan, label=f"{label}/{name}")
    return _with_shared_rewards(plans)


def _with_shared_rewards(plans: Mapping[str, ReplayPlan]) -> dict[str, ReplayPlan]:
    """The plans with one object for equal rewards, by which scoring knows that they are the same."""
    known: dict[bytes, Reward] = {}
    return {
        name: replace(plan, stages=tuple(_with_known(stage, known) for stage in plan.stages))
        for name, plan in plans.items()
    }


def _with_known(stage: Stage, known: dict[bytes, Reward]) -> Stage:
    if not isinstance(stage, RewardStage):
        return stage
    items: Sequence[WeightedReward] = [
        replace(item, reward=known.setdefault(pickle.dumps(item.reward), item.reward))
        for item in stage.rewards.items
    ]
    return replace(stage, rewards=WeightedRewards(tuple(items)))
