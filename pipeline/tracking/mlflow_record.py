"""One MLflow run, written step by step: blocking calls that raise what MLflow raises.

`pipeline.tracking.mlflow` makes them safe to call from a run.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pipeline.tracking.mlflow_store import (
    MARK,
    clean,
    create_database,
    distinct_key,
    flatten,
    leaves,
    local_database,
    mlflow_key,
)
from pipeline.tracking.mlflow_traces import log_traces
from pipeline.tracking.mlflow_view import View, view_tag
from pipeline.tracking.spans import Trace
from pipeline.tracking.tracker import Parameters
from workflows.errors import CadreError

KEY_TAG: Final = "cadre_run"
NOTE_TAG: Final = "mlflow.note.content"
NOTE_HEAD: Final = "**The last iteration**, until you write something of your own here.\n\n"
MAX_PARAMS: Final = 500
MAX_TAG: Final = 5000
SETTINGS_FILE: Final = "settings.toml"
VIEWED_RUNS: Final = 100  # whose metrics and parameters a view is made from

# Read by MLflow when it is imported or used. What the user has set stays.
_ENVIRONMENT: Final = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_DISABLE_AGENT_HINT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}

# Traces alone would make MLflow's page take the experiment for one that only watches a finished product.
_EXPERIMENT_TAGS: Final = {"mlflow.experimentKind": "custom_model_development"}


def _hashed(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


class MlflowRecord:
    """The MLflow run of one Cadre run, at `uri` under `experiment`.

    MLflow's client is used as it is, without its notion of an active run, so that a run that a
    plug-in or a notebook has open is never touched.
    """

    def __init__(self, uri: str, experiment: str, artifacts: str | None) -> None:
        self.uri, self.experiment, self.artifacts = uri, experiment, artifacts
        self.run_id: str | None = None
        self.experiment_id: str | None = None
        self._client: Any = None
        self._logged: dict[str, set[int]] = {}  # mark → steps whose metrics are there
        self.renamed: dict[str, str] = {}  # names that MLflow does not take → names that they have there
        self._tags: dict[str, dict[str, str]] = {}  # prefix → the tags as they are there

    def connect(self) -> None:
        """Import MLflow, quietly, and open the store: seconds the first time, nothing after that."""
        if self._client is not None:
            return
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        for name, level in (("mlflow", logging.ERROR), ("alembic", logging.WARNING)):
            logging.getLogger(name).setLevel(level)
        # these log a traceback for every error that they also raise
        for name in ("mlflow.store.db.utils", "mlflow.utils.rest_utils", "urllib3.connectionpool"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if (database := local_database(self.uri)) is not None:
            create_database(database, self.artifacts)
        from mlflow import MlflowClient

        self._client = MlflowClient(self.uri)

    def begin(
        self,
        name: str,
        run_id: str | None,
        key: str,
        parameters: Parameters,
        tags: Mapping[str, str],
    ) -> str:
        """Go on with the run of this id or, failing that, of this key; begin one if there is none."""
        if self.run_id is not None:  # an earlier call, that came back after its deadline, has done it
            return self.run_id
        self.connect()
        experiment_id = self._experiment_id()
        key_tag = {KEY_TAG: _hashed(key)}
        run = self._by_id(run_id) or self._by_key(experiment_id, key_tag[KEY_TAG])
        if run is None:
            run = self._client.create_run(experiment_id, tags=key_tag, run_name=name)
        else:
            self._client.update_run(run.info.run_id, status="RUNNING")
        self._log_settings(run, parameters, tags)
        self._logged, self._tags = {}, {}
        self.experiment_id = run.info.experiment_id
        if parameters.file is not None:
            with tempfile.TemporaryDirectory(prefix="cadre-") as temporary:
                (Path(temporary) / SETTINGS_FILE).write_text(parameters.file, "utf-8")
                self._client.log_artifacts(run.info.run_id, temporary)
        self.run_id = str(run.info.run_id)
        return self.run_id

    def save_view(self, view: View) -> None:
        """Save a view of the experiment's page, made for the runs that are there now.

        A view that says the same is left as it is.
        """
        runs, all_runs = (
            self._client.search_runs([self.experiment_id], where, max_results=VIEWED_RUNS)
            for where in (view.where, "")
        )
        metrics, others = (sorted({m for run in each for m in run.data.metrics}) for each in (runs, all_runs))
        params = sorted({name for run in runs for name in run.data.params})
        name, value = view_tag(view, metrics, params, time.time(), others)
        known = json.loads(self._client.get_experiment(self.experiment_id).tags.get(name, "{}"))
        if known.get("state") != json.loads(value)["state"]:
            self._client.set_experiment_tag(self.experiment_id, name, value)

    def find_experiment(self) -> str | None:
        """Open the store, and take the experiment if it is there; its id."""
        self.connect()
        experiment = self._client.get_experiment_by_name(self.experiment)
        self.experiment_id = None if experiment is None else str(experiment.experiment_id)
        return self.experiment_id

    def pages(self, tag: str, value: str) -> list[Any]:
        """The runs of the experiment, which has been found, with this value of a tag."""
        text = value.replace("'", "\\'")
        return list(self._client.search_runs([self.experiment_id], f"tags.`{tag}` = '{text}'"))

    def rename_page(self, run_id: str, name: str, tags: Mapping[str, str], key: str) -> None:
        """Give a page another name, other tags and another key, by which later processes go on with it."""
        from mlflow.entities import RunTag

        tags = {**tags, KEY_TAG: _hashed(key)}
        self._client.update_run(run_id, name=name)
        self._client.log_batch(run_id, tags=[RunTag(tag, value[:MAX_TAG]) for tag, value in tags.items()])

    def log_metrics(
        self, step: int, metrics: Mapping[str, float], at: float | None, mark: str = MARK
    ) -> None:
        """Log at `step`, unless `mark` says that it is there: a repeated step would keep both points."""
        if mark not in self._logged:
            history = self._client.get_metric_history(self.run_id, mark)
            self._logged[mark] = {m.step for m in history}
        if step in self._logged[mark]:
            return
        from mlflow.entities import Metric

        # The time is the iteration's own, so that a repeat after a kill between two batches is equal
        # to what is there, which MLflow drops. One batch, of up to 1000, is one transaction; the mark
        # is its last.
        milliseconds = int((time.time() if at is None else at) * 1000)
        self._note_renamed(metrics)
        values = clean(metrics) | {mark: float(step)}
        batch = [Metric(name, value, milliseconds, step) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics=batch)
        self._logged[mark].add(step)

    def log_files(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Store files by name in a folder of the run's artifacts, replacing those of the same name."""
        with tempfile.TemporaryDirectory(prefix="cadre-") as temporary:
            for name, data in files.items():
                (Path(temporary) / name).write_bytes(data)
            self._client.log_artifacts(self.run_id, temporary, folder)

    def log_traces(self, traces: Sequence[Trace]) -> None:
        """Store episodes as traces of the run; those that are there are replaced."""
        assert self.run_id is not None
        assert self.experiment_id is not None
        log_traces(self.uri, self.experiment_id, self.run_id, traces)

    def replace_tags(self, prefix: str, tags: Mapping[str, str]) -> None:
        """Set these tags of the run, and remove others whose names begin with `prefix`."""
        from mlflow.entities import RunTag

        wanted = {mlflow_key(name): text[:MAX_TAG] for name, text in tags.items()}
        if self._tags.get(prefix) == wanted:
            return
        for name in self._client.get_run(self.run_id).data.tags:
            if name.startswith(prefix) and name not in wanted:
                self._client.delete_tag(self.run_id, name)
        self._client.log_batch(self.run_id, tags=[RunTag(name, text) for name, text in wanted.items()])
        self._tags[prefix] = wanted

    def write_note(self, text: str) -> None:
        """Make `text` the description of the run, in Markdown, unless somebody has written one."""
        there = self._client.get_run(self.run_id).data.tags.get(NOTE_TAG, "")
        if not there or there.startswith(NOTE_HEAD):
            note = f"{NOTE_HEAD}{text}"
            cut = note if len(note) <= MAX_TAG else f"{note[: MAX_TAG - 1]}…"
            self._client.set_tag(self.run_id, NOTE_TAG, cut)

    def end(self, status: str) -> None:
        self._client.set_terminated(self.run_id, status)

    def _note_renamed(self, names: Iterable[str]) -> None:
        self.renamed |= {name: key for name in names if (key := distinct_key(name)) != name}

    def _experiment_id(self) -> str:
        experiment = self._client.get_experiment_by_name(self.experiment)
        if experiment is None:
            return str(
                self._client.create_experiment(
                    self.experiment, artifact_location=self.artifacts, tags=_EXPERIMENT_TAGS
                )
            )
        if experiment.lifecycle_stage != "active":
            raise CadreError(
                f"experiment {self.experiment!r} was deleted; restore it or set another tracking.experiment"
            )
        return str(experiment.experiment_id)

    def _by_id(self, run_id: str | None) -> Any:
        from mlflow.exceptions import MlflowException

        if run_id is None:
            return None
        try:
            run = self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return run if run.info.lifecycle_stage == "active" else None

    def _by_key(self, experiment_id: str, key: str) -> Any:
        runs = self._client.search_runs([experiment_id], f"tags.{KEY_TAG} = '{key}'", max_results=1)
        return runs[0] if runs else None

    def _log_settings(self, run: Any, parameters: Parameters, tags: Mapping[str, str]) -> None:
        """Settings become parameters once. MLflow refuses to change one, so a change becomes a tag."""
        from mlflow.entities import Param, RunTag

        logged, run_tags = run.data.params, run.data.tags
        named = flatten(parameters.named)
        values = named | flatten(parameters.given)
        now = flatten(parameters.whole or {}) | values
        self._note_renamed(".".join(path) for path, _ in leaves(parameters.given))
        room = max(0, MAX_PARAMS - len(logged))
        new = [Param(name, value) for name, value in values.items() if name not in logged][:room]
        # one that a run in progress did not have is a change as well: the iterations before had its default
        later = {param.key for param in new} - named.keys() if logged else set()
        changed = {mlflow_key(f"changed/{name}"): (name, value) for name, value in now.items()}
        # a setting that was changed and is changed back keeps its tag, with the value of now
        tags = dict(tags) | {
            tag: value
            for tag, (name, value) in changed.items()
            if tag in run_tags or logged.get(name, value) != value or name in later
        }
        self._client.log_batch(
            run.info.run_id, params=new, tags=[RunTag(mlflow_key(k), v[:MAX_TAG]) for k, v in tags.items()]
        )
