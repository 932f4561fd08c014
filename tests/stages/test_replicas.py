"""Replicas as processes: one that dies comes back with the newest weights, as often as it may."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from stages.engines.base import EngineSpec, Weights
from stages.engines.replicas import Replicas, stop
from stages.engines.start import wait_ready
from stages.waiting import LIMITS
from workflows.engine import Completion, Message, Sampling
from workflows.errors import InfraError, RunFailed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

PROMPT: list[Message] = [{"role": "user", "content": "Question: who?"}]


@pytest.fixture
def made() -> Iterator[Callable[..., Replicas]]:
    engines: list[Replicas] = []

    def make(**changes: Any) -> Replicas:
        told: list[Mapping[int, Any]] = []
        said: list[str] = []
        kind = changes.pop("kind", "scripted")
        spec = EngineSpec("team", kind, "", replicas=2, **changes)
        replicas = Replicas(spec, LIMITS, said.append, lambda base_id, changed: told.append(changed))
        engines.append(replicas)
        replicas.told, replicas.said = told, said  # type: ignore[attr-defined]
        replicas.ready(wait_ready(replicas.begin(), names=replicas.names))
        return replicas

    yield make
    stop(engines)


def asked(replicas: Replicas) -> Completion:
    client = replicas.client("team", True)
    return asyncio.run(client.generate(client.render(PROMPT), Sampling(64, seed=1)))


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill(replicas: Replicas, number: int) -> None:
    process = replicas.processes[number]
    assert process is not None
    os.kill(process, signal.SIGKILL)


def test_a_replica_that_dies_serves_again_with_the_newest_weights(made: Callable[..., Replicas]) -> None:
    replicas: Any = made()
    before = asked(replicas)
    replicas.wait(replicas.take(Weights("team", "memory://", 3, "")), "new weights")
    kill(replicas, 1)
    until(lambda: replicas.serving()[1] is None)
    assert asked(replicas).token_ids == before.token_ids  # of the other one
    replicas.wait(replicas.take(Weights("team", "memory://", 4, "")), "new weights")  # while it starts
    until(lambda: replicas.serving()[1] is not None)
    kill(replicas, 2)
    until(lambda: replicas.serving()[2] is None)
    assert asked(replicas).policy_version == 4  # of the one that came back
    assert replicas.restarts == {1: 1, 2: 1}
    assert [list(changed) for changed in replicas.told][:2] == [[1], [1]]
    assert "replica 1 of engine 'team' serves again, with team version 4" in replicas.said


def test_when_all_are_broken_a_call_fails_as_infrastructure_and_the_next_stage_ends_the_run(
    made: Callable[..., Replicas],
) -> None:
    replicas: Any = made(restarts=0, kind="tests.support.dying_engines:Broken")
    with pytest.raises(InfraError, match=r"'team': 2 of its replicas died under this call; .*signal 11"):
        asked(replicas)
    until(lambda: not any(replicas.serving().values()))  # their processes live on, and say so
    with pytest.raises(InfraError, match="'team' has no replica that serves"):
        asked(replicas)
    with pytest.raises(RunFailed, match=r"all 2 replicas of engine 'team' are dead.*engine_restarts = 0"):
        replicas.require_one()
    with pytest.raises(RunFailed, match="all 2 replicas"):
        replicas.wait(replicas.take(Weights("team", "memory://", 3, "")), "new weights")
    assert any("0 of 2 replicas are left" in line for line in replicas.said)
