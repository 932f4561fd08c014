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

from pipeline.metrics.alarms import Alarm
from pipeline.settings.names import without_password
from pipeline.store.samples import choose_episodes
from pipeline.tracking.mlflow import MlflowTracker, NoTracker, run_link
from pipeline.tracking.mlflow_store import (
    artifact_folder,
    clean,
    flatten,
    git_commit,
    local_database,
    run_tags,
    tracking_uri,
)
from pipeline.tracking.spans import trace_of
from tests.support.stored_plays import QUESTION, a_play, stored
from workflows.errors import UsageError


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    """A database that the tracker made, under a path with characters that URLs treat specially."""
    root = tmp_path_factory.mktemp("runs of 100% & more")
    left = root / "mlflow.db.new-1"  # of a process that was killed long ago
    left.mkdir()
    os.utime(left, (0, 0))
    uri = tracking_uri(None, str(root))
    tracker = MlflowTracker(uri, "first", artifact_folder(uri), warn=pytest.fail)
    assert tracker.start("first", None, {}, {}) is not None
    tracker.close()
    assert sorted(p.name for p in root.iterdir()) == ["mlflow.db"]
    return uri


@pytest.fixture
def experiment(request):
    return request.node.name


def tracker_at(uri, experiment, **options):
    return MlflowTracker(uri, experiment, artifact_folder(uri), **{"warn": pytest.fail, **options})


def client_of(uri):
    from mlflow import MlflowClient

    return MlflowClient(uri)


def points(uri, run_id, name):
    return [(p.step, p.value) for p in client_of(uri).get_metric_history(run_id, name)]


def test_settings_tags_metrics_and_files_read_back_as_logged(uri, experiment):
    tracker = tracker_at(uri, experiment)
    settings = {"rollout": {"group_size": 4}, "rewards": [{"use": "f1"}, {"use": "format"}], "x": None}
    run_id = tracker.start("my run", None, settings, {"regime": "full", "git@commit": "abc"})
    assert tracker.log_iteration(0, {"role/plan/return_mean": 0.5}, lambda: {"a.txt": b"text"}, at=1000.0)
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
        assert tracker.log_iteration(0, {"loss": value})
    # the next process finds the run by the run's key, though no id was stored
    again = tracker_at(uri, experiment)
    assert again.start("r", None, {}, {}, key="k") == run_id
    assert again.log_iteration(0, {"loss": 0.9})
    assert again.log_iteration(1, {"loss": 0.4})
    assert points(uri, run_id, "loss") == [(0, 0.5), (1, 0.4)]
    assert again.start("r", run_id, {}, {}) == run_id
    other = tracker_at(uri, experiment)
    assert other.start("r", None, {}, {}, key="another run") != run_id


def test_a_bad_value_costs_no_other_and_is_not_logged(uri, experiment):
    tracker = tracker_at(uri, experiment)
    run_id = tracker.start("r", None, {}, {})
    metrics = {
        "good": 1.5, "nan": math.nan, "inf": math.inf, "text": "x", "none": None, "a@b": 1.0, "/x": 1.0,
        "a/../b": 1.0, "iteration": 77.0,
    }  # fmt: skip
    assert tracker.log_iteration(3, metrics)
    assert client_of(uri).get_run(run_id).data.metrics == {"good": 1.5, "iteration": 3.0}


def test_more_metrics_than_one_batch_holds_are_all_logged(uri, experiment):
    tracker = tracker_at(uri, experiment)
    run_id = tracker.start("r", None, {}, {})
    assert tracker.log_iteration(0, {f"m{k}": float(k) for k in range(1500)})
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
    assert not tracker.log_iteration(0, {"loss": 1.0}, lambda: {"a": 1 / 0})
    assert "ZeroDivisionError" in warnings[0]
    assert tracker.log_iteration(0, {"loss": 2.0}, lambda: {"a": b""})
    assert points(uri, run_id, "loss") == [(0, 1.0)]


def test_a_locked_database_holds_nothing_up_and_loses_nothing(uri, experiment):
    warnings = []
    tracker = tracker_at(uri, experiment, warn=warnings.append, log_seconds=0.3)
    run_id = tracker.start("r", None, {}, {})
    with contextlib.closing(sqlite3.connect(local_database(uri))) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert not tracker.log_iteration(0, {"loss": 1.0})
        assert not tracker.log_iteration(1, {"loss": 2.0})  # at once: the first still waits
        assert len(warnings) == 1  # one outage, one warning
        other.rollback()
    deadline = time.monotonic() + 20
    while not all(tracker.log_iteration(i, {"loss": i + 1.0}) for i in (0, 1)):
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
        assert not tracker.log_iteration(0, {"loss": 1.0})
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
    assert not tracker.log_iteration(0, {"loss": 1.0})
    assert len(warnings) == 1
    blocker.unlink()
    blocker.mkdir()
    os.link(local_database(uri), blocker / "mlflow.db")
    assert tracker.log_iteration(1, {"loss": 2.0})
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


