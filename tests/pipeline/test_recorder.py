"""What a tracker was told and what it missed: each thing once, whatever was down in between."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.metrics.signs import Alarm
from pipeline.run.recorder import Recorder
from pipeline.settings.reading import parse_settings, settings_toml
from pipeline.settings.schema import Settings
from pipeline.store.differences import dump
from pipeline.store.evaluated import Evaluated
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from pipeline.tracking.mlflow import MlflowTracker
from pipeline.tracking.mlflow_store import artifact_folder
from tests.support.report_runs import in_parts, new_run, store, team_episode

pytestmark = pytest.mark.slow  # MLflow is imported and makes a database

ALARM = Alarm("no_signal", "", 0, "nothing to learn", "look")


class Tracked:
    """A run with a tracker whose database lies in a folder that can be taken away."""

    def __init__(self, folder: Path, database: Path) -> None:
        self.place = folder / "place"
        self.database = database
        self.uri = f"sqlite:///{self.place}/mlflow.db"
        self.run: Run = new_run(str(folder / "runs"))
        self.settings: Settings = parse_settings({"tracking": {"uri": self.uri, "sample_episodes": 2}})
        self.warnings: list[str] = []

    def down(self) -> None:
        self.place.write_text("a file, where a folder should be")

    def up(self) -> None:
        self.place.unlink(missing_ok=True)
        self.place.mkdir()
        shutil.copy(self.database, self.place / "mlflow.db")

    def recorder(self) -> Recorder:
        """As a new process makes it."""
        tracker = MlflowTracker(
            self.uri, "e", artifact_folder(self.uri), self.warnings.append, start_seconds=60, log_seconds=60
        )
        tracker.start("demo", None, {}, {}, "key", wait=False)
        return Recorder(
            self.run, tracker, self.settings.tracking, self.settings.run.seed, settings_toml(self.settings)
        )

    def finish(self, index: int, recorder: Recorder, alarms: list[Alarm]) -> None:
        """An iteration as a runner ends it: recorded, and then marked as done."""
        place = self.run.iteration(index)
        store(place, in_parts(team_episode(k, k / 4, index=index) for k in range(4)), done=False)
        done = Finished.read(place)
        done = replace(done, metrics={"return/mean": index / 4}, alarms=tuple(alarms))
        recorder.iteration(done)
        content = {"seconds": 1.0, "metrics": done.metrics, "alarms": [a.as_dict() for a in alarms]}
        place.folder.write_text("done.json", dump(content))

    def points(self) -> list[tuple[int, float]]:
        from mlflow import MlflowClient

        client = MlflowClient(self.uri)
        return sorted(
            (p.step, p.value) for p in client.get_metric_history(self.page().info.run_id, "return/mean")
        )

    def page(self) -> Any:
        """The run's only page."""
        from mlflow import MlflowClient

        client = MlflowClient(self.uri)
        experiment = client.get_experiment_by_name("e")
        assert experiment is not None
        (page,) = client.search_runs([experiment.experiment_id])
        return page

    def traces(self) -> dict[str, Any]:
        from mlflow import MlflowClient

        page = self.page()
        found = MlflowClient(self.uri).search_traces(
            locations=[page.info.experiment_id], run_id=page.info.run_id
        )
        assert len({t.info.client_request_id for t in found}) == len(found)
        return {str(t.info.client_request_id): t for t in found}


def test_what_a_tracker_missed_is_logged_once_it_is_back(tmp_path: Path, database: Path) -> None:
    at = Tracked(tmp_path, database)
    at.down()
    recorder = at.recorder()
    at.finish(0, recorder, [])
    at.finish(1, recorder, [ALARM])
    assert len(at.warnings) == 1
    at.up()
    recorder = at.recorder()
    at.finish(2, recorder, [])
    assert at.points() == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert at.page().data.tags["alarms"] == "none"  # those of iteration 1 are over
    assert "iteration 2 of run demo" in at.page().data.tags["mlflow.note.content"]
    assert len(at.traces()) == 6  # two of each iteration

    for index in range(3):  # as if all marks had been lost in a kill
        at.run.iteration(index).folder.remove("tracked.json")
    at.recorder().catch_up()
    assert at.points() == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert len(at.traces()) == 6
    assert len(at.warnings) == 1


def test_a_run_that_has_ended_is_logged_by_the_next_training(tmp_path: Path, database: Path) -> None:
    at = Tracked(tmp_path, database)
    at.down()
    at.finish(0, at.recorder(), [ALARM])
    at.up()
    at.recorder().catch_up()
    assert at.points() == [(0, 0.0)]
    assert at.page().data.tags["alarms"] == "no_signal"


def test_episodes_of_an_evaluation_are_traces_beside_those_of_training(
    tmp_path: Path, database: Path
) -> None:
    at = Tracked(tmp_path, database)
    at.up()
    recorder = at.recorder()
    at.finish(0, recorder, [])
    rows = in_parts([team_episode(k, 0.5) for k in range(4)])  # of the ids that training has
    values = [{"name": "f1", "value": k / 4} for k in range(4)]
    ids = [row["episode_id"] for row in rows["episodes"][1]]
    scores = [{"episode_id": e, "values": [v]} for e, v in zip(ids, values, strict=True)]
    place = at.run.evaluation("dev", 1)
    tables = {name: rows[name] for name in ("tasks", "turns", "episodes")}
    store(place, {**tables, "evaluation": [[], scores]}, done=False)
    place.folder.write_text("result.json", json.dumps({}))
    found = Evaluated("dev", 1, (), Finished.read(place), "", "f1")

    assert recorder.missed_evaluations("dev") == [1]
    assert recorder.evaluation(found, dict)
    assert recorder.missed_evaluations("dev") == []
    of_evaluation = {k: t for k, t in at.traces().items() if k.startswith("dev/00001/")}
    assert len(at.traces()) == 4
    assert {k.removeprefix("dev/00001/") for k in of_evaluation} == {ids[0], ids[3]}  # the worst, the best
    best = of_evaluation[f"dev/00001/{ids[3]}"].info
    assert best.tags.items() >= {"evaluation": "dev/00001", "chosen": "best", "episode": ids[3]}.items()
    assert {a.name: a.value for a in best.assessments} == {"f1": 0.75, "gold": ["Paris"]}
    place.folder.remove("tracked.json")
    assert at.recorder().evaluation(found, dict)
    assert len(at.traces()) == 4
