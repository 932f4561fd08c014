"""A sweep goes on where it was stopped, tells what failed, and is fair: the same tasks and episodes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import tomlkit

from pipeline.experiments.compare import named_runs
from pipeline.experiments.comparison import compare
from pipeline.experiments.comparison_view import sweep_table
from pipeline.experiments.process import Progress, cause_of, train_apart
from pipeline.experiments.sweep import Sweep, SweepOptions, dry_run, plan_sweep, run_sweep, seconds_left
from pipeline.experiments.sweep_folder import SweepFolder
from pipeline.experiments.sweep_record import begin_record, child_tags, reopen_record
from pipeline.plan.assemble import assemble
from pipeline.run.session import session
from pipeline.settings.reading import parse_settings, settings_toml
from pipeline.settings.schema import Settings
from pipeline.store.folder import Folder
from pipeline.store.run import Run
from pipeline.tracking.tracker import Parameters
from pipeline.views.render import as_text
from stages.base import Quiet
from tests.support.small_runs import make_run
from tests.whole.test_kills import finish, start, tables, wait_for
from workflows.errors import RunFailed, UsageError

SIGNAL: dict[str, Any] = {
    "run": {"name": "signal"},
    "data": {"path": "2", "format": "workflows.teams.signal:tasks", "tasks_per_iteration": 2},
    "workflow": {"use": "signal"},
    "models": {
        "team": {
            "checkpoint": "tiny-words",
            "engine": "torch",
            "max_model_len": 16,
            "kv_cache_gib": 0.1,
            "trainer": {"precision": "fp32", "num_threads": 1},
        }
    },
    "rollout": {"group_size": 4},
    "rewards": [{"use": "exact_match"}],
    "tracking": {"uri": "none"},
    "cluster": {"object_store_gib": 0.2},
}
REGIMES = "full,separate,adapters"


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., Sweep]:
    """`planned(regimes=…, grid=…, seeds=…)`: a sweep of the signalling game under `tmp_path`."""
    config = tmp_path / "signal.toml"
    config.write_text(tomlkit.dumps(SIGNAL))

    def plan(*overrides: str, iterations: int = 1, **options: Any) -> Sweep:
        root = f'run.root="{tmp_path}/runs"'
        wanted = SweepOptions(iterations=iterations, **({"name": "s"} | options))
        return plan_sweep(str(config), [root, *overrides], wanted)

    return plan


class Written:
    """Makes a run by writing its folder, and keeps which; those in `broken` fail with that cause."""

    def __init__(self, **broken: str) -> None:
        self.calls: list[str] = []
        self.broken = broken

    def __call__(
        self, settings: Settings, iterations: int, logs: Folder, on_progress: Progress
    ) -> str | None:
        run = settings.run
        self.calls.append(run.name)
        if run.name in self.broken:
            return self.broken[run.name]
        make_run(Path(run.root), run.name, [0.1] * iterations, seed=run.seed)
        on_progress(iterations)
        return None


def states(sweep: Sweep) -> dict[str, str]:
    return {c.name: c.state for c in SweepFolder(sweep.root, sweep.name).children.values()}


def test_the_forecast_of_a_sweep_is_that_of_its_finished_runs(planned: Any) -> None:
    """Two regimes and two seeds: the runs that are left take what those of their regime took."""
    sweep = planned(regimes="full,separate", seeds="0,1")
    folder = SweepFolder(sweep.root, sweep.name)
    folder.begin(settings_toml(sweep.base), sweep.base.fingerprint(), {})
    assert seconds_left(sweep, folder, 0, 100.0) is None
    for member, seconds in zip(sweep.members, (10.0, 30.0), strict=False):
        make_run(Path(sweep.root), member.name, [0.1], seed=member.seed)
        child = folder.child(member.name, member.point.label, member.seed)
        child.state, child.seconds = "finished", seconds
    assert seconds_left(sweep, folder, 2, 0.0) == 10.0 + 30.0
    assert seconds_left(sweep, folder, 2, 4.0) == 6.0 + 30.0
    assert seconds_left(sweep, folder, 2, 40.0) == 30.0  # late, and what comes after is no less
    assert seconds_left(sweep, folder, 3, 0.0) == 30.0
    folder.children[sweep.members[1].name].state = "failed"
    assert seconds_left(sweep, folder, 3, 0.0) == 10.0  # no run of its regime has finished


@pytest.mark.parametrize("name", ["s", "a-sweep-with-a-name-of-forty-characters-x"])
def test_a_dry_run_fits_into_80_columns_with_whole_names(planned: Any, name: str) -> None:
    sweep = planned(regimes="full,separate", grid=["ppo.learning_rate=1e-6,1e-5"], name=name)
    rows = [
        {
            "run": member.name,
            "point": member.point.label,
            "seed": member.seed,
            "state": "1 of 1, not ended",
            "parameters": {"trained": 1e6, "held": 2e6},
            "memory_gib": 3.0,
        }
        for member in sweep.members
    ]
    lines = as_text(sweep_table(rows), 80).splitlines()
    assert all(any(member.name in line for line in lines) for member in sweep.members)
    assert sum("1 of 1, not ended" in line for line in lines) == len(rows)
    assert max(map(len, lines)) <= 80


def test_every_point_meets_every_seed_and_seeds_come_one_after_another(planned: Any) -> None:
    sweep = planned(regimes="full,separate", seeds="3,5")
    assert [m.name for m in sweep.members] == ["s-full-s3", "s-separate-s3", "s-full-s5", "s-separate-s5"]
    made = [sweep.settings_of(m, {"a": "b"}) for m in sweep.members]
    assert [s.run.seed for s in made] == [3, 3, 5, 5]
    assert made[0].tracking.tags == {"a": "b"}
    for key in ("data", "rollout", "evaluate"):
        assert len({str(getattr(s, key)) for s in made}) == 1


def test_what_is_finished_is_not_run_again_and_what_is_gone_is(planned: Any) -> None:
    train, sweep = Written(), planned(regimes="full,separate")
    run_sweep(sweep, train)
    run_sweep(sweep, train)
    assert train.calls == ["s-full-s0", "s-separate-s0"]
    shutil.rmtree(Path(sweep.root) / "s-full-s0")
    run_sweep(sweep, train)
    assert train.calls[2:] == ["s-full-s0"]
    run_sweep(planned(regimes="full,separate", iterations=2), train)  # more iterations: all go on
    assert train.calls[3:] == ["s-full-s0", "s-separate-s0"]
    run_sweep(
        planned(regimes="full,separate", iterations=2, seeds="0,1"), train
    )  # and more seeds: only those
    assert train.calls[5:] == ["s-full-s1", "s-separate-s1"]
    assert set(states(sweep).values()) == {"finished"}


def test_a_run_that_fails_is_told_with_its_cause_and_the_others_go_on(planned: Any) -> None:
    sweep = planned(grid=["ppo.learning_rate=1e-6,1e-5,1e-4"])
    train = Written(**{"s-learning_rate-1e-5-s0": "no memory left"})
    with pytest.raises(RunFailed, match=r"1 of 3 runs failed.*\n  s-learning_rate-1e-5-s0: no memory left"):
        run_sweep(sweep, train)
    assert list(states(sweep).values()) == ["finished", "failed", "finished"]
    train.broken.clear()
    run_sweep(sweep, train)
    assert train.calls[3:] == ["s-learning_rate-1e-5-s0"]


def test_a_sweep_that_is_interrupted_keeps_what_it_has(planned: Any) -> None:
    sweep, done = planned(regimes="full,separate"), Written()

    def train(settings: Settings, *rest: Any) -> str | None:
        if "separate" in settings.run.name:
            raise KeyboardInterrupt
        return done(settings, *rest)

    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, train)
    assert states(sweep) == {"s-full-s0": "finished", "s-separate-s0": "running"}
    run_sweep(sweep, done)
    assert done.calls == ["s-full-s0", "s-separate-s0"]


def test_other_settings_under_the_same_name_are_refused_with_the_difference(planned: Any) -> None:
    own = ["adapters:ppo.learning_rate=0.1"]
    run_sweep(planned(regimes="full,adapters", set_for=own), Written())
    with pytest.raises(UsageError, match=r"rollout\.group_size: 4 → 8; set them back"):
        run_sweep(planned("rollout.group_size=8", regimes="full,adapters", set_for=own), Written())
    with pytest.raises(UsageError, match=r"at a point: adapters\.overrides"):
        run_sweep(planned(regimes="full,adapters"), Written())
    make_run(Path(planned(regimes="full").root), "taken", [0.1])
    with pytest.raises(UsageError, match="is a run, so no sweep can have its name"):
        run_sweep(planned(regimes="full,separate", name="taken"), Written())


def test_a_point_that_can_not_work_is_refused_before_anything_runs(planned: Any) -> None:
    train = Written()
    with pytest.raises(UsageError, match=r"point 'groups:a=sender'.* leave out role 'receiver'"):
        run_sweep(planned(regimes="full,groups:a=sender"), train)
    with pytest.raises(UsageError, match="did you mean 'group_size'"):
        planned(grid=["rollout.group_sise=2,4"])
    assert train.calls == []


def test_a_dry_run_lists_every_run_with_its_state_and_writes_nothing(planned: Any, capsys: Any) -> None:
    sweep = planned(regimes=REGIMES, seeds="0,1")
    dry_run(sweep)
    out = capsys.readouterr().out
    assert all(member.name in out for member in sweep.members)
    assert "episodes an iteration" in " ".join(out.split())  # no line is cut at the console's width
    assert not Path(sweep.root).exists()
    run_sweep(planned(regimes="full,separate"), Written())
    capsys.readouterr()
    dry_run(sweep)
    lines = capsys.readouterr().out.splitlines()
    assert [("finished" in line) for line in lines if line.startswith("s-")] == [True, True, *[False] * 4]


@pytest.mark.parametrize(
    ("code", "log", "cause"),
    [
        (2, "note\nerror: no such role\nafter", "no such role"),
        (1, "Traceback\nValueError: \x1b[31mbad\x1b[0m\n", "ValueError: bad"),
        (1, "", "it said nothing"),
        (-9, "error: x", "ended by SIGKILL, most often because memory ran out"),
        (-15, "", "ended by SIGTERM"),
    ],
)
def test_a_cause_is_the_runs_own_last_word_or_the_signal(code: int, log: str, cause: str) -> None:
    assert cause_of(code, log) == cause


def in_this_process(settings: Settings, iterations: int, logs: Folder, on_progress: Progress) -> str | None:
    with session(assemble(settings), Quiet(), signals=False) as runner:
        runner.train(iterations)
    on_progress(iterations)
    return None


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_three_regimes_play_the_same_tasks_and_a_sweep_that_was_stopped_goes_on(
    planned: Any, capsys: Any
) -> None:
    def stopped(settings: Settings, *rest: Any) -> str | None:
        if "adapters" in settings.run.name:
            raise KeyboardInterrupt
        return in_this_process(settings, *rest)

    sweep = planned(regimes=REGIMES)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, stopped)
    runs = {m.point.label: Run(sweep.root, m.name) for m in sweep.members}
    kept = _modified(runs["full"])
    capsys.readouterr()
    run_sweep(sweep, in_this_process)
    out = capsys.readouterr().out
    assert "[1/3] full, seed 0: has its 1 iterations already" in out
    assert "[3/3] adapters, seed 0: 1 iterations in" in out
    assert _modified(runs["full"]) == kept
    tasks = [_task_ids(run) for run in runs.values()]
    assert tasks[0] == tasks[1] == tasks[2]

    named = named_runs(["s"], sweep.root)
    found = compare(named.histories, named.labels)
    assert [v.label for v in found.variants] == ["full", "separate", "adapters"]
    full, separate, adapters = (v.cost for v in found.variants)
    assert full["episodes"] == separate["episodes"] == adapters["episodes"] == 8
    assert separate["parameters_held"] == 2 * full["parameters_held"]
    assert adapters["parameters_trained"] < adapters["parameters_held"]
    assert all(cost["peak_memory_gib"] > 0.05 for cost in (full, separate, adapters))
    assert separate["peak_memory_gib"] > full["peak_memory_gib"]
    assert {p.name for p in (Path(sweep.root) / "s/compare").glob("*.png")} >= {"learning_curves.png"}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("ray_cluster")
def test_a_sweep_that_is_killed_anywhere_ends_as_an_unbroken_one(
    scripted: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """Killed in its first run, whose own process stops by itself, and in its second together with it."""
    root, uri = f"{tmp_path}/broken", f"sqlite:///{tmp_path}/mlflow.db"
    small = {"data": {"tasks_per_iteration": 1}, "rollout": {"group_size": 2}}
    config, log = tmp_path / "settings.toml", tmp_path / "log"
    config.write_text(tomlkit.dumps(scripted(run={"root": root}, tracking={"uri": uri}, **small)))
    grid = "ppo.learning_rate=1e-2,1e-3"
    argv = [sys.executable, "-m", "pipeline", "run", "sweep", "--iterations", "1", "--grid", grid]
    argv += ["--name", "s", "--config", str(config)]
    options = SweepOptions(iterations=1, grid=[grid], name="s")
    whole = plan_sweep(str(config), [f"run.root={tmp_path}/whole", "tracking.uri=none"], options)
    first, second = (m.name for m in whole.members)
    for name in (first, second):
        process = start(argv, log)
        try:
            wait_for((Path(root) / name / "iterations/00000/rollout/begun.json").exists, process, seconds=240)
            own = psutil.Process(process.pid).children()
        finally:
            process.kill()
            process.wait()
        if name == second:
            for child in own:
                child.kill()
    finish(argv, log)
    run_sweep(whole, in_this_process)
    for name in (first, second):
        one, other = tables(root, name), tables(whole.root, name)
        assert one.keys() == other.keys()
        assert all(frame.equals(other[table]) for table, frame in one.items())
    found = [
        json.loads((Path(place) / "s/compare/comparison.json").read_text()) for place in (root, whole.root)
    ]
    assert [v["return"] for v in found[0]["variants"]] == [v["return"] for v in found[1]["variants"]]
    _check_logged_once(uri, [first, second])


def _check_logged_once(uri: str, names: list[str]) -> None:
    """The sweep has one page, each run one under it, and each metric one point an iteration."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    pages = {
        p.data.tags.get("run", p.info.run_name): p
        for p in client.search_runs([client.get_experiment_by_name("cadre").experiment_id])
    }
    assert sorted(pages) == sorted(["s", *names])
    for name in names:
        assert pages[name].data.tags["mlflow.parentRunId"] == pages["s"].info.run_id
        history = client.get_metric_history(pages[name].info.run_id, "return/mean")
        assert [point.step for point in history] == [0]


