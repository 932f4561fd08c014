"""Waits for Ray have a limit and a name, end with the first failure, and let a stop through."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from pipeline.plan.assemble import assemble
from pipeline.run.session import session
from pipeline.settings.reading import parse_settings
from stages.base import Quiet
from stages.engines.base import EngineSpec
from stages.engines.start import start_engine
from stages.waiting import Overdue, answer, answers, came
from workflows.errors import RunFailed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]


class Actor:
    """Answers at once, late, or with an error."""

    def now(self, value: int) -> int:
        return value

    def late(self) -> None:
        time.sleep(3600)

    def fail(self) -> None:
        raise ValueError("no")


@pytest.fixture
def actors() -> Any:
    made = [ray.remote(num_cpus=0)(Actor).remote() for _ in range(2)]
    assert answers([a.now.remote(0) for a in made], "actors", 120) == [0, 0]
    yield made
    for actor in made:
        ray.kill(actor)


def test_answers_come_in_order_and_a_limit_names_what_was_waited_for(actors: list[Any]) -> None:
    one, other = actors
    assert answers([one.now.remote(1), other.now.remote(2)], "two numbers", 60) == [1, 2]
    ticks: list[int] = []
    with pytest.raises(
        Overdue, match=r"two numbers did not finish within 1.2 s; raise cluster\.x if"
    ) as late:
        answers(
            [one.now.remote(1), other.late.remote()],
            "two numbers",
            1.2,
            setting="cluster.x",
            tick=lambda: ticks.append(1),
        )
    assert late.value.unfinished == (1,)
    assert ticks
    assert not came(other.now.remote(1), 0.1)  # it still has the other call


def test_the_first_failure_ends_the_wait_for_all(actors: list[Any]) -> None:
    one, other = actors
    with pytest.raises(ray.exceptions.RayTaskError, match="no"):
        answers([one.late.remote(), other.fail.remote()], "both", 60)


def test_a_handler_that_raises_ends_the_wait_at_once(
    actors: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in slices of the wait, for a clock would measure how busy the machine is."""

    class Stop(KeyboardInterrupt):
        pass

    def stop(number: int, frame: object) -> None:
        raise Stop

    wait, slices, sent = ray.wait, [0], [0]

    def counted(*arguments: Any, **options: Any) -> Any:
        slices[0] += 1
        return wait(*arguments, **options)

    def send() -> None:
        sent[0] = slices[0]
        os.kill(os.getpid(), signal.SIGUSR1)

    monkeypatch.setattr(ray, "wait", counted)
    before = signal.signal(signal.SIGUSR1, stop)
    try:
        threading.Timer(1.0, send).start()
        with pytest.raises(KeyboardInterrupt):
            answer(actors[0].late.remote(), "nothing", 600)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert slices[0] <= sent[0] + 2


@pytest.mark.parametrize(
    ("stuck", "setting", "what"),
    [
        ("start", "engine_start_seconds", r"the start of engine 'team'"),
        ("sleep", "engine_call_seconds", r"the sleep of engine 'team'"),
        ("reload", "engine_call_seconds", r"new weights for engine 'team'"),
        ("player", "player_start_seconds", r"the start of a player of workflow 'tests\.support\.stuck:work"),
    ],
)
def test_the_waits_of_a_run_have_limits_that_are_settings(
    stuck: str, setting: str, what: str, scripted: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    from tests.whole.test_stops import stuck as settings_of

    mark = tmp_path / "mark"
    raw = scripted(**settings_of(stuck, mark), cluster={setting: 8.0 if stuck == "start" else 3.0})
    message = rf"{what}.* did not finish within \d s; raise cluster\.{setting} if"
    with (
        pytest.raises(RunFailed, match=message),
        session(assemble(parse_settings(raw)), Quiet(), signals=False) as runner,
    ):
        runner.run_iteration()
    os.kill(int(mark.read_text()), signal.SIGKILL)  # the child of the process that was ended by force


def test_an_engine_that_leaves_its_process_says_so() -> None:
    with pytest.raises(RunFailed, match="does not start: SystemExit: no device"):
        start_engine(EngineSpec("team", "tests.stages.test_start_failures:Leaving", ""))
