"""The record in MLflow: nothing twice, nothing bent, and no failure of the tracker reaches the run."""

import contextlib
import math
import os
import socket
import sqlite3
import subprocess
import sys
import time

import pytest

from pipeline.tracking.mlflow import MlflowTracker
from pipeline.tracking.mlflow_store import (
    local_database,
    tracking_uri,
)
from pipeline.tracking.tracker import Parameters
from tests.support.mlflow_records import a_record, client_of, points, tracker_at


def test_settings_tags_metrics_and_files_read_back_as_logged(uri, experiment):
    tracker = tracker_at(uri, experiment)
    settings = {"rollout": {"group_size": 4}, "rewards": [{"use": "f1"}, {"use": "format"}], "x": None}
    run_id = tracker.start("my run", None, settings, {"regime": "full", "git@commit": "abc"})
    assert tracker.log_iteration(
        a_record(0, {"role/plan/return_mean": 0.5}, lambda: {"a.txt": b"text"}, at=1000.0)
    )
    tracker.close()
    run = client_of(uri).get_run(run_id)
    assert run.info.run_name == "my run"
    assert run.info.status == "FINISHED"
    assert run.data.params == {
        "rollout.group_size": "4",
        "rewards.0.use": "f1",
        "rewards.1.use": "format",
        "x": "null",
    }
    assert run.data.tags["regime"] == "full"
    assert run.data.tags["git_commit"] == "abc"
    assert run.data.metrics == {"role/plan/return_mean": 0.5, "iteration": 0.0}
    folder = local_database(uri).parent / "mlflow-artifacts" / run_id / "artifacts" / "iterations" / "00000"
    assert (folder / "a.txt").read_bytes() == b"text"


def test_a_repeated_iteration_is_logged_once_by_this_process_and_by_the_next(uri, experiment):
    tracker = tracker_at(uri, experiment)
    run_id = tracker.start("r", None, {}, {}, key="k")
    for value in (0.5, 0.7):
        assert tracker.log_iteration(a_record(0, {"loss": value}))
    # the next process finds the run by the run's key, though no id was stored
    again = tracker_at(uri, experiment)
    assert again.start("r", None, {}, {}, key="k") == run_id
    assert again.log_iteration(a_record(0, {"loss": 0.9}))
    assert again.log_iteration(a_record(1, {"loss": 0.4}))
    assert points(uri, run_id, "loss") == [(0, 0.5), (1, 0.4)]
    assert again.start("r", run_id, {}, {}) == run_id
    other = tracker_at(uri, experiment)
    assert other.start("r", None, {}, {}, key="another run") != run_id


def test_numbers_that_are_not_finite_are_counted_and_names_are_told_apart_and_said_once(uri, experiment):
    said = []
    tracker = tracker_at(uri, experiment, warn=said.append)
    run_id = tracker.start("r", None, {}, {})
    metrics = {
        "good": 1.5, "nan": math.nan, "inf": math.inf, "text": "x", "none": None, "a@b": 1.0, "a(b": 2.0,
        "a_b": 3.0, "/x": 4.0, "a/../b": 5.0, "a/b": 6.0, "iteration": 77.0,
    }  # fmt: skip
    assert tracker.log_iteration(a_record(3, metrics))
    assert tracker.log_iteration(a_record(4, metrics))
    logged = client_of(uri).get_run(run_id).data.metrics
    assert (logged["good"], logged["a_b"], logged["a/b"], logged["iteration"]) == (1.5, 3.0, 6.0, 4.0)
    assert logged["not_finite"] == 2.0
    assert sorted(logged.values()) == sorted([1.5, 2.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 77.0, 4.0])
    assert len(said) == 1
    assert "'a@b' is 'a_b-" in said[0]


def test_parameters_whose_names_collide_are_told_apart(uri, experiment):
    said = []
    tracker = tracker_at(uri, experiment, warn=said.append)
    settings = {"a@b": 1, "a_b": 2, "a(b": 3, "x": {"y": 4}, "x.y": 5}
    params = client_of(uri).get_run(tracker.start("r", None, settings, {})).data.params
    assert (params["a_b"], params["x.y"]) == ("2", "4")
    assert sorted(params.values()) == ["1", "2", "3", "4", "5"]
    assert len(said) == 1


def test_what_was_set_becomes_parameters_and_a_change_of_a_default_is_noted(uri, experiment):
    whole = {"ppo": {"lr": 1e-6, "eps": 1e-8}}
    named = {"regime": "full"}
    first = tracker_at(uri, experiment).start(
        "r", None, Parameters({"ppo": {"lr": 1e-6}}, named, whole, 'a = "text"'), {}
    )
    run = client_of(uri).get_run(first)
    assert run.data.params == {"regime": "full", "ppo.lr": "1e-06"}
    assert not [tag for tag in run.data.tags if tag.startswith("changed/")]
    assert [file.path for file in client_of(uri).list_artifacts(first)] == ["settings.toml"]
    later = {"ppo": {"lr": 2e-6, "eps": 1e-5}}  # one of them was at its default
    tracker_at(uri, experiment).start("r", first, Parameters(later, named, later), {})
    run = client_of(uri).get_run(first)
    assert run.data.params["ppo.lr"] == "1e-06"
    tags = {name: text for name, text in run.data.tags.items() if name.startswith("changed/")}
    assert tags == {"changed/ppo.lr": "2e-06", "changed/ppo.eps": "1e-05"}


def test_more_metrics_than_one_batch_holds_are_all_logged(uri, experiment):
    tracker = tracker_at(uri, experiment)
    run_id = tracker.start("r", None, {}, {})
    assert tracker.log_iteration(a_record(0, {f"m{k}": float(k) for k in range(1500)}))
    assert len(client_of(uri).get_run(run_id).data.metrics) == 1501


