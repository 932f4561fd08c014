"""The replicas of one engine: started together, watched, and started anew when one dies.

One that comes back serves only after it has taken the newest weights of every model. Where there is a single
replica it is an engine as ever: nobody watches it, calls go straight to it, and its death is the caller's.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from stages.engines.base import EngineGone, EngineSpec, Weights
from stages.engines.client import EngineClient, failed_call, from_ray
from stages.engines.kinds import renderer_of
from stages.engines.routed import RoutedEngine, Routes
from stages.engines.start import connect, end_by_force, start_engine, stop_engines
from stages.waiting import SLICE_SECONDS, Limits, Overdue, answer, answers
from workflows.errors import CadreError, RunFailed

Actor = Any  # a handle of a Ray actor, whose methods Ray makes when it runs
Tell = Callable[[str, Mapping[int, Actor]], None]

STEADY_SECONDS: Final = 600.0  # a replica that has served so long may be started anew as often as at first
MEMORY_SECONDS: Final = 10.0  # how long an engine may take to say how much memory it has needed


class _State(Enum):
    STARTING = auto()
    SERVING = auto()
    DUE = auto()  # to be started when the engine wakes: others use its device
    GIVEN_UP = auto()


@dataclass(slots=True)
class _Replica:
    """One replica. `awaited` is Ray's reference to what happens to it next: that it is up, or its end."""

    number: int
    state: _State = _State.STARTING
    handle: Actor = None
    awaited: Any = None
    since: float = 0.0  # in this state, on the monotonic clock
    restarts: int = 0
    in_a_row: int = 0  # restarts without having served for long
    process: int | None = None


class _Closed(Exception):
    """The engine is closed while somebody waits for a replica of it."""


