"""The record of a run in MLflow: one MLflow run per Cadre run, one step per iteration.

A tracker never fails the run and never holds it up: every call runs on a thread of its own with a
deadline, and a failure becomes one warning with its cause and the answer "not logged". What is not
logged can be logged later, and nothing is logged twice: an iteration's metrics and their mark are
one transaction, and the mark is read back when a run is resumed.
"""

from __future__ import annotations

import logging
import shlex
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pipeline.settings.names import slug, without_password
from pipeline.settings.program import hint
from pipeline.tracking.deadline import Worker
from pipeline.tracking.mlflow_record import MlflowRecord
from pipeline.tracking.mlflow_store import MARK
from pipeline.tracking.mlflow_view import View, view_page
from pipeline.tracking.tracker import Contents, EvaluationRecord, Files, IterationRecord, Parameters

if TYPE_CHECKING:
    from pipeline.metrics.signs import Alarm

START_SECONDS: Final = 45.0  # importing MLflow takes seconds, a new database five more
LOG_SECONDS: Final = 20.0

Warn = Callable[[str], None]
T = TypeVar("T")


class MlflowTracker:
    """Records in MLflow at `uri`, under `experiment`.

    Args:
        uri: as from `mlflow_store.tracking_uri`.
        artifacts: where a new experiment keeps its files; None leaves it to the server.
        warn: called with one sentence when the tracker fails, and again only after it has worked.
        begun: called with the run's id and link once they are known, on the caller's thread.
        start_seconds, log_seconds: how long a call may hold the run up.
        views: of the experiment's page, saved when the run has logged something and when it ends.
    """

    def __init__(
        self,
        uri: str,
        experiment: str,
        artifacts: str | None = None,
        warn: Warn | None = None,
        begun: Callable[[str, str | None], None] | None = None,
        start_seconds: float = START_SECONDS,
        log_seconds: float = LOG_SECONDS,
        views: Sequence[View] = (),
    ) -> None:
        self.uri = uri
        self.problem: str | None = None  # why the last call failed; None if it did not
        self._record = MlflowRecord(uri, experiment, artifacts)
        self._warn = warn or logging.getLogger("cadre.tracking").warning
        self._begun, self._announced = begun, False
        self._seconds = {"start": start_seconds, "log": log_seconds}
        self._begin: Callable[[], str] | None = None
        self._said: set[str] = set()
        self._views, self._views_saved = tuple(views), False
        self._worker = Worker("cadre-tracking")
        self._worker.submit(self._record.connect)  # imports MLflow while the caller starts other things

    @property
    def run_id(self) -> str | None:
        return self._record.run_id

    def start(
        self,
        run_name: str,
        run_id: str | None,
        settings: Mapping[str, Any] | Parameters,
        tags: Mapping[str, str],
        key: str | None = None,
        wait: bool = True,
    ) -> str | None:
        """Begin or continue the MLflow run; its id, or None where there is none (yet).

        Args:
            run_id: of the MLflow run that earlier processes wrote to. If the store has no such run
                (any more), a new one is begun: compare the id that comes back.
            settings: nested, or `Parameters`; logged once. One that differs from what is logged becomes a
                tag `changed/<setting>`.
            key: names the Cadre run. Without a `run_id`, a run with this key is continued: the
                process that began it may have ended before it could store the id.
            wait: without it this returns at once, and the first `log_iteration` waits instead.
        """
        key = key or uuid.uuid4().hex
        parameters = settings if isinstance(settings, Parameters) else Parameters(settings)
        self._begin = lambda: self._record.begin(run_name, run_id, key, parameters, tags)
        if not wait:
            self._worker.submit(self._begin)
            return None
        return self._safely("start", self._begin, None)

    def log_iteration(self, record: IterationRecord) -> bool:
        """Log metrics at the iteration's step, and files under `iterations/<iteration>/`.

        Metrics that are not finite are counted and left out, and names that MLflow would refuse are changed,
        so that they cost no others. Alarms are tags of the run: `alarms` names them, `alarm/<name>` says
        what each is, and the tag of one that is over goes. `trust/<unit>` says what was decided of a unit's
        newest update.
        """

        def log() -> None:
            self._log_numbers(record, MARK)
            if record.alarms is not None:
                self._record.replace_tags("alarm/", alarm_tags(record.alarms))
                if decided := trust_tags(record.metrics):
                    self._record.replace_tags("trust/", decided)
            self._log_contents(record.contents(), f"iterations/{record.index:05d}")

        return self._done(log)

    def log_evaluation(self, record: EvaluationRecord) -> bool:
        """Log an evaluation at its step, the number of finished iterations; files go to `plots/`."""

        def log() -> None:
            again = f"/redone-{record.redone}" if record.redone else ""
            self._log_numbers(record, f"{MARK}/evaluate/{slug(record.split)}{again}")
            self._log_contents(record.contents(), "plots")

        return self._done(log)

    def log_files(self, folder: str, files: Files) -> bool:
        """Store files by name in a folder of the run's artifacts, in place of those of the same name."""
        return self.run_id is not None and self._done(lambda: self._record.log_files(folder, files))

    def _log_numbers(self, record: IterationRecord | EvaluationRecord, mark: str) -> None:
        """On the worker's thread, and once: the mark says that the numbers are there."""
        if self.run_id is None and self._begin is not None:
            self._begin()
        self._record.log_metrics(record.index, record.metrics, record.at, mark)
        if mark != MARK or not self._views_saved:  # evaluations bring names that no iteration has
            self._save_views(self._views)
            self._views_saved = True

    def _log_contents(self, contents: Contents, folder: str) -> None:
        """On the worker's thread; what is there is replaced."""
        if contents.files:
            self._record.log_files(folder, contents.files)
        if contents.note is not None:
            self._record.write_note(contents.note)
        if contents.traces:
            self._record.log_traces(contents.traces)

    def _done(self, log: Callable[[], None]) -> bool:
        def logged() -> bool:
            log()
            return True

        return self._safely("start" if self.run_id is None else "log", logged, False)

    def link(self) -> str | None:
        return run_link(self.uri, self._record.experiment_id, self.run_id)

    def close(self, failed: bool = False) -> None:
        """Mark the MLflow run as ended; `start` opens it again."""
        if self.run_id is not None:
            status = "FAILED" if failed else "FINISHED"
            self._safely("log", lambda: self._record.end(status), None)
            if self._views and self.problem is None:
                self.save_views(*self._views)
        self._worker.close()

    def _safely(self, kind: str, call: Callable[[], T], otherwise: T) -> T:
        """The result of `call`, or `otherwise` and a warning; never an exception, never for long."""
        try:
            result = self._worker.run(call, self._seconds[kind])
        except Exception as error:
            cause = without_password(_first_line(error))
            if self.problem is None:
                self._warn(
                    f"MLflow at {without_password(self.uri)} does not work: {cause}; the run goes on, and "
                    "what it would log is in the run folder"
                )
            self.problem = cause
            return otherwise
        self.problem = None
        self._say_renamed()
        if self._begun is not None and self.run_id is not None and not self._announced:
            self._announced = True
            self._begun(self.run_id, self.link())
        return result

    def _say_renamed(self) -> None:
        """Say once of each name that MLflow does not take what it is called there."""
        new = {name: key for name, key in list(self._record.renamed.items()) if name not in self._said}
        if new:
            self._said |= new.keys()
            names = ", ".join(f"{name!r} is {key!r}" for name, key in list(new.items())[:3])
            more = f", and {len(new) - 3} more" if len(new) > 3 else ""
            self._warn(f"MLflow does not take these names as they are; there {names}{more}")

    def open_experiment(self, *views: View) -> None:
        """Take the experiment as it is, without a run, and save views of its page."""

        def take() -> None:
            if self._record.find_experiment() is not None:
                self._save_views(views)

        self._safely("start", take, None)

    def save_views(self, *views: View) -> None:
        """Save views of the experiment's page with what its runs have logged by now."""

        self._safely("log", lambda: self._save_views(views), None)

    def _save_views(self, views: Sequence[View]) -> None:
        """On the worker's thread. A view that can't be saved costs nothing but itself, and one warning."""
        try:
            for view in views:
                self._record.save_view(view)
        except Exception as error:
            if "view" not in self._said:
                self._said.add("view")
                self._warn(f"MLflow keeps no view of its page: {without_password(_first_line(error))}")

    def runs_link(self, key: str | None) -> str | None:
        """How to open the page of the experiment's training runs, as the view of this key shows them."""
        experiment_id = self._record.experiment_id
        return None if experiment_id is None else page_link(self.uri, view_page(experiment_id, key))


