"""The plan of counterfactual plays of a stored run: which replies, with which weights, and where they go.

<run>/counterfactuals/<label>/
  counterfactual.json             what was asked for
  00000/ counterfactual/{turns,episodes,played_interventions} rewards/ interventions/
         counterfactual/played_coalitions interventions/coalitions       of shapley: sets of inputs
  00000/blocks/01/…               of a block of an iteration
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from pipeline.plan.assemble import Plan, assemble, credit_method, credited_stages
from pipeline.replays.labels import check_held, checked_label
from pipeline.replays.settings import overridden
from pipeline.replays.source import Source
from pipeline.store.differences import dump
from pipeline.store.finished import Finished
from pipeline.store.folder import Folder
from pipeline.store.initial_weights import folders_of, refuse_others
from pipeline.store.place import IterationStore
from stages.base import BASE, Stage
from stages.counterfactual import CounterfactualStage
from stages.effects import EffectsStage
from stages.players.choices import PERMUTATIONS, Choosing, ops_of
from stages.reward import RewardStage
from stages.tables.parquet import TableRef
from workflows.errors import UsageError
from workflows.plugins import load_object
from workflows.vocabulary import Op


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for."""

    ops: str  # "drop,resample"
    iterations: str | None = None
    tokens: int | None = None  # an iteration may sample, on average
    alternatives: int = 1
    paraphrase: str | None = None  # package.module:function
    label: str | None = None
    permutations: int | None = None  # of shapley; None: as the settings' default


