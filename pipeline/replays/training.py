"""The updates that `--update` adds to a replay: its trainers, and the weights that they begin with.

The first iteration is trained from the checkpoints of the weights that sampled it, so that its update is
the run's own but for what changed. Each later one is trained from the replay's own weights of the one
before. These did not sample its turns, which is what importance weights are for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from pipeline.plan.fingerprints import trainer_fingerprints
from pipeline.plan.resolve import Resolved
from pipeline.plan.trainers import Trainers, trainers_of, update_stages
from pipeline.plan.trial import tried
from pipeline.replays.source import Source
from pipeline.store.initial_weights import folders_of, refuse_others
from pipeline.store.run import Run
from pipeline.store.updates import newest_version
from rewards.base import Credit
from stages.base import Stage
from stages.training.checkpoint import foreign, read_manifest
from workflows.errors import CadreError, UsageError


@dataclass(frozen=True, slots=True)
class Training:
    """The updates of a replay, checked. `versions` are those of the weights, by model, that sampled `first`,
    the iteration that it begins with."""

    trainers: Trainers
    first: int
    versions: Mapping[str, int]

    @property
    def identity(self) -> dict[str, Any]:
        """The values that may not change under one label, beside the settings."""
        return {"first": self.first, "versions": dict(self.versions)}

    def stages(self, index: int) -> list[Stage]:
        """The stages of iteration `index` that come after its partition."""
        learn, measure = self.trainers.algorithms, self.trainers.resolved.measure
        return update_stages(
            self.trainers.models,
            learn,
            off_policy=index != self.first,
            by_role=measure.gradients != "off",
            within=self.trainers.resolved.within_trust,
        )

    def fingerprints(self, index: int, begins: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        """Fingerprints of the stages that use a trainer; in iteration `index` each model begins at its
        version in `begins`."""
        resolved, algorithms = self.trainers.resolved, self.trainers.algorithms
        fingerprints = trainer_fingerprints(
            resolved.model_plans, self.stages(index), algorithms, resolved.measure
        )
        for name, fingerprint in fingerprints.items():
            begin = begins[name.partition("/")[2]]
            fingerprint["replay"] = {"begins_at": begin, "off_policy": index != self.first}
        return fingerprints


def training_of(source: Source, resolved: Resolved, method: Credit, indices: Sequence[int]) -> Training:
    """The updates of a replay of the iterations `indices`, in order.

    Raises:
        UsageError: settings that can't work, several iterations and no importance weights, or an iteration
            that several versions sampled.
    """
    trainers = trainers_of(resolved, method)
    if learners := [name for name, a in trainers.algorithms.items() if a.loss.stop_loss]:
        raise UsageError(
            f"run replay --update does not train stop decisions, which model {', '.join(learners)} learns "
            f'from with stopping.use = "{resolved.stopping.use}"; leave --update out'
        )
    if on_trial := [model.model_id for model in tried(trainers.resolved)]:
        raise UsageError(
            f"run replay --update plays nothing, and candidates of model {', '.join(on_trial)} stand a "
            "trial; pass --set trust_region.trial_tasks=0, or leave --update out"
        )
    check_importance(trainers, indices)
    refuse_others(source.run, folders_of(trainers.trainer_specs))
    return Training(trainers, indices[0], sampled_by(source, indices[0], list(trainers.trainer_specs)))


def sampled_by(source: Source, index: int, models: Sequence[str]) -> dict[str, int]:
    """The version of each model's weights that sampled iteration `index`.

    Raises:
        UsageError: several versions of one model did.
    """
    turns = source.stored(index).tables["turns"]
    columns = ["model_id", "policy_version"]
    parts = [pl.DataFrame(turns.read_part(k, columns)).unique() for k in range(len(turns.parts))]
    pairs = pl.concat(parts).drop_nulls().unique().sort(columns).rows() if parts else []
    version_of = {}
    for model_id in models:
        versions = [version for of, version in pairs if of == model_id]
        if len(versions) > 1:
            raise UsageError(
                f"iteration {index}: the turns of model {model_id!r} were sampled by versions "
                f"{', '.join(map(str, versions))}, so there is no one checkpoint to train them from"
            )
        version_of[model_id] = versions[0] if versions else version_before(source.run, model_id, index)
    return version_of


def version_before(run: Run, model_id: str, index: int) -> int:
    """The version at which the run's own model was when iteration `index` began."""
    newest_first = (run.iteration(i) for i in reversed(run.iterations()) if i < index)
    return newest_version(newest_first, model_id) or 0


def check_importance(trainers: Trainers, indices: Sequence[int]) -> None:
    """Refuse to train on turns of other weights as if they were of the trainer's own."""
    for model_id, algorithm in trainers.algorithms.items():
        tokens = algorithm.tokens
        if len(indices) > 1 and not tokens.imitate and tokens.importance.correction == "none":
            raise UsageError(
                f"--update trains {len(indices)} iterations, each from the replay's own weights of the one "
                f"before; iterations from {indices[1]} on were sampled by other weights, and ppo.importance "
                f'of model {model_id!r} is "none"; correct for it with --set ppo.importance=truncated (or '
                f"masked), or train one iteration with --iterations {indices[0]}"
            )


def check_checkpoint(source: Source, trainers: Trainers, index: int, model_id: str, version: int) -> None:
    """Refuse to begin where the checkpoint that sampled iteration `index` is gone, or another trainer's.

    Raises:
        UsageError: where it was looked for, what is there instead, and which iterations could come first.
    """
    if version == 0:  # the initial weights, which are the model's own checkpoint
        return
    run = source.run
    uri = run.checkpoint_uri(model_id, version)
    try:
        whole, weights = run.checkpoint_versions(model_id), run.weights_versions(model_id)
        if version in whole:
            problem = foreign(read_manifest(uri), trainers.trainer_specs[model_id], version)
            if problem:
                raise UsageError(
                    f"--update can't begin with checkpoint {uri} of model {model_id!r}: {problem}"
                )
            return
    except CadreError:
        raise
    except Exception as error:  # each filesystem has its own
        raise UsageError(
            f"--update begins with the weights that sampled iteration {index}, version {version} of model "
            f"{model_id!r}, and {uri} can't be read: {type(error).__name__}: {error}; make it reachable, or "
            "begin with an iteration of version 0"
        ) from error
    why = "holds weights only, without the optimizer's state" if version in weights else "is not there"
    raise UsageError(
        f"--update begins with the weights that sampled iteration {index}: version {version} of model "
        f"{model_id!r}, and its checkpoint {uri} {why}; versions that are there: 0 (the initial weights)"
        f"{''.join(f', {v}' for v in whole)}; {_instead(source, trainers)}; a run keeps more with "
        "checkpoints.keep, and one of every update with checkpoints.every = 1"
    )


def _instead(source: Source, trainers: Trainers) -> str:
    """The iterations that could be the first."""
    models = list(trainers.trainer_specs)
    there = {m: {0, *source.run.checkpoint_versions(m)} for m in models}
    able = [
        str(index)
        for index in source.indices()
        if all(version_before(source.run, m, index) in there[m] for m in models)
    ]
    if not able:
        return "none of its iterations has all of its checkpoints"
    return (
        f"begin with an iteration that has its checkpoints: --iterations N: with N one of {', '.join(able)}"
    )
