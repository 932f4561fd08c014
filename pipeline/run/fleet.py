"""The long-lived things of a run: engines, players and trainers.

One fleet outlives its iterations. Stages borrow from it; it starts what is asked for when it is
first asked for, keeps engines at the weights of the newest update, and releases everything at the
end, whatever the end is.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.run.engines import Engines
from pipeline.run.redone_updates import Redone, trainer_at
from stages.base import Progress, Quiet
from stages.engines.base import EngineSpec, Weights
from stages.players.actor import PlayerSpec, player_process, start_players
from stages.training.checkpoint import read_manifest
from stages.training.spec import TrainerSpec
from stages.waiting import LIMITS, Limits, Overdue, answer, answers
from stages.weights.distance import TOLERANCE
from workflows.engine import AnyEngine
from workflows.errors import RunFailed
from workflows.models import Model, ModelMap

if TYPE_CHECKING:
    from stages.training.group import TrainerGroup

Actor = Any  # a handle of a Ray actor, whose methods Ray makes when it runs


class Checkpoints(Protocol):
    """Where versions of models lie, to read and to write: a run, or a replay that goes on from one."""

    def checkpoint_uri(self, model_id: str, version: int) -> str: ...
    def checkpoint_versions(self, model_id: str) -> list[int]: ...
    def weights_versions(self, model_id: str) -> list[int]: ...


@dataclass(slots=True)
class Fleet:
    """Engines by base id, trainers by model id, players.

    `version_of` says at which version a model is now (its newest finished update). `redo` gives the
    finished updates from a version on, for redoing those whose checkpoint is lost: the arguments of
    `TrainerGroup.update`. `made` says with which settings each of them was made; by default with those of
    the trainer.
    """

    checkpoints: Checkpoints
    models: ModelMap
    engine_specs: Mapping[str, EngineSpec]
    trainer_specs: Mapping[str, TrainerSpec]
    player_specs: dict[str, PlayerSpec]  # by what they play for: "train", "evaluate"
    num_players: int
    checkpoint_every: int
    version_of: Callable[[str], int]
    redo: Callable[[str, int], Sequence[Mapping[str, Any]]]
    made: Callable[[TrainerSpec, Mapping[str, Any]], Redone] = lambda spec, update: Redone(update, spec)
    progress: Progress = field(default_factory=Quiet)
    limits: Limits = LIMITS
    redo_tolerance: float = TOLERANCE
    has_room: Callable[[], bool] = lambda: False  # for trainers that start while engines start and work
    _trainers: dict[str, TrainerGroup] = field(default_factory=dict)  # by model id
    _players: dict[str, list[Actor]] = field(default_factory=dict)  # by what they play for
    _expected: tuple[str, ...] = ()  # models that are trained on what is played next
    _begun: dict[str, TrainerGroup] = field(default_factory=dict)  # trainers nobody has waited for, likewise
    _last_trained: str | None = None
    _is_starting: bool = False
    start_seconds: float = 0.0  # that starts of engines, players and trainers have taken
    engines: Engines = field(init=False)

    def __post_init__(self) -> None:
        self.engines = Engines(
            self.engine_specs, self.models, self.num_players, self.limits, self.progress, self._announce
        )

    def players(self, purpose: str | None = None) -> list[Actor]:
        """Players with every engine up, awake and at the newest weights; without a purpose, training's.

        Processes of players, and trainers that training's players play for, come up beside the engines.
        """
        purpose = purpose or "train"
        with self._starting():
            if purpose == "train":
                self._begin_trainers()
            if purpose in self._players:
                self._start_engines()
            else:
                self._players[purpose] = self._start_players(self.player_specs[purpose])
        self.engines.wake()
        self._tell_replicas(self._players[purpose])
        for group in self._begun.values():
            group.check_start()  # now: a rollout takes long
        return self._players[purpose]

    def _tell_replicas(self, players: Sequence[Actor]) -> None:
        """Which replicas serve now: these players may not have been there when one died or came back."""
        if serving := self.engines.serving():
            answers(
                [player.set_replicas.remote(serving) for player in players],
                "telling the players which replicas serve",
                self.limits.player_call_seconds,
                setting="cluster.player_call_seconds",
            )

    def _start_players(self, spec: PlayerSpec) -> list[Actor]:
        handles = [player_process(spec) for _ in range(self.num_players)]
        try:
            self._start_engines()
            self.engines.wake()
            start_players(handles, spec, self.engines.clients, self.limits)
        except BaseException:
            _kill(handles)
            raise
        return handles

    def expect(self, model_ids: Iterable[str]) -> None:
        """Say which models are trained on what is played next: their trainers may start meanwhile."""
        self._expected = tuple(model_ids)

    def client(self, model_id: str) -> AnyEngine:
        """A model as players see it, with its engine up, awake and at the newest weights."""
        with self._starting():
            self._start_engines()
        self.engines.wake()
        return self.engines.clients[model_id]

    @contextlib.contextmanager
    def _starting(self) -> Iterator[None]:
        """Count the time of a start."""
        if self._is_starting:  # a start that another one needs
            yield
            return
        began, self._is_starting = time.monotonic(), True
        try:
            yield
        finally:
            self._is_starting = False
            self.start_seconds += time.monotonic() - began

    def lend(self, purpose: str) -> Lent:
        """This fleet for a rollout that is not training's."""
        return Lent(self, purpose)

    def trainer(self, model_id: str) -> TrainerGroup:
        """The trainer group of a model, at its newest version. Engines give their device memory back."""
        self.engines.sleep()
        last = self._last_trained
        if last is not None and self._base_of(last) != self._base_of(model_id):
            self._trainers[last].release()
        if model_id not in self._trainers:
            with self._starting():
                self._trainers[model_id] = self._start_trainer(model_id)
        self._last_trained = model_id
        return self._trainers[model_id]

    def _base_of(self, model_id: str) -> str:
        return self.models.models[model_id].base_id

    def checkpoint_uri(self, model_id: str, version: int) -> str:
        return self.checkpoints.checkpoint_uri(model_id, version)

    def checkpoint_is_due(self, version: int) -> bool:
        """Whether this version gets a whole checkpoint, or its weights alone."""
        return version % self.checkpoint_every == 0

    def weights_changed(self, weights: Weights) -> None:
        """Put new weights into the engine that serves them, if it is up; it starts with them if not."""
        if not self.engines.weights_changed(weights):
            return
        versions = {weights.model_id: weights.version}
        answers(
            [player.set_versions.remote(versions) for player in self._all_players()],
            "telling the players of new weights",
            self.limits.player_call_seconds,
            setting="cluster.player_call_seconds",
        )

    def replica_counts(self) -> dict[str, dict[int, dict[str, int]]]:
        """By base and number of a replica, what it answered since the last call of this method, and how often
        it was started anew; engines of one replica aside."""
        import ray

        if not self.engines.serving():
            return {}
        counts: list[Any] = []
        for player in self._all_players():
            # numbers for people are no reason to fail
            with contextlib.suppress(ray.exceptions.RayError, Overdue):
                asked = player.replica_counts.remote()
                counts.append(answer(asked, "a player's counts", self.limits.player_call_seconds))
        return self.engines.counts_since(counts)

    def peak_memory(self) -> dict[str, int]:
        """The most bytes of main memory that each engine and the trainers on each base have had resident, by
        `engine/<base>` and `trainer/<base>`; without those that are not up or give no answer."""
        peaks = self.engines.peak_memory()
        for model_id, group in self._trainers.items():
            name = f"trainer/{self._base_of(model_id)}"  # adapters on one base share its processes
            if name not in peaks:
                peaks[name] = sum(group.peak_memory())
        return peaks

    def close(self) -> None:
        """Release everything; safe to call twice, and after any failure."""
        for group in (*self._trainers.values(), *self._begun.values()):
            group.close()
        _kill(self._all_players())
        self.engines.close()
        self._trainers.clear()
        self._begun.clear()
        self._last_trained = None
        self._players.clear()

    def _start_engines(self) -> None:
        if not self.engines.missing:
            return
        for model in self.models.models.values():
            self._ensure_checkpoint(model.model_id, self.version_of(model.model_id))
        self.engines.start(self._newest_weights)

    def _newest_weights(self, model: Model) -> Weights | None:
        """The newest weights of a model; None for its initial ones."""
        version = self.version_of(model.model_id)
        if version == 0:
            return None
        uri = self.checkpoint_uri(model.model_id, version)
        return Weights(model.model_id, f"{uri}/weights", version, read_manifest(uri)["hash"])

    def _announce(self, base_id: str, replicas: Mapping[int, Actor]) -> None:
        """Tell the players which replicas of an engine serve; nobody waits, since a player may be dead."""
        for player in self._all_players():
            player.set_replicas.remote({base_id: dict(replicas)})

    def _all_players(self) -> list[Actor]:
        return [player for some in tuple(self._players.values()) for player in some]

    def _ensure_checkpoint(self, model_id: str, version: int) -> None:
        if version > 0 and version not in self.checkpoints.weights_versions(model_id):
            self.trainer(model_id).save(self.checkpoint_uri(model_id, version))

    def save_checkpoints(self) -> None:
        """A whole checkpoint of every trainer that has gone on since its last one."""
        for model_id, group in self._trainers.items():
            version = group.version
            if version and version not in self.checkpoints.checkpoint_versions(model_id):
                group.save(self.checkpoint_uri(model_id, version))

    def save_at_stop(self) -> None:
        """`save_checkpoints` after a stop or a failure, so that little has to be made again: of trainers that
        still answer, and stand at a finished update."""
        for model_id, group in self._trainers.items():
            version = group.version
            if not group.is_open or not version or version != self.version_of(model_id):
                continue
            if version not in self.checkpoints.checkpoint_versions(model_id):
                with contextlib.suppress(Exception):  # what ended the run is what is told
                    group.save(self.checkpoint_uri(model_id, version))

    def _begin_trainers(self) -> None:
        """Begin to start the trainers that are expected, as far as memory allows, and nothing has to be made
        again first. Engines would leave no room on a GPU that they share with them."""
        from stages.training.group import TrainerGroup

        up = {self._base_of(model_id) for model_id in (*self._trainers, *self._begun)}
        on_gpus = any(spec.num_gpus for spec in self.engine_specs.values())
        for model_id in self._expected:
            spec, base_id = self.trainer_specs[model_id], self._base_of(model_id)
            start, resume = self._newest_checkpoint(model_id)
            if base_id in up or (on_gpus and spec.num_gpus) or start != self.version_of(model_id):
                continue
            if not self.has_room():
                return
            up.add(base_id)  # further adapters on it start in its processes, in no time
            self._begun[model_id] = TrainerGroup.begin(spec, version=start, resume=resume)

    def _newest_checkpoint(self, model_id: str) -> tuple[int, str | None]:
        """The version of the newest checkpoint up to the model's, and its folder; that of the initial weights
        and None where there is none."""
        want, first = self.version_of(model_id), self.trainer_specs[model_id].begins
        # what lies below the initial weights is of the model whose place this one took
        have = [v for v in self.checkpoints.checkpoint_versions(model_id) if first <= v <= want]
        start = max(have, default=first)
        return start, self.checkpoint_uri(model_id, start) if start > first else None

    def _start_trainer(self, model_id: str) -> TrainerGroup:
        """A trainer at the model's newest version: the one that was begun, or from its checkpoint, or from an
        older one by redoing the updates since then from their stored partitions."""
        want = self.version_of(model_id)
        if (begun := self._begun.pop(model_id, None)) is not None:
            self.progress.start(f"start trainer of {model_id}", None, "")
            begun.wait_ready()
            self.progress.finish()
            return begun
        start, resume = self._newest_checkpoint(model_id)
        # adapters on one base share its processes
        beside = next(
            (g for m, g in self._trainers.items() if self._base_of(m) == self._base_of(model_id)), None
        )
        spec = self.trainer_specs[model_id]
        updates = [self.made(spec, arguments) for arguments in self.redo(model_id, start)]
        redoing = f", {len(updates)} updates again" if updates else ""
        self.progress.start(f"start trainer of {model_id}{redoing}", None, "")
        group = trainer_at(
            spec,
            start,
            resume,
            updates,
            lambda version: self.checkpoint_uri(model_id, version),
            beside,
            self.redo_tolerance,
        )
        self.progress.finish()
        if group.version != want:
            group.close()
            raise RunFailed(
                f"model {model_id!r} should be at version {want}, its newest checkpoint is version {start}, "
                f"and redoing stored updates reached {group.version}; restore "
                f"{self.checkpoint_uri(model_id, want)}"
            )
        return group


@dataclass(frozen=True, slots=True)
class Lent:
    """A fleet whose players play for another purpose than training; implements `stages.lease.Fleet`."""

    fleet: Fleet
    purpose: str

    def players(self, purpose: str | None = None) -> list[Actor]:
        return self.fleet.players(purpose or self.purpose)

    def trainer(self, model_id: str) -> TrainerGroup:
        return self.fleet.trainer(model_id)

    def version_of(self, model_id: str) -> int:
        return self.fleet.version_of(model_id)

    def checkpoint_uri(self, model_id: str, version: int) -> str:
        return self.fleet.checkpoint_uri(model_id, version)

    def checkpoint_is_due(self, version: int) -> bool:
        return self.fleet.checkpoint_is_due(version)

    def weights_changed(self, weights: Weights) -> None:
        self.fleet.weights_changed(weights)


def _kill(actors: Sequence[Actor]) -> None:
    import ray

    if not ray.is_initialized():
        return
    for actor in actors:
        ray.kill(actor)
