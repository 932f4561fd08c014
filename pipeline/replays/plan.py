"""The plan of a replay: the pure stages with new settings, updates if it trains, and where it writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pipeline.plan.algorithm import token_specs
from pipeline.plan.assemble import credit_method, credited_stages, partition_stage
from pipeline.plan.blocks import SCHEDULE, only_models
from pipeline.plan.channels import channel_mix, has_spans
from pipeline.plan.evaluation import metric_sections
from pipeline.plan.fingerprints import pure_fingerprints, rewards_fingerprint
from pipeline.plan.resolve import Resolved, load_and_resolve
from pipeline.plan.rewards import rewards_of
from pipeline.replays.imported import lays_out_tokens
from pipeline.replays.labels import checked_label, default_label, words_of
from pipeline.replays.settings import Change, changes_of, depends_on
from pipeline.replays.source import Source
from pipeline.replays.training import Training, training_of
from pipeline.settings.program import hint
from pipeline.settings.schema import Settings
from pipeline.store.differences import plain
from pipeline.store.finished import Finished
from pipeline.store.folder import Folder
from pipeline.store.manifest import input_hashes
from pipeline.store.place import IterationStore
from rewards.base import Credit
from stages.advantage import AdvantageStage
from stages.base import Stage, carried_of
from stages.evaluate import EvaluateStage
from stages.stored_scores import StoredScoresStage
from stages.tables.parquet import TableRef
from stages.token_advantages.spec import TokenSpec
from workflows.errors import UsageError, did_you_mean

STEPS: Final = ("reward", "credit", "partition", "advantage")


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """One replay, checked. `again` runs every stage, changed or not. With `training`, the updates of an
    iteration come with `with_updates`; before that the plan has what all iterations share. An iteration of
    several blocks is replayed block by block, each with the plan that `of_block` gives."""

    source: Source
    resolved: Resolved
    changes: tuple[Change, ...]
    stages: tuple[Stage, ...]
    fingerprints: Mapping[str, Mapping[str, Any]]
    tokens: tuple[TokenSpec, ...]
    label: str
    until: str
    again: bool = False
    training: Training | None = None

    @property
    def folder(self) -> Folder:
        return self.source.run.folder.child(f"replays/{self.label}")

    @property
    def ablation(self) -> Folder:
        """The folder of the ablation that this is a variant of; of a single replay its own."""
        return self.source.run.folder.child(f"replays/{self.label.partition('/')[0]}")

    @property
    def change_records(self) -> list[dict[str, Any]]:
        """The changes as plain values."""
        return [{"setting": k, "before": b, "now": n} for k, b, n in self.changes]

    def place(self, index: int) -> IterationStore:
        return IterationStore(self.folder.child(f"{index:05d}"), index)

    @property
    def identity(self) -> dict[str, Any]:
        """The values that may not change under one label."""
        return {
            "split": self.source.split,
            "all": self.again,
            "settings": depends_on(self.resolved.fingerprint),
            **({"update": self.training.identity} if self.training else {}),
        }

    def with_updates(self, index: int, begins: Mapping[str, int]) -> ReplayPlan:
        """The plan of iteration `index` with the stages that train on it, from these versions by model."""
        assert self.training is not None
        of_updates = self.training.fingerprints(index, begins)
        return replace(
            self,
            stages=(*self.stages, *self.training.stages(index)),
            fingerprints={**self.fingerprints, **of_updates},
        )

    def of_block(self, stored: Finished) -> ReplayPlan:
        """The plan of one block: for the models that the run partitioned in it, and without the stages whose
        tables it shares with an earlier block."""
        partition = stored.manifest("partition")
        models = {table.partition("/")[2] for table in partition.tables} if partition else set()
        stages, fingerprints, tokens = self.stages, dict(self.fingerprints), self.tokens
        if models and models != {spec.model_id for spec in self.tokens}:
            stages, fingerprints = only_models(stages, fingerprints, models)
            tokens = tuple(spec for spec in tokens if spec.model_id in models)
        weighed = {m for m in models if stored.manifest(f"reweight/{m}") is not None}
        if weighed and self.until == STEPS[-1]:
            # the schedule weighed rows by teammates' updates; a replay takes these weights as they are stored
            tokens = tuple(
                replace(spec, prefix=True) if spec.model_id in weighed else spec for spec in tokens
            )
            stages = (*(s for s in stages if not isinstance(s, AdvantageStage)), AdvantageStage(tokens))
            of_tokens = {m: of for m, of in self.fingerprints["advantage"].items() if m in models}
            marked = {m: {**of, "prefix": True} if m in weighed else of for m, of in of_tokens.items()}
            fingerprints["advantage"] = marked
        if "turns" in stored.shared:
            stages = tuple(s for s in stages if not stored.shared >= set(s.outputs))
        return replace(self, stages=stages, fingerprints=fingerprints, tokens=tokens)

    def fingerprints_at(self, stored: Finished) -> dict[str, Mapping[str, Any]]:
        """Fingerprints of a block's stages. Stored scores and the run's schedule are what they are."""
        fingerprints = dict(self.fingerprints)
        for stage in self.stages:
            manifest = stored.manifest(stage.name)
            if isinstance(stage, StoredScoresStage):
                assert manifest is not None, f"{stage.name} has been checked to be there"
                fingerprints[stage.name] = manifest.fingerprint
            elif manifest is not None and SCHEDULE in manifest.fingerprint:
                mark = {SCHEDULE: manifest.fingerprint[SCHEDULE]}
                fingerprints[stage.name] = {**fingerprints[stage.name], **mark}
        return fingerprints


def replay_plan(
    source: Source,
    settings: Settings,
    *,
    label: str | None = None,
    until: str | None = None,
    again: bool = False,
    update: Sequence[int] = (),
) -> ReplayPlan:
    """Check changed settings against the run that they are of. Loads plug-ins, but no data and no model.

    Args:
        settings: of `replays.settings.overridden`.
        label: names the replay; by default it follows from what changed.
        until: the last stage to run, one of STEPS; by default all of them.
        again: run every stage, also those that nothing changed.
        update: the iterations to train on, in order; none trains on nothing.

    Raises:
        UsageError: a setting that stored turns can't follow, or that can't work.
    """
    if update and (source.split is not None or until is not None):
        option = "--until" if source.split is None else "--split"
        raise UsageError(f"{option} leaves out what an update reads; leave it out, or leave out --update")
    if several := [i for i in update if len(source.blocks(i)) > 1]:
        raise UsageError(
            f"--update can't train on iteration {several[0]}, which has {len(source.blocks(several[0]))} "
            "blocks: a replay trains on iterations of one block; leave out --update, or choose other "
            "--iterations"
        )
    with_layout = lays_out_tokens(source.run, bool(update))
    changes = tuple(changes_of(source.run, settings, split=source.split, update=bool(update)))
    resolved, training = load_and_resolve(settings), None
    if source.split is not None:
        if until is not None:
            raise UsageError(f"--until {until}: an evaluation has one stage to replay; leave it out")
        stages, fingerprints = _evaluation(resolved)
        tokens: tuple[TokenSpec, ...] = ()
    else:
        method = credit_method(resolved)
        stages, fingerprints, tokens = _pure(resolved, method, with_tokens=not update)
        if not with_layout:
            stages, tokens = [s for s in stages if s.name in STEPS[:2]], ()
        if update:
            training = training_of(source, resolved, method, update)
    plan = ReplayPlan(
        source,
        resolved,
        changes,
        _cut(stages, until),
        fingerprints,
        tokens,
        label="",
        until=until or STEPS[-1],
        again=again,
        training=training,
    )
    return replace(plan, label=checked_label(label) if label else _label_of(plan))


def due_stages(
    plan: ReplayPlan,
    stored: Finished,
    carried: Mapping[str, TableRef],
    remade: Collection[str] = frozenset(),
) -> list[Stage]:
    """The stages to run: those whose settings or carried inputs are not those of the stored tables, and
    those that read what these write.

    Args:
        remade: tables of earlier blocks that the replay made anew.

    Raises:
        UsageError: a stage needs scores that the run did not store.
    """
    check_scores(plan, stored)
    fingerprints = plan.fingerprints_at(stored)
    anew = set(remade) & stored.shared
    due = []
    for stage in plan.stages:
        manifest = stored.manifest(stage.name)
        changed = manifest is None or manifest.fingerprint != plain(fingerprints[stage.name])
        if manifest is not None:
            hashes = input_hashes({n: carried[n] for n in carried_of(stage) if n in carried})
            changed = changed or any(manifest.inputs.get(name) != hashes[name] for name in hashes)
        if plan.again or changed or anew & set(stage.inputs):
            due.append(stage)
            anew |= set(stage.outputs)
    return due


def check_scores(plan: ReplayPlan, stored: Finished) -> None:
    """Refuse token advantages that need a forward pass which the run did not make."""
    read = {stage.model_id for stage in plan.stages if isinstance(stage, StoredScoresStage)}
    for spec in plan.tokens:
        if spec.model_id not in read:
            continue
        manifest = stored.manifest(f"score/{spec.model_id}")
        have = set(manifest.fingerprint["needs"]) if manifest is not None else set()
        if missing := sorted(spec.needs - have):
            raise UsageError(
                f"iteration {stored.index}: the token advantages of model {spec.model_id!r} need "
                f"{' and '.join(missing)} of its trainer's forward pass, and the run stored "
                f"{', '.join(sorted(have)) or 'none'}; without --update a replay loads no model: use --until "
                f"credit, or run an iteration with these settings (`{hint('run iteration')}`), which has them"
            )


def _label_of(plan: ReplayPlan) -> str:
    words = [*([plan.source.split] if plan.source.split else []), *words_of(plan.changes)]
    words += [*(["all"] if plan.again else []), *(["update"] if plan.training else [])]
    return default_label(words, plan.identity, plan.source.run.folder.child("replays"))


def _pure(
    resolved: Resolved, method: Credit, *, with_tokens: bool
) -> tuple[list[Stage], dict[str, dict[str, Any]], tuple[TokenSpec, ...]]:
    specs = token_specs(
        *(resolved.trained, resolved.advantage, str(resolved.credit.use), method),
        spans=has_spans(channel_mix(resolved)),
    )
    tokens = tuple(specs.values())
    partition = partition_stage(resolved)
    stages = [*credited_stages(resolved, method), partition]
    if with_tokens and any(spec.does_something for spec in tokens):
        stages += [StoredScoresStage(spec.model_id) for spec in tokens if spec.needs]
        stages.append(AdvantageStage(tokens))
    return stages, pure_fingerprints(resolved, partition, specs), tokens


def _evaluation(resolved: Resolved) -> tuple[list[Stage], dict[str, dict[str, Any]]]:
    sections = metric_sections(resolved.evaluate, resolved.rewards)
    metrics = rewards_of(sections, resolved)
    return [EvaluateStage(metrics)], {"evaluate": rewards_fingerprint(sections, resolved.run.root)}


def _cut(stages: Sequence[Stage], until: str | None) -> tuple[Stage, ...]:
    """The stages up to `until`."""
    if until is None:
        return tuple(stages)
    if until not in STEPS:
        raise UsageError(f"--until {until!r}{did_you_mean(until, STEPS)}; use one of {', '.join(STEPS)}")
    names = [stage.name for stage in stages]
    if until not in names:
        raise UsageError(
            f"--until {until}: with these settings there is no such stage; there are {', '.join(names)}"
        )
    return tuple(stages[: names.index(until) + 1])