@pytest.mark.parametrize("bad", ["file:///tmp/mlruns", "mlruns", "./mlruns", "sqllite:///x.db", "ftp://host"])
def test_an_address_that_mlflow_does_not_write_to_is_refused_with_the_remedy(bad):
    with pytest.raises(UsageError, match=r"tracking\.uri.*(sqlite)"):
        tracking_uri(bad, "runs")


@pytest.mark.parametrize(
    "good", ["http://host:5000", "https://h", "postgresql+psycopg2://u:p@h/db", "mysql://h/db", "databricks"]
)
def test_addresses_of_servers_are_passed_on(good):
    assert tracking_uri(good, "runs") == good
    assert artifact_folder(good) is None


def test_the_default_lies_under_a_local_root_and_the_environment_comes_first(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(None, "runs") == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert tracking_uri(None, f"file://{tmp_path}/r") == f"sqlite:///{tmp_path}/r/mlflow.db"
    assert tracking_uri(None, "s3://bucket/runs") == f"sqlite:///{tmp_path}/mlflow.db"
    assert tracking_uri("sqlite:///here.db", "runs") == f"sqlite:///{tmp_path}/here.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host")
    assert tracking_uri(None, "runs") == "http://host"
    assert tracking_uri("sqlite:////db", "runs") == "sqlite:////db"


def test_links_open_the_page_and_show_no_password():
    page = "/#/experiments/1/runs/abc?workflowType=machine_learning"
    assert run_link("http://me:pw@host:5000/", "1", "abc") == f"http://me:***@host:5000{page}"
    link = run_link("sqlite:////data/my runs/mlflow.db", "1", "abc")
    assert "python -m pipeline ui --uri 'sqlite:////data/my runs/mlflow.db'" in link
    assert link.endswith(page)
    assert run_link("sqlite:////x", None, None) is None


def test_passwords_never_become_parameters():
    flat = flatten({"tracking": {"uri": "postgresql://me:pw@host/db"}, "list": ["s3://a:pw@b"]})
    assert "pw" not in "".join(flat.values())
    assert without_password("no url: a@b") == "no url: a@b"


def test_cleaning_keeps_numbers_exactly():
    assert clean({"a": 1, "b": 0.1, "c": True}) == {"a": 1.0, "b": 0.1, "c": 1.0}


def test_tags_name_the_commit_only_where_there_is_one(tmp_path):
    assert git_commit(tmp_path) is None
    assert {"regime", "workflow", "cadre_version", "machine"} <= run_tags("full", "qa", tmp_path).keys()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "f").write_text("1")
    subprocess.run([*git, "add", "f"], check=True)
    subprocess.run([*git, "commit", "-qm", "c"], check=True)
    clean_commit = git_commit(tmp_path)
    assert len(clean_commit) == 40
    (tmp_path / "f").write_text("2")
    assert git_commit(tmp_path) == f"{clean_commit}-dirty"


def test_no_tracker_records_nothing():
    tracker = NoTracker()
    assert tracker.start("r", None, {}, {}) is None
    assert not tracker.log_iteration(0, {"loss": 1.0}, lambda: {})
    assert tracker.link() is None
    tracker.close()


