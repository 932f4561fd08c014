"""Where the record lies: addresses, links, passwords and tags."""

import subprocess
import sys

import pytest

from pipeline.settings.names import without_password
from pipeline.tracking.mlflow import run_link
from pipeline.tracking.mlflow_store import (
    artifact_folder,
    clean,
    flatten,
    git_commit,
    run_tags,
    tracking_uri,
)
from pipeline.tracking.tracker import NoTracker
from tests.support.mlflow_records import a_record
from workflows.errors import UsageError


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
    assert not tracker.log_iteration(a_record(0, {"loss": 1.0}, lambda: {}))
    assert tracker.link() is None
    tracker.close()


def test_the_command_line_can_be_shown_without_importing_mlflow():
    code = (
        "import sys, pipeline.tracking.mlflow, pipeline.views.stored;"
        "sys.exit(bool({'mlflow', 'ray', 'torch'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
