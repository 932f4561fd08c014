"""Tools that live for one episode: each episode has its own, and it is closed whatever the end is."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.support.replays import Stage, stored
from workflows.errors import InfraError, ToolRefusal
from workflows.hooks import ToolHooks
from workflows.playing.attempts import PlayLimits
from workflows.playing.base_episode import BaseEpisode
from workflows.playing.record import Played
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.team import Team
from workflows.testing import play_once

NO_PAUSE = PlayLimits(backoff_seconds=0.0)


class Counters(ToolHooks):
    """Every episode counts by itself, from its seed on."""

    one_episode = True

    def __init__(self, closing: Exception | None = None) -> None:
        self.made: list[Counter] = []
        self.closing = closing

    def __call__(self, seed: int) -> Counter:
        self.made.append(Counter(seed, self.closing))
        return self.made[-1]


class Counter:
    def __init__(self, seed: int, closing: Exception | None) -> None:
        self.seed, self.total, self.closed, self._closing = seed, 0, 0, closing

    def __call__(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request.get("refuse"):
            raise ToolRefusal("no")
        self.total += request["add"]
        if request.get("fail"):
            raise InfraError("the line is down")
        if request.get("hang"):
            threading.Event().wait(request["hang"])
        return {"total": self.total, "seed": self.seed}

    def close(self) -> None:
        self.closed += 1
        if self._closing:
            raise self._closing


def counting(
    counters: Counters, *requests: Mapping[str, Any], then: Callable[[], None] = lambda: None
) -> Any:
    async def run(team: Team, task: Mapping[str, Any]) -> None:
        for request in requests:
            await team.call("speaker", {"question": task["question"]})
            await team.tool("counter", dict(request))
        then()

    return ScriptWorkflow(
        "counting", [Role("speaker", prompt="{question}")], run, tools={"counter": counters}
    )


def totals(played: Played) -> list[Any]:
    return [json.loads(t["tool_result"]) for t in played.turns if t["tool_result"]]


def play(workflow: Any, **options: Any) -> Played:
    return play_once(workflow, {"question": "?"}, {"speaker": "so"}, limits=NO_PAUSE, **options)


def test_each_episode_has_its_own_with_a_seed_of_its_own_and_it_is_closed_once() -> None:
    counters = Counters()
    workflow = counting(counters, {"add": 1}, {"add": 2})
    first, again, other = play(workflow), play(workflow), play(workflow, sample=1)
    assert [r["total"] for r in totals(first)] == [1, 3]
    assert [c.closed for c in counters.made] == [1, 1, 1]
    assert totals(first) == totals(again)
    assert totals(first)[0]["seed"] != totals(other)[0]["seed"]
    assert {p.episode["status"] for p in (first, again, other)} == {"ok"}


def test_an_episode_that_asks_nothing_opens_nothing() -> None:
    counters = Counters()
    play(counting(counters))
    assert counters.made == []


def _boom() -> None:
    raise ValueError("the function is wrong")


def test_it_is_closed_after_a_failure_of_the_workflow() -> None:
    counters = Counters()
    played = play(counting(counters, {"add": 1}, then=_boom))
    assert played.episode["status"] == "infra_error"
    assert [c.closed for c in counters.made] == [1]


def test_a_refusal_leaves_it_open_and_a_failure_is_not_asked_twice() -> None:
    counters = Counters()
    played = play(counting(counters, {"refuse": True}, {"add": 2}))
    assert [t["status"] for t in played.turns if t["tool"]] == ["tool_error", "ok"]
    assert [r["total"] for r in totals(played)] == [2]
    broken = play(counting(counters, {"add": 1, "fail": True}))
    assert broken.episode["status"] == "infra_error"
    assert "earlier call of this episode failed: " in broken.episode["error"]  # of the second attempt
    assert "the line is down" in broken.episode["error"]
    assert counters.made[-1].total == 1
    assert counters.made[-1].closed == 1


def test_it_is_closed_when_the_time_of_its_episode_is_over() -> None:
    counters = Counters()
    limits = PlayLimits(episode_timeout_seconds=1.0, backoff_seconds=0.0)
    played = play_once(
        counting(counters, {"add": 1, "hang": 1.3}, {"add": 1}),
        {"question": "?"},
        {"speaker": "so"},
        limits=limits,
    )
    assert played.episode["status"] == "timeout"
    assert [c.closed for c in counters.made] == [1]  # after the call that still ran


def test_it_is_closed_when_the_episode_is_called_off() -> None:
    counters = Counters()
    stage = Stage(counting(counters, {"add": 1, "hang": 0.2}, {"add": 1}), {"question": "?"})

    async def called_off() -> None:
        playing = asyncio.create_task(stage.aplay())
        while not counters.made:
            await asyncio.sleep(0.005)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    asyncio.run(called_off())
    assert [c.closed for c in counters.made] == [1]


def test_one_that_can_not_be_closed_is_a_fault_of_its_episode() -> None:
    played = play(counting(Counters(closing=OSError("the socket is gone")), {"add": 1}))
    assert played.episode["status"] == "infra_error"
    assert "closing tool 'counter'" in played.episode["error"]
    assert "the socket is gone" in played.episode["error"]


def test_a_replay_makes_its_calls_again_in_a_tool_of_the_same_seed() -> None:
    """Else a turn that is new would be played in a state that the stored ones never led to."""
    counters = Counters()
    stage = Stage(counting(counters, {"add": 1}, {"add": 2}), {"question": "?"})
    first = stage.play()
    again = stage.play(BaseEpisode.of(stored(first)))
    assert totals(again) == totals(first)
    assert [c.total for c in counters.made] == [3, 3]
    assert {t["origin"] for t in again.turns if t["tool"]} == {"replayed"}