def test_the_command_line_can_be_shown_without_importing_mlflow():
    code = (
        "import sys, pipeline.tracking.mlflow, pipeline.cli.show;"
        "sys.exit(bool({'mlflow', 'ray', 'torch'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def traces_of(uri, run_id):
    """The run's traces as its page finds them, by episode."""
    client = client_of(uri)
    experiment_id = client.get_run(run_id).info.experiment_id
    found = client.search_traces(locations=[experiment_id], run_id=run_id)
    return {trace.info.client_request_id: trace for trace in found}


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    plays = [(a_play(sample), score) for sample, score in enumerate((0.0, 1.0, None))]
    plays[2][0].turns[-1] |= {"status": "infra_error", "status_detail": "gone"}
    plays[2][0].episode |= {"status": "infra_error", "error": "gone"}
    tables = stored(str(tmp_path_factory.mktemp("traces")), [plays])
    return [trace_of(chosen) for chosen in choose_episodes(tables, 3, 0)]


def test_an_episode_reads_back_as_a_trace_of_the_run(uri, experiment, traces):
    tracker = tracker_at(uri, experiment)
    run_id = tracker.start("r", None, {}, {})
    assert tracker.log_iteration(0, {}, traces=lambda: traces)
    found = traces_of(uri, run_id)
    assert len(found) == 3
    best, logged = next(t for t in traces if t.tags["chosen"] == "best"), found["00000/task/1"]
    assert logged.info.state == "OK"
    assert logged.info.request_preview == QUESTION
    assert logged.info.request_time == best.spans[0].start // 10**6
    assert logged.info.tags.items() >= {"chosen": "best", "task_id": "task", "iteration": "0"}.items()
    assert logged.info.token_usage["total_tokens"] == sum(sum(s.tokens) for s in best.spans if s.tokens)
    assert {a.name: a.value for a in logged.info.assessments} == {
        "return": 1.0, "f1": 1.0, "format": 0.0, "gold": ["Norway"],
    }  # fmt: skip
    names = {span.span_id: span.name for span in logged.data.spans}
    keys = {span.key: span.name for span in best.spans}
    assert sorted((s.name, names.get(s.parent_id)) for s in logged.data.spans) == sorted(
        (s.name, keys.get(s.parent)) for s in best.spans
    )
    for span in best.spans:
        same = [s for s in logged.data.spans if (s.name, s.start_time_ns) == (span.name, span.start)]
        assert [(s.end_time_ns, s.span_type, s.inputs, s.outputs) for s in same] == [
            (span.end, span.kind, span.inputs, span.outputs)
        ]
    failed = found["00000/task/2"]
    assert failed.info.state == "ERROR"
    problems = [s.status.description for s in failed.data.spans if s.status.status_code == "ERROR"]
    assert problems.count("infra_error: gone") == 2  # the turn, and so the episode


def test_a_repeated_iteration_leaves_one_trace_of_each_episode_as_it_was(uri, experiment, traces):
    tracker = tracker_at(uri, experiment)
    run_id = tracker.start("r", None, {}, {}, key=experiment)
    assert tracker.log_iteration(0, {}, traces=lambda: traces)
    first = traces_of(uri, run_id)
    again = tracker_at(uri, experiment)  # the process that goes on after a kill
    assert again.start("r", None, {}, {}, key=experiment) == run_id
    assert again.log_iteration(0, {}, traces=lambda: traces)
    second = traces_of(uri, run_id)
    assert {e: t.to_dict() for e, t in first.items()} == {e: t.to_dict() for e, t in second.items()}
    other = tracker_at(uri, experiment)
    other_id = other.start("another", None, {}, {})
    assert other.log_iteration(0, {}, traces=lambda: traces[:1])
    assert (len(traces_of(uri, other_id)), len(traces_of(uri, run_id))) == (1, 3)


def test_alarms_are_tags_and_one_that_is_over_is_not(uri, experiment):
    cut = Alarm("cut_off", "reader", 3, "80% are cut", "look there")
    quiet = Alarm("no_signal", "", 4, "nothing to learn", "look here")
    tracker = tracker_at(uri, experiment)
    run_id = tracker.start("r", None, {}, {"alarming": "mine"})

    def tags():
        return {k: v for k, v in client_of(uri).get_run(run_id).data.tags.items() if k.startswith("alarm")}

    assert tracker.log_iteration(0, {}, alarms=[cut, quiet])
    assert tags() == {
        "alarming": "mine",
        "alarms": "cut_off/reader, no_signal",
        "alarm/cut_off/reader": "since iteration 3: 80% are cut; look there",
        "alarm/no_signal": "since iteration 4: nothing to learn; look here",
    }
    assert tracker.log_iteration(1, {}, alarms=[quiet])
    assert set(tags()) == {"alarming", "alarms", "alarm/no_signal"}
    again = tracker_at(uri, experiment)
    assert again.start("r", run_id, {}, {}) == run_id
    assert again.log_iteration(2, {}, alarms=[])
    assert tags() == {"alarming": "mine", "alarms": "none"}


def test_the_description_is_the_last_note_until_somebody_writes_one(uri, experiment):
    tracker = tracker_at(uri, experiment)
    run_id = tracker.start("r", None, {}, {})
    client = client_of(uri)
    for index in range(2):
        assert tracker.log_iteration(index, {}, note=lambda: f"iteration {index}" + "x" * 9000)  # noqa: B023
        assert f"iteration {index}x" in client.get_run(run_id).data.tags["mlflow.note.content"]
    client.set_tag(run_id, "mlflow.note.content", "mine")
    assert tracker.log_iteration(2, {}, note=lambda: "iteration 2")
    assert client.get_run(run_id).data.tags["mlflow.note.content"] == "mine"


def test_traces_that_can_not_be_made_cost_a_warning_and_nothing_that_was_logged_before(uri, experiment):
    warnings = []
    tracker = tracker_at(uri, experiment, warn=warnings.append)
    run_id = tracker.start("r", None, {}, {})

    def broken():
        raise ValueError("no such episode")

    assert not tracker.log_iteration(0, {"loss": 0.5}, lambda: {"a.txt": b"x"}, alarms=[], traces=broken)
    assert len(warnings) == 1
    assert "no such episode" in warnings[0]
    assert points(uri, run_id, "loss") == [(0, 0.5)]
    assert client_of(uri).get_run(run_id).data.tags["alarms"] == "none"
