"""Tools as the player calls them: requests and results, refusals, failures, time, threads."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from typing import Any

import pytest

from tests.support.small_plays import note, play, visits, workflow
from workflows.errors import InfraError, RunFailed, ToolRefusal, UsageError
from workflows.graph import Edge, Step, Tool, ToolStep, Workflow
from workflows.models import ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.playing.play import Player
from workflows.playing.record import Played
from workflows.playing.threads import ToolThreads
from workflows.trajectory import TURNS, rows_to_table

TASK = {"task_id": "t", "inputs": {"question": "?"}}


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()


async def turns_of_the_loop() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def tool_workflow(tool: Tool) -> Workflow:
    return workflow([ToolStep("find", "search", lambda s: None)], tools={"search": tool})


def with_tool(tool: Tool, **limits: Any) -> Played:
    steps: list[Step] = [
        ToolStep("find", "search", lambda s: {"query": s.task["question"]}),
        note("after", lambda s: [s["find"].value, s["find"].valid]),
    ]
    w = workflow(steps, [Edge("find", "after")], {"search": tool})
    return play(w, limits=PlayLimits(backoff_seconds=0, **limits))


async def echo(request: Any) -> Any:
    return {"found": [request["query"]]}


def test_a_tool_turn_keeps_request_and_result() -> None:
    for tool in (echo, lambda request: {"found": [request["query"]]}):
        played = with_tool(tool)
        turn = played.turns[0]
        assert (turn["event"], turn["tool"], turn["status"]) == ("tool", "search", "ok")
        assert (turn["tool_request"], turn["tool_result"]) == ('{"query":"?"}', '{"found":["?"]}')
        assert json.loads(played.turns[1]["parsed"]) == [{"found": ["?"]}, True]


def test_control_characters_and_lone_surrogates_of_a_tool_are_stored_exactly_or_mended() -> None:
    played = with_tool(lambda request: "\x1b[31mred\x1b[0m\x00 \udc80")
    table = rows_to_table(played.turns, TURNS)
    assert json.loads(table["tool_result"][0].as_py()) == "\x1b[31mred\x1b[0m\x00 ?"


def test_what_a_tool_refuses_is_the_policys_doing_and_the_workflow_goes_on() -> None:
    async def refuse(request: Any) -> Any:
        raise ToolRefusal("empty query")

    played = with_tool(refuse)
    assert (played.turns[0]["status"], played.turns[0]["status_detail"]) == ("tool_error", "empty query")
    assert played.turns[0]["attempts"] == 1
    assert json.loads(played.turns[1]["parsed"]) == [None, False]
    assert played.episode["status"] == "ok"


def failing(error: Exception) -> Tool:
    async def tool(request: Any) -> Any:
        raise error

    return tool


@pytest.mark.parametrize(("tool", "status", "attempts", "cause"), [
    (failing(InfraError("index gone")), "infra_error", 3, "index gone"),
    (failing(KeyError("k")), "infra_error", 1, "KeyError: 'k'"),
    (failing(TimeoutError("its own")), "infra_error", 1, "TimeoutError: its own"),
    (never, "timeout", 1, "no reply within 0.01 s"),
    (lambda request: {1}, "infra_error", 1, "the result of tool 'search' is not JSON"),
    (lambda request: float("nan"), "infra_error", 1, "is not JSON"),
])  # fmt: skip
def test_what_a_tool_can_not_do_is_not_the_policys_doing(
    tool: Tool, status: str, attempts: int, cause: str
) -> None:
    played = with_tool(tool, tool_timeout_seconds=0.01 if status == "timeout" else 60)
    assert (played.turns[0]["status"], played.turns[0]["attempts"]) == (status, attempts)
    assert [v[0] for v in visits(played)] == ["find"]
    assert played.episode["status"] == status
    assert cause in played.episode["error"]
    assert "step 'find'" in played.episode["error"]


def test_a_tool_is_started_once_whatever_the_number_of_plays_at_a_time() -> None:
    class Index:
        starts = 0

        async def start(self) -> None:
            await asyncio.sleep(0)
            self.starts += 1

        async def __call__(self, request: Any) -> Any:
            return self.starts

    async def run() -> list[Played]:
        w = workflow([ToolStep("find", "index", lambda s: None)], tools={"index": Index()})
        player = Player(w, {}, ModelMap({}, {}), {}, PlayLimits(), 0)
        task = {"task_id": "t", "inputs": {}}
        return await asyncio.gather(*(player.play(task, iteration=0, sample=i) for i in range(4)))

    assert [p.turns[0]["tool_result"] for p in asyncio.run(run())] == ["1"] * 4


def test_a_tool_that_can_not_be_started_fails_the_run_by_its_name() -> None:
    class Index:
        def __init__(self, error: Exception):
            self.error = error

        async def start(self) -> None:
            raise self.error

        async def __call__(self, request: Any) -> Any:
            return None

    for error, expected in ((OSError("no such file"), RunFailed), (UsageError("bad option"), UsageError)):
        w = workflow([ToolStep("find", "index", lambda s: None)], tools={"index": Index(error)})
        with pytest.raises(expected, match=f"{error}"):
            play(w)
    with pytest.raises(RunFailed, match="tool 'index' can't be started: OSError"):
        play(workflow([ToolStep("find", "index", lambda s: None)], tools={"index": Index(OSError())}))


def test_a_plain_function_may_give_what_is_to_be_awaited() -> None:
    assert with_tool(lambda request: echo(request)).turns[0]["tool_result"] == '{"found":["?"]}'


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_tool_that_would_end_the_process_fails_alone(asynchronous: bool) -> None:
    async def leave(request: Any) -> Any:
        raise SystemExit(3)

    played = with_tool(leave if asynchronous else lambda request: sys.exit(3))
    assert "the tool called exit(3)" in played.episode["error"]
    assert played.turns[0]["status"] == "infra_error"


@pytest.mark.parametrize(("result", "cause"), [
    ("x" * 2000, "2002 bytes as JSON, more than 1000"),
    ("é" * 600, "1202 bytes"),
    ({1: object()}, "not JSON"),
    (nested(20_000), "not JSON"),
    ({"a": float("inf")}, "not JSON"),
])  # fmt: skip
def test_a_result_that_fits_no_row_is_a_fault_of_the_tool(result: Any, cause: str) -> None:
    played = with_tool(lambda request: result, max_value_bytes=1000)
    assert (played.turns[0]["status"], played.turns[0]["tool_result"]) == ("infra_error", None)
    assert cause in played.episode["error"]
    rows_to_table(played.turns, TURNS)


# --- time, cancellation, threads ----------------------------------------------------------------


def test_cancelling_a_play_cancels_the_tool_that_it_waits_for() -> None:
    heard: list[str] = []

    async def slow(request: Any) -> Any:
        try:
            await never()
        finally:
            heard.append("end")

    async def run() -> None:
        player = Player(tool_workflow(slow), {}, ModelMap({}, {}), {}, PlayLimits(), 0)
        play = asyncio.create_task(player.play(TASK, iteration=0, sample=0))
        await turns_of_the_loop()
        play.cancel()
        with pytest.raises(asyncio.CancelledError):
            await play

    asyncio.run(run())
    assert heard == ["end"]


def test_a_tool_that_ignores_its_cancellation_is_left_behind() -> None:
    swallowed: list[bool] = []

    async def deaf(request: Any) -> Any:
        try:
            await never()
        except asyncio.CancelledError:
            swallowed.append(True)
        await never()

    played = with_tool(deaf, tool_timeout_seconds=0.01, grace_seconds=0.01)
    assert swallowed == [True]
    assert played.turns[0]["status"] == "timeout"
    assert "did not end within 0.01 s of being cancelled" in played.turns[0]["status_detail"]


def test_a_reply_that_comes_while_the_tool_is_being_stopped_counts() -> None:
    async def late(request: Any) -> Any:
        try:
            await never()
        except asyncio.CancelledError:
            return {"found": []}

    played = with_tool(late, tool_timeout_seconds=0.01)
    assert (played.turns[0]["status"], played.turns[0]["tool_result"]) == ("ok", '{"found":[]}')


def test_a_thread_that_outlives_its_call_is_counted_until_it_ends() -> None:
    release = threading.Event()

    async def run() -> tuple[Played, int, int]:
        w = tool_workflow(lambda request: release.wait(20))
        limits = PlayLimits(tool_timeout_seconds=0.01, backoff_seconds=0)
        player = Player(w, {}, ModelMap({}, {}), {}, limits, 0)
        played = await player.play(TASK, iteration=0, sample=0)
        during = player.stray_threads
        release.set()
        while player.stray_threads:
            await asyncio.sleep(0.001)
        return played, during, player.stray_threads

    played, during, after = asyncio.run(run())
    assert (during, after) == (1, 0)
    assert "its thread goes on (1 of 64 threads are like it)" in played.turns[0]["status_detail"]


def test_threads_that_never_end_are_bounded_and_then_calls_fail_at_once() -> None:
    release = threading.Event()

    async def run() -> list[Played]:
        w = tool_workflow(lambda request: release.wait(20))
        limits = PlayLimits(tool_timeout_seconds=0.01, backoff_seconds=0)
        player = Player(w, {}, ModelMap({}, {}), {}, limits, 0)
        player._threads = ToolThreads(limit=2)
        played = await asyncio.gather(*(player.play(TASK, iteration=0, sample=i) for i in range(5)))
        assert player.stray_threads == 2
        release.set()
        return played

    statuses = [p.turns[0]["status"] for p in asyncio.run(run())]
    assert statuses == ["timeout"] * 2 + ["infra_error"] * 3


def test_waiting_for_a_thread_is_not_on_the_clock_of_the_call() -> None:
    async def run() -> list[Played]:
        w = tool_workflow(lambda request: time.sleep(0.05))
        player = Player(w, {}, ModelMap({}, {}), {}, PlayLimits(tool_timeout_seconds=0.25), 0)
        player._threads = ToolThreads(limit=1)
        return await asyncio.gather(*(player.play(TASK, iteration=0, sample=i) for i in range(12)))

    assert {p.turns[0]["status"] for p in asyncio.run(run())} == {"ok"}  # 0.6 s for all of them


def test_a_tool_that_keeps_time_itself_is_not_timed_by_the_player() -> None:
    class Slow:
        def __init__(self, keeps_time: bool):
            self.keeps_time = keeps_time

        async def __call__(self, request: Any) -> str:
            await asyncio.sleep(0.3)
            return "done"

    for keeps_time, status in ((True, "ok"), (False, "timeout")):
        turns = with_tool(Slow(keeps_time), tool_timeout_seconds=0.05, call_attempts=1).turns
        assert [t["status"] for t in turns if t["event"] == "tool"] == [status]