def test_a_setting_that_changed_on_resume_becomes_a_tag(uri, experiment):
    first = tracker_at(uri, experiment).start("r", None, {"ppo": {"lr": 1e-6}}, {})
    assert tracker_at(uri, experiment).start("r", first, {"ppo": {"lr": 2e-6}, "new": 1}, {}) == first
    run = client_of(uri).get_run(first)
    assert run.data.params == {"ppo.lr": "1e-06", "new": "1"}
    assert run.data.tags["changed/ppo.lr"] == "2e-06"
    tracker_at(uri, experiment).start("r", first, {"ppo": {"lr": 1e-6}}, {})
    assert client_of(uri).get_run(first).data.tags["changed/ppo.lr"] == "1e-06"


def test_settings_of_any_length_and_number_are_taken(uri, experiment):
    tracker = tracker_at(uri, experiment)
    run_id = tracker.start("r", None, {f"k{k}": "v" * 9000 for k in range(700)}, {"t": "v" * 9000})
    assert len(client_of(uri).get_run(run_id).data.params) == 500


def test_a_run_that_the_store_has_not_or_has_deleted_is_begun_anew(uri, experiment):
    gone = tracker_at(uri, experiment).start("r", "0" * 32, {}, {})
    assert gone not in (None, "0" * 32)
    client_of(uri).delete_run(gone)
    assert tracker_at(uri, experiment).start("r", gone, {}, {}) not in (None, gone)


def test_a_run_that_someone_has_open_is_not_touched(uri, experiment, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with mlflow.start_run() as theirs:
        ours = tracker_at(uri, experiment).start("r", None, {"a": 1}, {})
        assert mlflow.active_run().info.run_id == theirs.info.run_id != ours
    assert client_of(uri).get_run(theirs.info.run_id).data.params == {}


def test_files_that_can_not_be_made_cost_no_metrics_and_no_second_point(uri, experiment):
    warnings = []
    tracker = tracker_at(uri, experiment, warn=warnings.append)
    run_id = tracker.start("r", None, {}, {})
    assert not tracker.log_iteration(a_record(0, {"loss": 1.0}, lambda: {"a": 1 / 0}))
    assert "ZeroDivisionError" in warnings[0]
    assert tracker.log_iteration(a_record(0, {"loss": 2.0}, lambda: {"a": b""}))
    assert points(uri, run_id, "loss") == [(0, 1.0)]


def test_a_locked_database_holds_nothing_up_and_loses_nothing(uri, experiment):
    warnings = []
    tracker = tracker_at(uri, experiment, warn=warnings.append, log_seconds=0.3)
    run_id = tracker.start("r", None, {}, {})
    with contextlib.closing(sqlite3.connect(local_database(uri))) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert not tracker.log_iteration(a_record(0, {"loss": 1.0}))
        assert not tracker.log_iteration(a_record(1, {"loss": 2.0}))  # at once: the first still waits
        assert len(warnings) == 1  # one outage, one warning
        other.rollback()
    deadline = time.monotonic() + 20
    while not all(tracker.log_iteration(a_record(i, {"loss": i + 1.0})) for i in (0, 1)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert points(uri, run_id, "loss") == [(0, 1.0), (1, 2.0)]


def test_a_server_that_does_not_answer_holds_nothing_up():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        warnings = []
        server = f"http://user:secret@127.0.0.1:{silent.getsockname()[1]}"
        tracker = MlflowTracker(server, "e", warn=warnings.append, start_seconds=0.3, log_seconds=0.3)
        assert tracker.start("r", None, {}, {}) is None
        assert not tracker.log_iteration(a_record(0, {"loss": 1.0}))
        tracker.close()
        assert tracker.link() is None
    assert len(warnings) == 1
    assert "secret" not in warnings[0]
    assert "user:***@127.0.0.1" in warnings[0]


def test_a_tracker_that_starts_later_logs_what_comes_then(uri, experiment, tmp_path):
    """The database can't be made at first (its folder is a file); the next iteration finds that it can."""
    blocker = tmp_path / "runs"
    blocker.write_text("a file")
    warnings = []
    kept = []
    here = f"sqlite:///{blocker}/mlflow.db"
    tracker = MlflowTracker(here, experiment, warn=warnings.append, begun=lambda *a: kept.append(a))
    tracker.start("r", None, {}, {}, wait=False)
    assert not tracker.log_iteration(a_record(0, {"loss": 1.0}))
    assert len(warnings) == 1
    blocker.unlink()
    blocker.mkdir()
    os.link(local_database(uri), blocker / "mlflow.db")
    assert tracker.log_iteration(a_record(1, {"loss": 2.0}))
    assert points(uri, tracker.run_id, "loss") == [(1, 2.0)]
    assert kept == [(tracker.run_id, tracker.link())]


@pytest.mark.slow
def test_a_kill_while_the_database_is_made_leaves_no_half_of_it(tmp_path):
    code = (
        "import sys, pathlib, pipeline.tracking.mlflow_store as store;"
        "store.create_database(pathlib.Path(sys.argv[1]), None)"
    )
    path = tmp_path / "mlflow.db"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    while not any(p.stat().st_size > 100_000 for p in tmp_path.glob("mlflow.db.new-*/mlflow.db")):
        assert process.poll() is None, "the database was made before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not path.exists()
    uri = tracking_uri(None, str(tmp_path))
    assert tracker_at(uri, "e").start("r", None, {}, {}) is not None