def alarm_tags(alarms: Sequence[Alarm]) -> dict[str, str]:
    """The tags that say which alarms there are. Runs can be filtered by `alarms`, which is `none` without."""
    texts = {
        f"alarm/{alarm.key}": f"since iteration {alarm.since}: {alarm.what}; {alarm.look}" for alarm in alarms
    }
    return {"alarms": ", ".join(alarm.key for alarm in alarms) or "none", **texts}


def trust_tags(metrics: Mapping[str, float]) -> dict[str, str]:
    """By unit, what its trust region decided of its newest update: `accepted`, `partly 0.25`, `rejected`."""
    tags: dict[str, str] = {}
    for name, value in metrics.items():
        prefix, _, rest = name.partition("/")
        unit, _, word = rest.rpartition("/")
        if prefix == "shift" and value == 1 and word in ("accepted", "partly", "rejected"):
            share = f" {metrics[f'shift/{unit}/kept_share']:g}" if word == "partly" else ""
            tags[f"trust/{unit}"] = word + share
    return tags


def run_link(uri: str, experiment_id: str | None, run_id: str | None) -> str | None:
    """How to open the page of an MLflow run; None if there is none."""
    if experiment_id is None or run_id is None:
        return None
    return page_link(uri, f"/#/experiments/{experiment_id}/runs/{run_id}?workflowType=machine_learning")


def page_link(uri: str, page: str) -> str:
    """How to open a page of MLflow at `uri`: a link, or the command that serves the page and then a link."""
    if uri.startswith(("http://", "https://")):
        return without_password(uri.rstrip("/")) + page
    command = hint(f"ui --uri {shlex.quote(without_password(uri))}")
    return f"{command}   then http://127.0.0.1:5000{page}"


def _first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0][:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