@pytest.mark.slow
def test_a_run_in_a_process_of_its_own_is_told_of_and_gives_its_cause(tmp_path: Path) -> None:
    raw = SIGNAL | {"run": {"name": "r", "root": str(tmp_path / "runs")}}
    told: list[int] = []
    (tmp_path / "s").mkdir()
    assert train_apart(parse_settings(raw), 1, Folder(str(tmp_path / "s")), told.append) is None
    assert told == [1]
    assert "iteration 0 (1 of 1)" in (tmp_path / "s/r.log").read_text()
    assert json.loads((tmp_path / "runs/r/run.json").read_text())["parameters"]["trained"] > 0
    other = {"run": raw["run"] | {"name": "broken"}, "workflow": {"use": "no_such_workflow"}}
    broken = parse_settings(raw | other)
    cause = train_apart(broken, 1, Folder(str(tmp_path / "s")), told.append)
    assert cause is not None
    assert "no_such_workflow" in cause
    assert told == [1]


@pytest.mark.slow
def test_the_page_of_a_sweep_is_the_parent_of_its_runs_and_is_found_again(planned: Any) -> None:
    sweep = planned(regimes="full,separate")
    settings = sweep.base.model_copy(update={"tracking": parse_settings({}).tracking})
    folder = SweepFolder(sweep.root, sweep.name)
    folder.begin(settings_toml(settings), settings.fingerprint(), {})
    parameters = Parameters(named={"regime": "full, separate"})
    tags = {"sweep": sweep.name}
    tracker = begin_record(folder, settings.tracking, parameters, "signal", sweep.root, tags)
    run_id = folder.data["tracker"]["run_id"]
    assert run_id is not None
    tracker.close()
    again = reopen_record(SweepFolder(sweep.root, sweep.name))
    assert again.log_files("compare", {"a.txt": b"text"})
    again.close()
    assert child_tags(folder, "full", run_id) == {"sweep": "s", "point": "full", "mlflow.parentRunId": run_id}

    from mlflow import MlflowClient

    client = MlflowClient(folder.data["tracker"]["uri"])
    assert [f.path for f in client.list_artifacts(run_id, "compare")] == ["compare/a.txt"]
    assert client.get_run(run_id).data.tags["sweep"] == "s"


def _task_ids(run: Run) -> list[str]:
    import polars as pl

    return pl.read_parquet(f"{run.folder.path}/iterations/00000/tasks/*.parquet")["task_id"].to_list()


def _modified(run: Run) -> float:
    return os.stat(f"{run.folder.path}/iterations/00000/done.json").st_mtime
