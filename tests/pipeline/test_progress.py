"""Progress on a terminal and off it, and calls that hang."""

import io
import time

import pytest

from pipeline.tracking.deadline import Worker
from pipeline.views.progress import LINE_SECONDS, WINDOW_SECONDS, Meter, Named, RichProgress, duration
from workflows.errors import CadreError


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_rate_is_that_of_the_last_half_minute():
    clock = Clock()
    meter = Meter(clock)
    assert meter.rate() is None
    for _ in range(100):
        clock.now += 1
        meter.add(5)
    assert meter.rate() == pytest.approx(5)
    clock.now += 2 * WINDOW_SECONDS
    assert meter.rate() < 2  # it falls when nothing comes
    meter.add(0)
    assert meter.mean() == 500 / clock.now


def test_without_a_terminal_progress_is_a_line_now_and_then_and_one_at_the_end():
    clock, file = Clock(), io.StringIO()
    progress = RichProgress(file, clock)
    progress.start("rollout [x]", 60, "episode")
    for _ in range(60):
        clock.now += 1
        progress.advance(1, tokens=50)
    progress.finish()
    progress.finish()
    progress.advance()  # after the end: nothing
    lines = file.getvalue().splitlines()
    assert len(lines) == 2 + 60 / LINE_SECONDS
    assert lines[0] == "rollout [x]: 60 episodes"
    assert lines[1] == "rollout [x]: 10/60 episodes  1 episodes/s  50 tokens/s  50 s left"
    assert lines[-1] == "rollout [x]: 60 episodes in 60.0 s, 1 episodes/s, 50 tokens/s"


def test_what_happens_meanwhile_is_a_line_and_the_stage_goes_on_under_it():
    clock, file = Clock(), io.StringIO()
    progress = RichProgress(file, clock)
    progress.start("rollout", 2, "episode")
    Named(progress, "iteration 3").say("replica 2 of engine 'team' died")
    clock.now += 1
    progress.advance(2)
    progress.finish()
    lines = file.getvalue().splitlines()
    assert lines[1] == "iteration 3: replica 2 of engine 'team' died"
    assert lines[2].startswith("rollout: 2 episodes in 1.0 s")


def test_a_stage_without_a_unit_shows_its_time():
    clock, file = Clock(), io.StringIO()
    progress = RichProgress(file, clock)
    progress.start("start trainer of team", None, "")
    clock.now += 3
    progress.finish()
    progress.start("start engines", 1, "engine")
    progress.advance()
    progress.finish()
    lines = file.getvalue().splitlines()
    assert lines[:2] == ["start trainer of team", "start trainer of team: 3.0 s"]
    assert lines[2:] == ["start engines: 1 engine", "start engines: 1 engine in 0.0 s"]


def test_on_a_terminal_a_bar_moves_and_gives_way_to_its_last_line(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    clock, file = Clock(), io.StringIO()
    progress = RichProgress(file, clock)
    progress.start("reward", 4, "part")
    clock.now += 2
    progress.advance(4)
    progress.start("credit", None, "part")  # starting ends the stage before
    progress.finish()
    out = file.getvalue()
    assert "reward: 4 parts in 2.0 s, 2 parts/s" in out
    assert "credit: 0 parts" in out


def test_many_threads_advance_without_losing_any():
    from concurrent.futures import ThreadPoolExecutor

    file = io.StringIO()
    progress = RichProgress(file, Clock())
    progress.start("x", 4000, "episode")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: progress.advance(1, tokens=2), range(4000)))
    progress.finish()
    assert "x: 4,000 episodes" in file.getvalue().splitlines()[-1]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (59.6, "1:00"), (187, "3:07"), (7387, "2:03:07")]
)
def test_durations_are_readable(seconds, shown):
    assert duration(seconds) == shown


def test_a_call_that_hangs_is_left_behind_and_those_after_it_do_not_wait():
    worker = Worker("test")
    assert worker.run(lambda: 1, 5) == 1
    with pytest.raises(ZeroDivisionError):
        worker.run(lambda: 1 / 0, 5)
    with pytest.raises(TimeoutError, match="no answer"):
        worker.run(lambda: time.sleep(0.2), 0.01)
    with pytest.raises(TimeoutError, match="earlier call"):
        worker.run(lambda: 2, 60)
    time.sleep(0.3)
    assert worker.run(lambda: 3, 5) == 3
    worker.close()
    with pytest.raises(CadreError):
        worker.run(lambda: 4, 5)
