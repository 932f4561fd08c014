"""The trainers of a replay while it runs: begun from the run's checkpoints, on from update to update.

    <run>/replays/<label>/checkpoints/<model>/<version>/

Versions go on from that of the checkpoint that a model began with: the run's 3 is followed by the replay's 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pipeline.replays.plan import ReplayPlan
from pipeline.replays.training import Training, check_checkpoint
from pipeline.run.fleet import Fleet
from pipeline.settings.program import hint
from pipeline.store.place import IterationStore
from pipeline.store.run import Run
from pipeline.store.updates import are_silent, newest_version, prune_checkpoints, update_of, updates_since
from stages.base import Progress
from stages.tables.parquet import TableRef
from workflows.errors import RunFailed, UsageError


@dataclass(frozen=True, slots=True)
class ReplayCheckpoints:
    """Checkpoints of a replay. The version that a model began with is the run's, and only read."""

    own: Run  # the replay's folder
    source: Run
    begun: Mapping[str, int]  # by model

    def checkpoint_uri(self, model_id: str, version: int) -> str:
        where = self.source if version == self.begun[model_id] else self.own
        return where.checkpoint_uri(model_id, version)

    def checkpoint_versions(self, model_id: str) -> list[int]:
        return [self.begun[model_id], *self.own.checkpoint_versions(model_id)]

    def weights_versions(self, model_id: str) -> list[int]:
        return [self.begun[model_id], *self.own.weights_versions(model_id)]


class Chain:
    """Trains the iterations of a replay one after another.

    Raises:
        UsageError: see `check_beginnings`.
    """

    def __init__(
        self, plan: ReplayPlan, training: Training, indices: Sequence[int], progress: Progress
    ) -> None:
        self.plan, self.training = plan, training
        self.models = list(training.versions)
        self.own = _own(plan)
        check_beginnings(plan, training, indices)
        self.fleet = Fleet(
            checkpoints=ReplayCheckpoints(self.own, plan.source.run, training.versions),
            models=training.trainers.models,
            engine_specs={},
            trainer_specs=training.trainers.trainer_specs,
            player_specs={},
            num_players=0,
            checkpoint_every=plan.resolved.checkpoints.every,
            version_of=self.version_of,
            redo=self.redo,
            progress=progress,
        )

    def plan_at(self, index: int) -> ReplayPlan:
        """The plan of one iteration, with its updates."""
        begins = {m: self.version_of(m, before=index) for m in self.models}
        return self.plan.with_updates(index, begins)

    def version_of(self, model_id: str, before: int | None = None) -> int:
        """At which version a model is now, or was when iteration `before` began."""
        newest_first = (p for p in reversed(_places(self.plan)) if before is None or p.index < before)
        version = newest_version(newest_first, model_id)
        return self.training.versions[model_id] if version is None else version

    def redo(self, model_id: str, version: int) -> list[dict[str, Any]]:
        """See `Fleet.redo`."""
        newest_first = reversed(_places(self.plan))
        return [
            arguments | {"off_policy": arguments["at"][0] != self.training.first}
            for arguments in updates_since(newest_first, model_id, version, self._tables_of)
        ]

    def ended(self, index: int) -> None:
        """An iteration is finished: remove checkpoints that are not kept, and look for a signal.

        Raises:
            RunFailed: too many in a row moved no weights.
        """
        for model_id in self.models:
            also = {self.version_of(model_id)}
            prune_checkpoints(self.own, model_id, self.plan.resolved.checkpoints.keep, also)
        limit = self.plan.resolved.run.max_iterations_without_signal
        if are_silent((p for p in reversed(_places(self.plan)) if p.index <= index), self.models, limit):
            raise RunFailed(
                f"{limit} iterations in a row, the last of them {index}, had no signal: every advantage was "
                "zero, so no weights moved; look at the rewards "
                f"(`{hint(f'show RUN --replay {self.plan.label}')}`)"
            )

    def _tables_of(self, place: IterationStore) -> dict[str, TableRef]:
        return {**self.plan.source.stored(place.index).tables, **place.tables()[0]}


def check_beginnings(plan: ReplayPlan, training: Training, indices: Sequence[int]) -> None:
    """Refuse iterations that can't be trained on one after another, from what there is.

    Raises:
        UsageError: iterations that this replay has trained on come after one that it has not, or the
            checkpoints that it begins with are gone.
    """
    models, replay_folder = list(training.versions), _own(plan)
    trained = {p.index for p in _places(plan) if any(update_of(p, m) for m in models)}
    for index in indices:
        if index not in trained and any(later > index for later in trained):
            raise UsageError(
                f"replay {plan.label!r} has trained on iteration {max(trained)} and not on {index}, "
                "which comes before it; use another --label"
            )
    for model_id, version in training.versions.items():
        if not replay_folder.checkpoint_versions(model_id):  # else it goes on from its own
            check_checkpoint(plan.source, training.trainers, training.first, model_id, version)


def _own(plan: ReplayPlan) -> Run:
    """The replay's folder, which has checkpoints as a run's has."""
    return Run(f"{plan.source.run.folder.url}/replays", plan.label)


def _places(plan: ReplayPlan) -> list[IterationStore]:
    return [plan.place(index) for index in sorted(int(n) for n in plan.folder.names() if n.isdigit())]


@contextmanager
def training_on(plan: ReplayPlan, indices: Sequence[int], progress: Progress) -> Iterator[Chain | None]:
    """A chain for a replay with updates, None for one without; its trainers end with the block, and their
    last weights are then in whole checkpoints."""
    if plan.training is None:
        yield None
        return
    chain = Chain(plan, plan.training, indices, progress)
    try:
        yield chain
        chain.fleet.save_checkpoints()
    finally:
        chain.fleet.close()
