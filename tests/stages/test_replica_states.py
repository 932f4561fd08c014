"""What becomes of a replica that dies, sleeps or starts late. No processes: actors are plain objects."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from stages.engines import replicas as module
from stages.engines.base import EngineSpec, Weights
from stages.engines.replicas import STEADY_SECONDS, Replicas, _State
from stages.waiting import LIMITS
from workflows.errors import RunFailed, UsageError


class Actor:
    """Each method gives its name as a reference, and the arguments are kept."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        if name == "remote":
            raise AttributeError(name)
        actor = self

        class Method:
            @staticmethod
            def remote(*arguments: Any) -> str:
                actor.calls.append((name, arguments))
                return name

        return Method


class Started:
    """Two replicas that serve, and what was started, ended, said and told of them."""

    def __init__(self, patch: pytest.MonkeyPatch, **spec: Any) -> None:
        self.started: list[Actor] = []
        self.ended: list[Actor] = []
        self.said: list[str] = []
        self.told: list[Mapping[int, Any]] = []
        self.failure: Exception | None = None
        patch.setattr(module, "start_engine", self._start)
        patch.setattr(module, "end_by_force", self.ended.extend)
        patch.setattr(module, "answers", lambda references, *_, **__: list(references))
        self.replicas = Replicas(
            EngineSpec("team", "scripted", "", replicas=2, **spec),
            LIMITS,
            self.said.append,
            lambda base_id, changed: self.told.append(changed),
        )
        self.replicas.begin()
        self.one, self.two = self.replicas._replicas
        for each in (self.one, self.two):
            self.replicas._serves(each)

    def _start(self, spec: EngineSpec, wait: bool) -> Actor:
        if self.failure is not None:
            raise self.failure
        self.started.append(Actor())
        return self.started[-1]

    def die(self, replica: Any, why: str = "signal 9") -> None:
        self.replicas._lost(replica, why)


def test_one_that_dies_is_started_anew_and_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Started(monkeypatch)
    dead = fleet.one.handle
    fleet.die(fleet.one)
    assert fleet.ended == [dead]
    assert fleet.told == [{1: None}]
    assert (fleet.one.state, fleet.one.awaited) == (_State.STARTING, "ready")
    assert fleet.replicas.serving() == {1: None, 2: fleet.two.handle}
    assert fleet.said == ["replica 1 of engine 'team' died; new start 1 of at most 3: signal 9"]
    assert [reference for _, _, reference in fleet.replicas.ask("sleep")] == ["sleep"]  # of the other one


def test_it_serves_again_after_it_has_taken_the_newest_weights_of_each_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Started(monkeypatch)
    fleet.replicas.take(Weights("a", "memory://", 1, ""))
    fleet.die(fleet.one)
    fleet.replicas.take(Weights("a", "memory://", 2, ""))  # while it starts
    fleet.replicas.take(Weights("b", "memory://", 1, ""))
    new = fleet.one.handle
    assert new.calls == [("ready", ())]  # nothing is asked of it before it is up
    fleet.replicas._join(fleet.one)
    taken = [arguments[0] for name, arguments in new.calls if name == "reload"]
    assert [(each.model_id, each.version) for each in taken] == [("a", 2), ("b", 1)]
    assert fleet.told[-1] == {1: new}
    assert (fleet.one.state, fleet.one.awaited) == (_State.SERVING, "until_end")
    assert fleet.said[-1] == "replica 1 of engine 'team' serves again, with a version 2, b version 1"


def test_it_is_started_so_often_in_a_row_and_steady_service_ends_the_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Started(monkeypatch, restarts=2)
    for _ in range(2):
        fleet.die(fleet.one)
        fleet.replicas._join(fleet.one)
    fleet.one.since = time.monotonic() - STEADY_SECONDS
    fleet.die(fleet.one)
    assert (fleet.one.restarts, fleet.one.in_a_row) == (3, 1)
    fleet.die(fleet.one, "it did not start")
    fleet.die(fleet.one, "it did not start")
    assert fleet.one.state == _State.GIVEN_UP
    assert fleet.said[-1] == (
        "replica 1 of engine 'team' died after 2 new starts in a row, as many as cluster.engine_restarts "
        "allows; 1 of 2 replicas are left: it did not start"
    )
    fleet.replicas.require_one()
    fleet.two.state = _State.GIVEN_UP
    with pytest.raises(RunFailed, match="all 2 replicas of engine 'team' are dead"):
        fleet.replicas.require_one()


def test_on_a_device_nothing_starts_while_the_engine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Started(monkeypatch, num_gpus=1.0)
    fleet.die(fleet.one)
    starting = fleet.one.handle
    assert len(fleet.replicas.sleep()) == 1  # a trainer takes the devices
    assert starting in fleet.ended
    fleet.die(fleet.two)
    assert [each.state for each in (fleet.one, fleet.two)] == [_State.DUE, _State.DUE]
    count = len(fleet.started)
    assert fleet.replicas.wake() == []
    assert len(fleet.started) == count + 2
    assert [each.state for each in (fleet.one, fleet.two)] == [_State.STARTING, _State.STARTING]
    assert (fleet.one.restarts, fleet.two.restarts) == (1, 1)  # what a sleep ends is no attempt


def test_on_cpu_a_start_goes_on_while_trainers_work(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Started(monkeypatch)
    fleet.die(fleet.one)
    fleet.replicas.sleep()
    assert fleet.one.state == _State.STARTING
    fleet.die(fleet.two)
    assert fleet.two.state == _State.STARTING


def test_a_start_that_takes_too_long_is_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Started(monkeypatch)
    fleet.die(fleet.one)
    late = fleet.one.handle
    fleet.one.since = time.monotonic() - LIMITS.engine_start_seconds - 1
    fleet.replicas._end_late_starts()
    assert late in fleet.ended
    assert fleet.one.restarts == 2
    assert "did not start; new start 2 of at most 3: it was not up within 600 s" in fleet.said[-1]


def test_one_that_can_never_start_again_is_given_up_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Started(monkeypatch)
    fleet.failure = UsageError("the checkpoint is gone")
    fleet.die(fleet.one)
    assert fleet.one.state == _State.GIVEN_UP
    assert fleet.said[-1] == "replica 1 of engine 'team' can't be started anew: the checkpoint is gone"