class Replicas:
    """The replicas of one engine. Any thread may call it.

    Args:
        spec: of each of them; `replicas` says how many, `restarts` how often each is started anew.
        limits: of waits.
        say: takes a sentence for people.
        tell: takes what other processes need to know: the engine's base, and by number the actor of each
            replica whose state has changed, None for one that does not serve.
    """

    def __init__(
        self,
        spec: EngineSpec,
        limits: Limits,
        say: Callable[[str], None] = lambda _: None,
        tell: Tell = lambda *_: None,
    ) -> None:
        self.spec, self.limits = spec, limits
        self._say, self._tell = say, tell
        self._replicas = [_Replica(number) for number in range(1, spec.replicas + 1)]
        self._weights: dict[str, Weights] = {}  # the newest of each model that has left its initial ones
        self._description: dict[str, Any] = {}
        self._routes: Routes | None = None
        self._asleep = False
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._watcher: threading.Thread | None = None

    # Starting and ending --------------------------------------------------------------------

    def begin(self) -> list[Actor]:
        """Start all replicas in the background; their actors, for `wait_ready`."""
        for replica in self._replicas:
            replica.handle = start_engine(self.spec, wait=False)
        return [replica.handle for replica in self._replicas]

    @property
    def names(self) -> list[str]:
        """Of the replicas, in the order of `begin`."""
        base_id = self.spec.base_id
        return [base_id] if self.is_single else [f"{base_id}.{r.number}" for r in self._replicas]

    @property
    def is_single(self) -> bool:
        return self.spec.replicas == 1

    def ready(self, descriptions: Sequence[Mapping[str, Any]]) -> None:
        """All replicas are up, with the descriptions that `wait_ready` gave: serve, and watch them."""
        self._description = dict(descriptions[0])
        for replica, description in zip(self._replicas, descriptions, strict=True):
            replica.process = description["process"]
            self._serves(replica)
        if self.is_single:
            return
        for replica in self._replicas:
            replica.awaited = replica.handle.until_end.remote()
        handles = {replica.number: replica.handle for replica in self._replicas}
        self._routes = Routes(self.spec.base_id, handles, self.spec.max_batch_size)
        self._watcher = threading.Thread(
            target=self._watch, daemon=True, name=f"replicas {self.spec.base_id}"
        )
        self._watcher.start()

    def client(self, model_id: str, trainable: bool) -> EngineClient:
        """One model of the engine, as a player sees it."""
        if self._routes is None:
            return connect(
                self._replicas[0].handle,
                self.spec,
                model_id=model_id,
                description=self._description,
                trainable=trainable,
            )
        return RoutedEngine(
            self._routes,
            model_id=model_id,
            base_id=self.spec.base_id,
            description=self._description,
            renderer=renderer_of(self.spec),
            trainable=trainable,
        )

    def end_watch(self) -> None:
        """Stop watching; replicas that die from now on stay dead."""
        self._closed.set()
        if self._watcher is not None:
            self._watcher.join()

    @property
    def handles(self) -> list[Actor]:
        """The actors that are up or starting."""
        return [replica.handle for replica in self._replicas if replica.handle is not None]

    # Calls of all replicas ------------------------------------------------------------------

    def ask(self, method: str, *arguments: Any) -> list[tuple[_Replica, Actor, Any]]:
        """Begin a call of every replica that serves; `wait` ends it."""
        with self._lock:
            serving = [replica for replica in self._replicas if replica.state == _State.SERVING]
            return [(r, r.handle, getattr(r.handle, method).remote(*arguments)) for r in serving]

    def wait(self, asked: Iterable[tuple[_Replica, Actor, Any]], what: str) -> None:
        """Wait for the answers of `ask`. A replica that has died is started anew meanwhile.

        Raises:
            CadreError: as an engine failed, or was not done in time; or all replicas are dead for good.
        """
        import ray

        seconds, setting = self.limits.engine_call_seconds, "cluster.engine_call_seconds"
        for replica, handle, reference in asked:
            try:
                answer(reference, what, seconds, setting=setting)
            except ray.exceptions.RayError as error:
                failure = from_ray(error, self._named(replica))
                if self.is_single or not isinstance(failure, EngineGone):
                    raise failed_call(error, self._named(replica)) from None
                with self._lock:
                    if replica.handle is handle:
                        self._lost(replica, str(failure))
        self._refuse_dead()

    def take(self, weights: Weights) -> list[tuple[_Replica, Actor, Any]]:
        """Begin to put new weights into every replica; one that starts now takes them before it serves."""
        with self._lock:
            self._weights[weights.model_id] = weights
            return self.ask("reload", weights)

    def sleep(self) -> list[tuple[_Replica, Actor, Any]]:
        """Begin to fall asleep. A replica that is starting on a device is ended, and started at `wake`."""
        with self._lock:
            self._asleep = True
            for replica in self._replicas:
                if replica.state == _State.STARTING and self.spec.num_gpus:
                    end_by_force([replica.handle])
                    replica.state, replica.handle, replica.awaited = _State.DUE, None, None
            return self.ask("sleep")

    def wake(self) -> list[tuple[_Replica, Actor, Any]]:
        """Begin to wake."""
        with self._lock:
            self._asleep = False
            asked = self.ask("wake")
            for replica in self._replicas:
                if replica.state == _State.DUE:
                    self._start(replica)
            return asked

    def require_one(self) -> None:
        """Wait until a replica serves, where all of them are being started anew.

        Raises:
            RunFailed: all are dead for good, or none was up in time.
        """
        if self.is_single:
            return
        until = time.monotonic() + self.limits.engine_start_seconds
        while not any(replica.state == _State.SERVING for replica in self._replicas):
            self._refuse_dead()
            if time.monotonic() > until:
                raise Overdue(
                    f"no replica of engine {self.spec.base_id!r} serves after "
                    f"{self.limits.engine_start_seconds:g} s; raise cluster.engine_start_seconds if they "
                    "only need more time"
                )
            time.sleep(SLICE_SECONDS)

    def serving(self) -> dict[int, Actor]:
        """The actor of each replica by number; None for one that does not serve. {} of a single one."""
        if self.is_single:
            return {}
        with self._lock:
            return {r.number: r.handle if r.state == _State.SERVING else None for r in self._replicas}

    @property
    def routes(self) -> Routes | None:
        """This process's routes; None of a single replica."""
        return self._routes

    @property
    def restarts(self) -> dict[int, int]:
        """How often each replica was started anew, by number."""
        return {replica.number: replica.restarts for replica in self._replicas}

    @property
    def processes(self) -> dict[int, int | None]:
        """The id of each replica's process, by number."""
        return {replica.number: replica.process for replica in self._replicas}

    def peak_memory(self) -> int | None:
        """The most bytes of main memory that replicas have had resident, added up; None where none says."""
        import ray

        peaks: list[int] = []
        for handle in self.handles:
            # a number for people is no reason to fail
            with contextlib.suppress(ray.exceptions.RayError, Overdue):
                peaks.append(answer(handle.peak_memory.remote(), "the memory of an engine", MEMORY_SECONDS))
        return sum(peaks) if peaks else None

    # Watching -------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Until the end: take dead replicas out, and those that are up again in."""
        try:
            self._watch_until_closed()
        except Exception as error:  # nobody waits for this thread, so it says itself why it ends
            self._say(f"the replicas of engine {self.spec.base_id!r} are not watched any more: {error!r}")

    def _watch_until_closed(self) -> None:
        import ray

        while not self._closed.is_set() and ray.is_initialized():  # else a wait would start another Ray
            with self._lock:
                waiting = {r.awaited: r for r in self._replicas if r.awaited is not None}
            if not waiting:
                self._closed.wait(SLICE_SECONDS)
                continue
            done, _ = ray.wait(list(waiting), timeout=SLICE_SECONDS)
            with self._lock, contextlib.suppress(_Closed):
                for reference in done:
                    if waiting[reference].awaited is reference:
                        self._happened(waiting[reference])
                self._end_late_starts()

    def _happened(self, replica: _Replica) -> None:
        """What was awaited of a replica has come: it is up, or it is dead."""
        import ray

        try:
            came = ray.get(replica.awaited)
            if replica.state == _State.STARTING:
                replica.process = came["process"]
                self._join(replica)
            else:
                self._lost(replica, str(came))
        except (ray.exceptions.RayError, CadreError) as error:
            self._lost(replica, str(from_ray(error, self._named(replica))))

    def _join(self, replica: _Replica) -> None:
        """Let a replica serve, once it has the newest weights."""
        for weights in self._weights.values():
            answers(
                [replica.handle.reload.remote(weights)],
                f"new weights for {self._named(replica)}",
                self.limits.engine_call_seconds,
                setting="cluster.engine_call_seconds",
                tick=self._check_open,
            )
        self._serves(replica)
        replica.awaited = replica.handle.until_end.remote()
        self._announce(replica, replica.handle)
        versions = ", ".join(f"{w.model_id} version {w.version}" for w in self._weights.values())
        self._say(f"{self._named(replica)} serves again, with {versions or 'the initial weights'}")

    def _serves(self, replica: _Replica) -> None:
        replica.state, replica.since = _State.SERVING, time.monotonic()

    def _lost(self, replica: _Replica, why: str) -> None:
        """Take a dead replica out, and start it anew as often as it may be."""
        if replica.handle is not None:
            end_by_force([replica.handle])
        was_serving = replica.state == _State.SERVING
        if was_serving and time.monotonic() - replica.since >= STEADY_SECONDS:
            replica.in_a_row = 0
        replica.handle, replica.awaited, replica.process = None, None, None
        if was_serving:
            self._announce(replica, None)
        allowed = self.spec.restarts
        if replica.in_a_row >= allowed:
            replica.state = _State.GIVEN_UP
            left = sum(r.state != _State.GIVEN_UP for r in self._replicas)
            self._say(
                f"{self._named(replica)} died after {replica.in_a_row} new starts in a row, as many as "
                f"cluster.engine_restarts allows; {left} of {len(self._replicas)} replicas are left: {why}"
            )
            return
        replica.restarts += 1
        replica.in_a_row += 1
        self._say(
            f"{self._named(replica)} {'died' if was_serving else 'did not start'}; new start "
            f"{replica.in_a_row} of at most {allowed}: {why}"
        )
        try:
            self._start(replica)
        except CadreError as error:  # such as a checkpoint that is gone
            replica.state = _State.GIVEN_UP
            self._say(f"{self._named(replica)} can't be started anew: {error}")

    def _start(self, replica: _Replica) -> None:
        if self._asleep and self.spec.num_gpus:
            replica.state = _State.DUE
            return
        replica.state, replica.since = _State.STARTING, time.monotonic()
        replica.handle = start_engine(self.spec, wait=False)
        replica.awaited = replica.handle.ready.remote()

    def _end_late_starts(self) -> None:
        limit = self.limits.engine_start_seconds
        for replica in self._replicas:
            if replica.state == _State.STARTING and time.monotonic() - replica.since > limit:
                self._lost(replica, f"it was not up within {limit:g} s (cluster.engine_start_seconds)")

    def _announce(self, replica: _Replica, handle: Actor) -> None:
        """Say in this process and in others whether a replica serves."""
        if self._routes is not None:
            self._routes.set({replica.number: handle})
        self._tell(self.spec.base_id, {replica.number: handle})

    def _refuse_dead(self) -> None:
        if all(replica.state == _State.GIVEN_UP for replica in self._replicas):
            raise RunFailed(
                f"all {len(self._replicas)} replicas of engine {self.spec.base_id!r} are dead, each after as "
                f"many new starts in a row as cluster.engine_restarts = {self.spec.restarts} allows; "
                "the lines above say why"
            )

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise _Closed

    def _named(self, replica: _Replica) -> str:
        name = f"engine {self.spec.base_id!r}"
        return name if self.is_single else f"replica {replica.number} of {name}"


def stop(engines: Iterable[Replicas]) -> None:
    """End all replicas of engines, and their watch first, so that none of them is started anew."""
    engines = list(engines)
    for replicas in engines:
        replicas.end_watch()
    stop_engines([handle for replicas in engines for handle in replicas.handles])
