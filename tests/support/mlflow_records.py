"""Records in a database of MLflow, written and read back."""

import os
import sqlite3
from contextlib import closing

import pytest

from pipeline.tracking.mlflow import MlflowTracker
from pipeline.tracking.mlflow_store import (
    artifact_folder,
    local_database,
    tracking_uri,
)
from pipeline.tracking.tracker import Contents, IterationRecord

PATIENCE = 300.0  # seconds: a busy machine is not an outage


@pytest.fixture(scope="session")
def uri(tmp_path_factory):
    """A database that the tracker made, under a path with characters that URLs treat specially."""
    root = tmp_path_factory.mktemp("runs of 100% & more")
    left = root / "mlflow.db.new-1"  # of a process that was killed long ago
    left.mkdir()
    os.utime(left, (0, 0))
    uri = tracking_uri(None, str(root))
    tracker = MlflowTracker(uri, "first", artifact_folder(uri), warn=pytest.fail, start_seconds=PATIENCE)
    assert tracker.start("first", None, {}, {}) is not None
    tracker.close()
    assert sorted(p.name for p in root.iterdir()) == ["mlflow.db"]
    return uri


@pytest.fixture
def experiment(request):
    return request.node.name


@pytest.fixture(scope="session")
def database(uri, tmp_path_factory):
    """A database of MLflow to be copied, which is quicker than making one: its schema takes seconds."""
    file = tmp_path_factory.mktemp("database") / "mlflow.db"
    with closing(sqlite3.connect(local_database(uri))) as made, closing(sqlite3.connect(file)) as copy:
        made.backup(copy)
    return file


def tracker_at(uri, experiment, **options):
    patient = {"start_seconds": PATIENCE, "log_seconds": PATIENCE}
    return MlflowTracker(uri, experiment, artifact_folder(uri), **{"warn": pytest.fail, **patient, **options})


def client_of(uri):
    from mlflow import MlflowClient

    return MlflowClient(uri)


def points(uri, run_id, name):
    return [(p.step, p.value) for p in client_of(uri).get_metric_history(run_id, name)]


def a_record(index, metrics, files=dict, traces=tuple, note=lambda: None, **rest):
    """An iteration's record; `files`, `traces` and `note` make theirs when they are needed."""
    return IterationRecord(index, metrics, contents=lambda: Contents(files(), traces(), note()), **rest)
