"""Forecasts: exact for a steady pace, wider for less knowledge, kept with what came of them, and judged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomlkit
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.check import check
from pipeline.cli.iteration import iteration
from pipeline.cli.train import train
from pipeline.experiments.compare import named_runs
from pipeline.experiments.comparison import as_dict, compare
from pipeline.experiments.comparison_view import comparison_page
from pipeline.experiments.forecast import left_of_runs
from pipeline.metrics.forecast import Ahead, Forecast, Made, Pace, Range, Record, Step, forecast
from pipeline.plan.ahead import ahead_of, forecast_of, forecast_values
from pipeline.plan.assemble import assemble, assemble_evaluation
from pipeline.run.fleet import Fleet
from pipeline.run.forecasting import ForecastLog
from pipeline.settings.reading import parse_settings
from pipeline.store.finished import Finished
from pipeline.store.pace import FILE, machine_kind, own_pace, read_record, stored_pace, write_record
from pipeline.store.run import Run
from pipeline.store.runs import find_run
from pipeline.tracking.tracker import NoTracker
from pipeline.views.forecast import forecast_line, forecast_text, score, verdict
from pipeline.views.render import as_text
from tests.support.small_runs import make_run

Raw = Callable[..., dict[str, Any]]
SECONDS = st.floats(0.1, 1000)


def steps(*seconds: float, tokens: float = 100.0, episodes: float = 8.0) -> list[Step]:
    return [Step(tokens, s, 2.0, episodes) for s in seconds]


@given(SECONDS, st.integers(1, 500), st.integers(1, 12))
def test_a_steady_pace_is_forecast_exactly_and_its_range_is_around_it(
    seconds: float, ahead: int, measured: int
) -> None:
    made = forecast(Pace("run", "this run", steps(*[seconds] * measured)), Ahead(ahead, starts=False))
    assert made.seconds.middle == pytest.approx(seconds * ahead)
    assert made.tokens.middle == pytest.approx(100 * ahead)
    for expected in (made.seconds, made.tokens, made.memory_gib):
        assert expected is not None
        assert expected.low < expected.middle < expected.high


def test_less_knowledge_is_a_wider_range() -> None:
    def width(source: Any, count: int) -> float:
        made = forecast(Pace(source, "x", steps(*[10.0] * count)), Ahead(20, starts=False))
        return (made.seconds.high - made.seconds.low) / made.seconds.middle

    assert width("run", 5) < width("run", 1) < width("stored", 5) < width("similar", 5)


def test_one_iteration_that_a_hiccup_made_long_does_not_move_the_middle() -> None:
    made = forecast(Pace("run", "x", steps(10, 10, 10, 90, 10)), Ahead(10, starts=False))
    assert made.seconds.middle == pytest.approx(100)
    assert made.seconds.high > 140


def test_other_numbers_of_episodes_scale_and_starts_and_evaluations_add_up() -> None:
    pace = Pace("stored", "x", steps(10.0), evaluations=[4.0, 6.0], starts=30.0)
    plain = forecast(pace, Ahead(10, starts=False))
    twice = forecast(pace, Ahead(10, starts=False, episodes=16.0))
    assert twice.seconds.middle == pytest.approx(2 * plain.seconds.middle)
    assert twice.tokens.middle == pytest.approx(2 * plain.tokens.middle)
    whole = forecast(pace, Ahead(10, evaluations=3))
    assert whole.seconds.middle == pytest.approx(100 + 3 * 5 + 30)
    unmeasured = forecast(
        replace(pace, evaluations=()), Ahead(10, evaluations=3, starts=False, evaluated_episodes=8.0)
    )
    assert unmeasured.seconds.middle > 100


def test_the_first_iteration_of_a_call_is_no_measure_of_later_ones() -> None:
    """It takes a second more, and where there are others, they alone count; the first evaluation is alike."""
    cold = Step(100.0, 10.0, 2.0, 8.0, is_cold=True)
    alone = forecast(Pace("run", "x", [cold]), Ahead(10, starts=False))
    assert alone.seconds.middle == pytest.approx(90)
    short = forecast(Pace("run", "x", [replace(cold, seconds=0.5)]), Ahead(10, starts=False))
    assert 0 < short.seconds.middle < 5
    later = forecast(Pace("run", "x", [cold, *steps(6.0, 6.0)]), Ahead(10, starts=False))
    assert later.seconds.middle == pytest.approx(60)
    first = Pace("run", "x", steps(2.0), evaluations=[30.0])
    assert forecast(first, Ahead(0, 1, starts=False, evaluated_episodes=4.0)).seconds.middle < 2.0


def test_nothing_measured_forecasts_nothing() -> None:
    with pytest.raises(ValueError, match="at least one measured iteration"):
        forecast(Pace("run", "x", []), Ahead(1))


def test_error_and_range_are_judged_against_the_truth() -> None:
    made = Made(
        forecast(Pace("run", "this run", steps(10.0)), Ahead(10, starts=False)), 1, 1000.0, 125.0, 4.0
    )
    seconds, truth = made.pairs()["seconds"]
    assert seconds.error(truth) == pytest.approx(0.2)
    assert seconds.holds(truth)
    assert not Range(1, 2, 3).holds(4)
    text = verdict(made)
    assert "off by 20%, in its range" in text
    assert "OUT of its range" in text  # memory: 2 GiB, and it was 4
    assert score([made]) == "3 numbers: median error 20%, 2 of 3 in their range"
    assert score([Made(made.forecast, 1)]) is None


def test_a_record_reads_back_as_it_was_written_and_a_broken_one_is_empty(tmp_path: Path) -> None:
    run = make_run(tmp_path, "r", [0.1])
    assert read_record(run) == Record()
    made = Made(forecast(Pace("run", "x", steps(1.0)), Ahead(2)), 1, 3.0, 4.0, None)
    record = Record(machine_kind(), steps(1.0, 2.0), [3.0], 4.0, [made])
    write_record(run, record)
    assert read_record(run) == record
    run.folder.write_text(FILE, '{"steps": [')
    assert read_record(run) == Record()


def test_the_pace_of_another_machine_counts_for_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path, "r", [0.1])
    record = Record(machine_kind(), steps(1.0))
    assert own_pace(run, record) is not None
    assert own_pace(run, replace(record, machine="96 cores, other")) is None


def test_a_stored_run_of_the_same_team_is_taken_before_one_of_another_regime(tmp_path: Path) -> None:
    identity = {"workflow": {"use": "signal"}, "models": {"team": "tiny-words"}}

    def store(name: str, regime: str, used_at: float, machine: str, **changes: Any) -> None:
        run = make_run(tmp_path, name, [0.1], regime=regime)
        run.read_info()
        run.write_info(identity=identity | changes, used_at=used_at)
        write_record(run, Record(machine, steps(1.0)))

    assert stored_pace(str(tmp_path), identity, "full") is None
    store("other", "separate", 9.0, machine_kind())
    found = stored_pace(str(tmp_path), identity, "full")
    assert found is not None
    assert (found.source, found.where) == ("similar", "run other")
    store("old", "full", 1.0, machine_kind())
    store("new", "full", 2.0, machine_kind())
    store("elsewhere", "full", 3.0, "96 cores, other")
    store("another-team", "full", 4.0, machine_kind(), workflow={"use": "debate"})
    found = stored_pace(str(tmp_path), identity, "full")
    assert found is not None
    assert (found.source, found.where) == ("stored", "run new")
    found = stored_pace(str(tmp_path), identity, "full", but="new")
    assert found is not None
    assert found.where == "run old"


def test_check_says_what_is_to_come_or_that_nothing_was_measured(scripted: Raw) -> None:
    plan = assemble(parse_settings(scripted()))
    assert "no iteration was measured here yet" in forecast_text(forecast_values(plan))
    assert forecast_of(plan, None, 0, 5) is None
    run = Run(plan.resolved.run.root, plan.resolved.run.name)
    run.write_info(name=run.name, identity={})
    write_record(run, Record(machine_kind(), steps(7.0)))
    text = forecast_text(forecast_values(plan, wanted=3))
    assert text.startswith("3 iterations: about ")
    assert "from 1 iteration of this run" in text
    run.iteration(0).folder.write_text("done.json", json.dumps({"metrics": {}}))
    assert forecast_text(forecast_values(plan, wanted=1)) == "the run has its 1 iterations already"


def test_evaluations_to_come_are_counted_with_the_last_one(scripted: Raw) -> None:
    plan = assemble(
        parse_settings(scripted(evaluate={"every": 2, "tasks": 4, "rewards": [{"use": "token_f1"}]}))
    )
    evaluation = assemble_evaluation(plan)
    assert ahead_of(plan, evaluation, 0, 5).evaluations == 3 + 1
    assert ahead_of(plan, evaluation, 3, 5).evaluations == 1 + 1
    assert ahead_of(plan, None, 0, 5).evaluations == 0
    assert ahead_of(plan, evaluation, 0, 5).evaluated_episodes == 4


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_training_keeps_its_pace_and_what_came_of_its_forecast(scripted: Raw) -> None:
    """Three iterations of 10 s after 40 s of starts: the forecast after the first is of the other two."""
    plan = assemble(parse_settings(scripted()))
    run = Run(plan.resolved.run.root, plan.resolved.run.name)
    run.write_info(name=run.name, identity={})
    clock = Clock()
    log = ForecastLog(plan, None, 3, clock)
    assert "no iteration was measured" in log.begin()
    clock.now = 15.0
    log.ready()
    episodes = float(plan.resolved.data.tasks_per_iteration * plan.resolved.rollout.group_size)
    metrics = {"rollout/response_tokens": 50.0, "rollout/episodes": episodes, "memory/peak_gib": 1.5}
    lines = []
    for index in range(3):
        clock.now += 10.0 + (25.0 if index == 0 else 0.0)
        run.iteration(index).folder.write_text("done.json", json.dumps({"metrics": metrics}))
        lines.append(log.finished(Finished(run.iteration(index), metrics=metrics), 25.0))
    log.end()
    assert lines[0] is not None
    assert lines[0].startswith("forecast  2 iterations: about ")
    assert lines[1:] == [None, None]
    record = read_record(run)
    assert [step.seconds for step in record.steps] == [10.0, 10.0, 10.0]
    assert record.starts == 15.0 + 25.0
    (made,) = record.made
    assert made.after == 1
    assert (made.tokens, made.seconds, made.memory_gib) == (100.0, 20.0, 1.5)
    assert all(expected.holds(truth) for expected, truth in made.pairs().values())
    # the next call of the same run knows its pace from the start
    again = ForecastLog(plan, None, 5, clock)
    assert "from 2 iterations of this run" in again.begin()  # the first one was cold


def test_a_call_that_is_stopped_leaves_its_pace_and_no_verdict(scripted: Raw) -> None:
    plan = assemble(parse_settings(scripted()))
    run = Run(plan.resolved.run.root, plan.resolved.run.name)
    run.write_info(name=run.name, identity={})
    log = ForecastLog(plan, None, 9, Clock())
    log.begin()
    log.ready()
    run.iteration(0).folder.write_text("done.json", json.dumps({"metrics": {}}))
    log.finished(Finished(run.iteration(0), metrics={"rollout/episodes": 1.0}), 0.0)
    log.end()
    assert len(read_record(run).steps) == 1
    assert read_record(run).made == []


def test_compare_says_how_good_forecasts_were(tmp_path: Path) -> None:
    made = Made(
        forecast(Pace("run", "this run", steps(10.0)), Ahead(10, starts=False)), 1, 1000.0, 125.0, 2.0
    )
    for name in ("a", "b"):
        write_record(make_run(tmp_path, name, [0.1, 0.2]), Record(machine_kind(), steps(1.0), made=[made]))
    named = named_runs(["a", "b"], str(tmp_path))
    comparison = compare(named.histories)
    text = as_text(comparison_page(comparison), 200)
    assert "a: sampled tokens" in text
    assert "all: 6 numbers: median error 0%, 6 of 6 in their range" in text
    assert len(as_dict(comparison)["variants"][0]["forecasts"]) == 2
    make_run(tmp_path, "c", [0.1])
    make_run(tmp_path, "d", [0.1])
    silent = compare(named_runs(["c", "d"], str(tmp_path)).histories)
    assert "Forecasts" not in as_text(comparison_page(silent), 200)


def test_a_forecast_is_one_line_with_its_ranges_and_its_source() -> None:
    made = Forecast(
        60, Range(24e3, 30e3, 40e3), Range(90, 130, 200), Range(1, 1.2, 1.5), "stored", "run a", 8
    )
    assert forecast_line(made) == (
        "60 iterations: about 30 k sampled tokens (24 k to 40 k), 2:10 (1:30 to 3:20), 1.2 GiB (1.0 GiB to "
        "1.5 GiB); from 8 iterations of run a"
    )
    assert Forecast.of_dict(json.loads(json.dumps(made.as_dict()))) == made


class Runner:
    """What `run train` asks of a runner: it finishes iterations without a cluster."""

    def __init__(self, plan: Any) -> None:
        self.run = Run(plan.resolved.run.root, plan.resolved.run.name)
        self.run.write_info(name=self.run.name, identity={})
        self.fleet, self.tracker = SimpleNamespace(start_seconds=0.0), NoTracker()

    def train(self, iterations: int, evaluation: Any, on_done: Any, on_evaluated: Any) -> None:
        for index in range(iterations):
            done = Finished(self.run.iteration(index), metrics={"rollout/episodes": 4.0, "return/mean": 0.5})
            done.store.folder.write_text("done.json", json.dumps({"metrics": dict(done.metrics)}))
            on_done(done)

    def run_iteration(self) -> Finished:
        self.train(1, None, lambda _: False, None)
        return Finished(self.run.iteration(0), metrics={"rollout/episodes": 4.0})

    def check_trained(self) -> None:
        pass


@pytest.fixture
def without_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def session(plan: Any, *arguments: Any, **more: Any) -> Iterator[Runner]:
        yield Runner(plan)

    monkeypatch.setattr("pipeline.run.session.session", session)


@pytest.mark.usefixtures("without_cluster")
@pytest.mark.parametrize("verb", ["train", "iteration"])
def test_the_first_line_of_a_run_is_its_forecast(
    verb: str, scripted: Raw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(tomlkit.dumps(scripted()))
    if verb == "train":
        train(3, str(config), [])
    else:
        iteration(str(config), [])
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines[0].startswith("forecast  no iteration was measured here yet")
    assert sum(line.startswith("forecast  2 iterations: about") for line in lines) == (verb == "train")
    assert read_record(find_run(str(tmp_path / "runs"), scripted()["run"]["name"])).steps


def test_a_dry_run_of_a_training_forecasts_all_of_it(
    scripted: Raw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(tomlkit.dumps(scripted()))
    run = Run(str(tmp_path / "runs"), scripted()["run"]["name"])
    write_record(run, Record(machine_kind(), steps(7.0)))
    run.write_info(name=run.name, identity={})
    train(20, str(config), [], dry_run=True)
    assert "forecast  20 iterations: about" in capsys.readouterr().out


def test_starts_within_a_start_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("pipeline.run.fleet.time.monotonic", lambda: float(next(clock)))
    nothing: Any = None
    fleet = Fleet(nothing, nothing, {}, {}, {}, 1, 1, nothing, nothing)
    with fleet._starting(), fleet._starting():
        pass
    assert fleet.start_seconds == 1.0
    with pytest.raises(ValueError, match="failed"), fleet._starting():
        raise ValueError("failed")
    assert fleet.start_seconds == 2.0


def test_several_runs_are_forecast_together(scripted: Raw) -> None:
    """Two runs of 5 iterations of 10 s, one of which has 3, and one of which nothing is known."""
    plan = assemble(parse_settings(scripted()))
    episodes = float(plan.resolved.data.tasks_per_iteration * plan.resolved.rollout.group_size)
    root = plan.resolved.run.root
    assert left_of_runs(root, []) == "nothing is left to do"
    assert "no iteration was measured" in left_of_runs(root, [(plan, "a", 5)])
    for name, done in (("a", 0), ("b", 3)):
        run = Run(root, name)
        run.write_info(name=name, identity={})
        write_record(run, Record(machine_kind(), steps(10.0, episodes=episodes)))
        for index in range(done):
            run.iteration(index).folder.write_text("done.json", "{}")
    text = left_of_runs(root, [(plan, "a", 5), (plan, "b", 5), (plan, "c", 5)])
    assert text.startswith("2 runs: about 700 sampled tokens, 1:10 (")
    assert text.endswith("; nothing is known of 1 more")


def test_a_probe_measures_one_task_and_leaves_nothing(
    scripted: Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = []

    @contextmanager
    def session(plan: Any, progress: Any) -> Iterator[Runner]:
        plans.append(plan)
        yield Runner(plan)

    monkeypatch.setattr("pipeline.run.probe.session", session)
    config = tmp_path / "settings.toml"
    config.write_text(tomlkit.dumps(scripted()))
    check(str(config), [], probe=True)
    assert "from 1 iteration of a probe" in capsys.readouterr().out
    (plan,) = plans
    assert plan.resolved.data.tasks_per_iteration == 1
    assert not Path(plan.resolved.run.root).exists()
    assert not (tmp_path / "runs").exists()
