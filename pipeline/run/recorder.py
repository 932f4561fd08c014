"""What a run tells its tracker: every finished iteration and evaluation, each once.

A mark beside the tables says that something is logged. What has none, because the tracker was down or
off, is logged after the next thing that the tracker takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pipeline.settings.names import slug
from pipeline.settings.tracking import TrackingSection
from pipeline.store.evaluated import Evaluated
from pipeline.store.finished import Finished
from pipeline.store.folder import Folder
from pipeline.store.run import Run
from pipeline.store.samples import choose_episodes
from pipeline.tracking.spans import trace_of
from pipeline.tracking.tracker import Contents, EvaluationRecord, IterationRecord, Tracker
from pipeline.views.files import iteration_files, note_of
from pipeline.views.summary import summary_of

MARK: Final = "tracked.json"
AT_ONCE: Final = 10  # missed iterations that are logged after one that is new: it holds the next one up


class Recorder:
    """The tracker of one run, and what of the run it has.

    Args:
        run: its folder.
        tracker: takes the records.
        tracking: which episodes are sampled for a record, and how often.
        seed: of the run.
        toml: the settings as the run keeps them.
    """

    def __init__(self, run: Run, tracker: Tracker, tracking: TrackingSection, seed: int, toml: str) -> None:
        self.run, self.tracker, self.tracking, self.seed, self.toml = run, tracker, tracking, seed, toml
        self._missed: list[int] | None = None  # finished iterations that are not logged; None: not looked
        self._newest = -1
        self._answers = True  # whether the tracker took what it was given last

    def iteration(self, done: Finished) -> None:
        """Log the newest finished iteration, and then some of those that were missed."""
        self._newest = done.index
        if self._log_once(done):
            self.catch_up(AT_ONCE)
        elif self._missed is not None:
            self._missed.append(done.index)

    def evaluation(self, found: Evaluated, files: Callable[[], Mapping[str, bytes]]) -> bool:
        """Log an evaluation, with a sample of its episodes as traces; whether it is logged now."""
        folder = self.run.evaluation(found.split, found.index).folder
        if _is_marked(folder):
            return True
        done = found.done

        def contents() -> Contents:
            count, seed = self.tracking.sample_episodes, self.seed
            chosen = choose_episodes(done.tables, count, seed, metric=found.best)
            return Contents(files(), [trace_of(one, f"{found.split}/{found.index:05d}") for one in chosen])

        logged = self.tracker.log_evaluation(
            EvaluationRecord(
                found.split,
                found.index,
                found.metrics(),
                done.finished_at,
                contents,
                _times_redone(self.run, found.split, found.index),
            )
        )
        if logged:
            folder.write_text(MARK, "{}")
        return logged

    def missed_evaluations(self, split: str) -> list[int]:
        """The finished evaluations on a split that are not logged."""
        if self.tracking.uri == "none":
            return []
        folder = self.run.folder.child(f"evaluations/{slug(split)}")
        places = [folder.child(name) for name in folder.names() if name.isdigit()]
        return [
            int(place.url.rpartition("/")[2])
            for place in places
            if place.read_text("result.json") is not None and not _is_marked(place)
        ]

    def catch_up(self, limit: int | None = None) -> None:
        """Log finished iterations that the tracker has missed, for as long as it takes them.

        One that it does not take goes to the end, so that it keeps no other from being logged.

        Args:
            limit: the most to log now; None: all.
        """
        if self.tracking.uri == "none" or not self._answers:
            return
        if self._missed is None:
            finished = [i for i in self.run.iterations() if self.run.is_finished(i)]
            self._missed = [i for i in finished if not _is_marked(self.run.iteration(i).folder)]
            self._newest = max([self._newest, *finished])
        for index in self._missed[:limit]:
            self._missed.remove(index)
            if not self._log_once(Finished.read(self.run.iteration(index))):
                self._missed.append(index)
                return

    def _log_once(self, done: Finished) -> bool:
        folder = self.run.iteration(done.index).folder
        if _is_marked(folder):
            return True
        self._answers = self._log(done, newest=done.index == self._newest)
        if self._answers:
            folder.write_text(MARK, "{}")
        return self._answers

    def _log(self, done: Finished, newest: bool) -> bool:
        """Log an iteration; what it needs is made there, and only if the tracker logs. Alarms and the
        description are those of the newest."""
        tracking = self.tracking
        count = tracking.sample_episodes if done.index % tracking.sample_every == 0 else 0

        def contents() -> Contents:
            sample = choose_episodes(done.tables, count, self.seed)
            page = summary_of(self.run, done)
            return Contents(
                iteration_files(done.tables, done.accounts, self.toml, sample, page),
                [trace_of(chosen) for chosen in sample],
                note_of(page, done.alarms) if newest else None,
            )

        # its time is the tables', so that logging it again after a kill gives the same point
        return self.tracker.log_iteration(
            IterationRecord(
                done.index, done.metrics, done.finished_at, done.alarms if newest else None, contents
            )
        )


def _times_redone(run: Run, split: str, index: int) -> int:
    """How often stages of an evaluation were made again."""
    redone = run.info.get("redone", [])
    return sum((entry.get("split"), entry["iteration"]) == (split, index) for entry in redone)


def _is_marked(folder: Folder) -> bool:
    return folder.read_text(MARK) is not None