@dataclass(frozen=True, slots=True)
class CounterfactualPlan:
    """Counterfactual plays of some iterations of a run, checked."""

    source: Source
    plan: Plan
    choosing: Choosing
    asked: Asked
    indices: Sequence[int]
    label: str

    @property
    def folder(self) -> Folder:
        return self.source.run.folder.child(f"counterfactuals/{self.label}")

    def place(self, stored: Finished) -> IterationStore:
        """Where the plays of a stored block go."""
        index = stored.index
        return IterationStore(self.folder.child(f"{index:05d}"), index).at(stored.store.block)

    @property
    def identity(self) -> dict[str, Any]:
        """What may not change under one label."""
        return {
            "ops": list(map(str, self.choosing.ops)),
            "alternatives": self.choosing.alternatives,
            "tokens": self.choosing.tokens,
            "paraphrase": self.asked.paraphrase,
            **({"permutations": self.choosing.permutations} if self.games else {}),
        }

    @property
    def games(self) -> bool:
        """Whether sets of the inputs of replies are played."""
        return Op.SHAPLEY in self.choosing.ops

    def stages(self, stored: Finished) -> list[Stage]:
        """The stages of one stored block: its share of the iteration's tokens goes by its episodes."""
        choosing = self.choosing
        if choosing.tokens is not None:
            blocks = self.blocks(stored.index)
            share = stored.tables["episodes"].rows / sum(block.tables["episodes"].rows for block in blocks)
            choosing = replace(choosing, tokens=max(1, round(choosing.tokens * share)))
        resolved = self.plan.resolved
        reward = next(
            s for s in credited_stages(resolved, credit_method(resolved)) if isinstance(s, RewardStage)
        )
        stall = resolved.cluster.player_call_seconds
        return [CounterfactualStage(choosing, stall_seconds=stall), reward, EffectsStage(self.games)]

    def fingerprints(self, versions: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        of_run = self.plan.fingerprints
        return {
            "counterfactual": {"rollout": of_run["rollout"], **self.identity, "versions": dict(versions)},
            "reward": dict(of_run["reward"]),
            "effects": {},
        }

    def blocks(self, index: int) -> list[Finished]:
        """The stored blocks of an iteration that have plays of their own."""
        return [block for block in self.source.blocks(index) if "turns" not in block.shared]


def counterfactual_plan(source: Source, asked: Asked) -> CounterfactualPlan:
    """Check what is asked for against the run. Loads its data and plug-ins, but no model.

    Raises:
        UsageError: an op, a number or a label that can't be, no finished rollout, settings that can't work
            here, or weights that were replaced.
    """
    indices = source.chosen(asked.iterations)
    ops = ops_of(asked.ops)
    if Op.PARAPHRASE not in ops and asked.paraphrase is not None:
        raise UsageError(
            "--paraphrase has no effect without paraphrase among the interventions; leave it out"
        )
    if Op.RESAMPLE not in ops and asked.alternatives != 1:
        raise UsageError(
            "--alternatives has no effect without resample among the interventions; leave it out"
        )
    if Op.SHAPLEY not in ops and asked.permutations is not None:
        raise UsageError("--permutations has no effect without shapley among the interventions; leave it out")
    plan = assemble(overridden(source.run, []))
    choosing = Choosing(
        ops=ops,
        alternatives=asked.alternatives,
        tokens=asked.tokens,
        seed=plan.resolved.run.seed,
        paraphrase=_paraphrase(asked.paraphrase),
        permutations=PERMUTATIONS if asked.permutations is None else asked.permutations,
    )
    refuse_others(source.run, folders_of(plan.trainer_specs))
    label = checked_label(asked.label) if asked.label else "-".join(map(str, ops))
    made = CounterfactualPlan(source, plan, choosing, asked, indices, label)
    _check_label(made)
    return made


def inputs_of(stored: Finished) -> dict[str, TableRef]:
    """The tables that the stages read of a stored block.

    Raises:
        UsageError: the block has none of them: its rollout is unfinished.
    """
    try:
        tables = {name: stored.tables[name] for name in ("tasks", "turns", "episodes")}
    except KeyError as missing:
        raise UsageError(f"iteration {stored.index} has no table {missing}; finish it first") from None
    return {"tasks": tables["tasks"], **{f"{BASE}{name}": tables[name] for name in ("turns", "episodes")}}


def versions_of(plan: CounterfactualPlan, stored: Finished) -> dict[str, int]:
    """The version of each model's weights that sampled a block, which has to be there still.

    Raises:
        UsageError: several versions of a model did, or its weights are gone.
    """
    run, turns = plan.source.run, stored.tables["turns"]
    columns = ["model_id", "policy_version"]
    parts = [pl.DataFrame(turns.read_part(k, columns)).unique() for k in range(len(turns.parts))]
    pairs = pl.concat(parts).drop_nulls().unique().sort(columns).rows() if parts else []
    versions = dict.fromkeys(plan.plan.models.models, 0)
    for model_id, version in pairs:
        if [of for of, _ in pairs].count(model_id) > 1:
            raise UsageError(
                f"iteration {stored.index}: several versions of model {model_id!r} sampled its turns, so no "
                "one set of weights could play it again; choose other --iterations"
            )
        have = [0, *run.weights_versions(model_id)]
        if version not in have:
            raise UsageError(
                f"iteration {stored.index} was sampled by version {version} of model {model_id!r}, whose "
                f"weights are gone; there are versions {', '.join(map(str, have))} (0: the initial ones); "
                "choose other --iterations; a run keeps more with checkpoints.keep"
            )
        versions[model_id] = version
    return versions


def begin(plan: CounterfactualPlan) -> None:
    """Write down what is asked for, before anything is played."""
    if plan.folder.read_text("counterfactual.json") is None:
        plan.folder.write_text("counterfactual.json", dump({"identity": plan.identity}))


def _check_label(plan: CounterfactualPlan) -> None:
    how = f"counterfactual plays {plan.label!r} of run {plan.source.run.name!r} were made otherwise"
    check_held(plan.folder.read_text("counterfactual.json"), plan.identity, how, plan.folder)


def _paraphrase(path: str | None) -> Callable[[str], str] | None:
    if path is None:
        return None
    function = load_object(path)
    if not callable(function):
        raise UsageError(f"--paraphrase {path} is not a function; name one that takes and returns a text")
    words: Callable[[str], str] = function
    return words
