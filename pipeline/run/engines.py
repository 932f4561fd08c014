"""The engines of a fleet, one for each base in as many replicas as it has, and the models that they serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stages.base import Progress
from stages.engines.base import EngineSpec, Weights
from stages.engines.kinds import engine_class
from stages.engines.replicas import Actor, Replicas, stop
from stages.engines.routed import Counts, totals
from stages.engines.start import wait_ready
from stages.waiting import Limits
from workflows.engine import AnyEngine
from workflows.models import Model, ModelMap

_CALLS: Final = {"take": "new weights for", "sleep": "the sleep of", "wake": "the waking of"}


@dataclass(slots=True)
class Engines:
    """Engines by base id, and clients of them by model id.

    Args:
        specs: by base id; those of remote kinds are asked where they are.
        models: the team's.
        num_players: that ask remote models.
        limits: of waits.
        progress: for people.
        tell: takes the base and the changed replicas of an engine, for processes that ask it.
    """

    specs: Mapping[str, EngineSpec]
    models: ModelMap
    num_players: int
    limits: Limits
    progress: Progress
    tell: Callable[[str, Mapping[int, Actor]], None]
    clients: dict[str, AnyEngine] = field(default_factory=dict)
    _up: dict[str, Replicas] = field(default_factory=dict)  # by base id
    _asleep: bool = False
    _counted: dict[str, dict[int, dict[str, int]]] = field(default_factory=dict)  # by `counts_since`

    @property
    def missing(self) -> list[str]:
        """The bases whose engines are to be started."""
        here = (b for b, spec in self.specs.items() if not engine_class(spec.kind).is_remote)
        return [base_id for base_id in here if base_id not in self._up]

    @property
    def up(self) -> list[str]:
        """The bases whose engines were started."""
        return list(self._up)

    def start(self, newest: Callable[[Model], Weights | None]) -> None:
        """Start the engines that are missing, and give each its models' newest weights.

        Args:
            newest: the weights of a model; None for initial ones, with which every engine starts.

        Raises:
            CadreError: an engine can't start, or was not up in time.
        """
        missing = self.missing
        if not missing:
            return
        new = {b: Replicas(self.specs[b], self.limits, self._say, self.tell) for b in missing}
        count = sum(replicas.spec.replicas for replicas in new.values())
        self.progress.start("start engines", count, "engine")
        self._up.update(new)  # before the wait: a failed start is released like the rest
        handles = [handle for replicas in new.values() for handle in replicas.begin()]
        names = [name for replicas in new.values() for name in replicas.names]
        described = iter(wait_ready(handles, self.limits.engine_start_seconds, names))
        for replicas in new.values():
            replicas.ready([next(described) for _ in replicas.names])
        self.progress.advance(count)
        self.progress.finish()
        for model in self.models.models.values():
            self._connect(model, newest)

    def _connect(self, model: Model, newest: Callable[[Model], Weights | None]) -> None:
        spec = self.specs[model.base_id]
        engine = engine_class(spec.kind)
        if engine.is_remote:
            self.clients[model.model_id] = engine.for_player(
                spec, model_id=model.model_id, players=self.num_players
            )
            return
        client = self._up[model.base_id].client(model.model_id, model.trainable)
        self.clients[model.model_id] = client
        if (weights := newest(model)) is not None:
            self._take(weights)

    def weights_changed(self, weights: Weights) -> bool:
        """Put new weights into the engine that serves their model; False where it is not up."""
        if self._base_of(weights.model_id) not in self._up:
            return False
        self.wake()
        self._take(weights)
        return True

    def _take(self, weights: Weights) -> None:
        base_id = self._base_of(weights.model_id)
        self._call("take", {base_id: self._up[base_id]}, weights)
        self.clients[weights.model_id].policy_version = weights.version

    def sleep(self) -> None:
        """Let all engines give their device memory back."""
        if not self._asleep and self._up:
            self._call("sleep", self._up)
            self._asleep = True

    def wake(self) -> None:
        """Wake all engines that sleep; then at least one replica of each serves.

        Raises:
            CadreError: as an engine failed, or all of its replicas are dead.
        """
        if self._asleep:
            self._call("wake", self._up)
            self._asleep = False
        for replicas in self._up.values():
            replicas.require_one()

    def _call(self, method: str, engines: Mapping[str, Replicas], *arguments: Any) -> None:
        """Call a method of engines and wait for all of them.

        Raises:
            CadreError: as the engine failed, or was not done in time, with its name.
        """
        which = ", ".join(map(repr, engines))
        what = f"{_CALLS[method]} engine{'s' if len(engines) > 1 else ''} {which}"
        asked = [(replicas, getattr(replicas, method)(*arguments)) for replicas in engines.values()]
        for replicas, answers in asked:
            replicas.wait(answers, what)

    def serving(self) -> dict[str, dict[int, Actor]]:
        """By base, the actor of each replica by number, None for one that does not serve. Engines of one
        replica are left out."""
        return {b: replicas.serving() for b, replicas in self._up.items() if not replicas.is_single}

    def counts_since(
        self, others: Sequence[Mapping[str, Mapping[int, Mapping[str, int]]]]
    ) -> dict[str, dict[int, dict[str, int]]]:
        """By base and number, what each replica has answered since the last call of this method, and how
        often it was started anew. Engines of one replica are left out.

        Args:
            others: the counts of other processes up to now.
        """
        up = {b: replicas for b, replicas in self._up.items() if replicas.routes is not None}
        here = {b: _plain(replicas.routes.counts) for b, replicas in up.items() if replicas.routes}
        total = {b: _plain(counts) for b, counts in totals([here, *others]).items()}
        for base_id, replicas in up.items():
            for number, restarts in replicas.restarts.items():
                total[base_id][number]["restarts"] = restarts
        before, self._counted = self._counted, total
        return {
            base_id: {
                number: {
                    name: value - before.get(base_id, {}).get(number, {}).get(name, 0)
                    for name, value in counts.items()
                }
                for number, counts in replicas_.items()
            }
            for base_id, replicas_ in total.items()
        }

    def processes(self, base_id: str) -> dict[int, int | None]:
        """The id of the process of each replica of a base, by number."""
        return self._up[base_id].processes

    def peak_memory(self) -> dict[str, int]:
        """The most bytes of main memory that each engine has had resident, by `engine/<base>`."""
        peaks = {f"engine/{base_id}": replicas.peak_memory() for base_id, replicas in self._up.items()}
        return {name: peak for name, peak in peaks.items() if peak is not None}

    def close(self) -> None:
        """End all engines."""
        stop(list(self._up.values()))
        self._up.clear()
        self.clients.clear()

    def _base_of(self, model_id: str) -> str:
        return self.models.models[model_id].base_id

    def _say(self, sentence: str) -> None:
        self.progress.say(sentence)


def _plain(counts: Mapping[int, Counts]) -> dict[int, dict[str, int]]:
    return {number: each.as_dict() for number, each in counts.items()}
