"""The command `run study`: train the cells of a study, one run after another, and write what they came to.

It is a sweep: the same runs, processes, lock, records and resume. Runs of the control come last, because
they go on until they have sampled as many tokens as the teams with the same seed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from pipeline.experiments.process import Train, train_apart
from pipeline.experiments.study.page import study_files
from pipeline.experiments.study.results import StudyResult, results_of
from pipeline.experiments.study.spec import Study, read_study
from pipeline.experiments.study.trained import SPARE, TokenCounts
from pipeline.experiments.study.view import study_metrics, study_page
from pipeline.experiments.sweep import Member, Sweep, dry_run, run_sweep
from pipeline.experiments.sweep_folder import SweepFolder
from pipeline.experiments.sweep_record import sweep_links
from pipeline.run.signals import raise_on_stop_signals
from pipeline.tracking.tracker import EvaluationRecord, Tracker
from pipeline.views.render import echo, make_console, places
from stages.tables.parquet import write_bytes

FOLDER = "study"  # under the sweep's folder, and of the artifacts of its page in MLflow


def study_command(path: str, overrides: Sequence[str], *, only_plan: bool, only_report: bool = False) -> None:
    """Run a study, print what it would run, or write its page from what is there.

    Raises:
        UsageError: the file says something that can't work.
        RunFailed: some runs failed; the message has their causes.
    """
    study = planned(read_study(path, overrides))
    if only_plan:
        dry_run(study.sweep)
    elif only_report:
        write_report(study, make_console())
    else:
        raise_on_stop_signals()
        run_study(study)


def planned(study: Study) -> Study:
    """The study with the rule for how long its control trains."""
    return replace(study, sweep=replace(study.sweep, wanted=_Wanted(study).iterations))


def run_study(study: Study, train: Train = train_apart) -> None:
    """Train what is not trained yet, then write and print the results; what is finished is not run again."""

    def finish(sweep: Sweep, folder: SweepFolder, tracker: Tracker, console: Console) -> None:
        write_report(study, console, tracker)

    run_sweep(study.sweep, train, finish)


def write_report(study: Study, console: Console, tracker: Tracker | None = None) -> StudyResult:
    """Write the page, its plots and numbers under `<root>/<study>/study`, and print the tables."""
    result = results_of(study)
    folder = SweepFolder(study.sweep.root, study.sweep.name)
    where = folder.folder.child(FOLDER).url
    files = study_files(result)
    files["study.json"] = json.dumps(result.as_dict(), indent=1).encode()
    for name, data in files.items():
        write_bytes(f"{where}/{name}", data)
    links = {}
    if tracker is not None:
        tracker.log_files(FOLDER, files)
        tracker.log_evaluation(EvaluationRecord("cells", len(result.trained), study_metrics(result)))
        links = sweep_links(folder, tracker)
    echo(console, Text(), study_page(result), Text(), places({"page": f"{where}/study.html"} | links))
    return result


class _Wanted:
    """How many iterations each run is to have."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.counts = TokenCounts(study.sweep.root)

    def iterations(self, member: Member) -> int:
        """Those of the study; of the control, as many as sample what the team with the most tokens has.

        The control first trains as long as the others, which says what one of its iterations samples.
        """
        section, cell = self.study.section, self.study.cell_of(member)
        sampled = self.counts.of(member.name)
        if not self.study.is_control(cell) or len(sampled) < section.iterations:
            return section.iterations
        most = section.iterations * section.control_most
        target = self._tokens_of_teams(member)
        if not sum(sampled) or sum(sampled) >= target * (1 - SPARE):
            return min(len(sampled), most)
        recent = sampled[-section.iterations :]
        left = math.ceil((target - sum(sampled)) / (sum(recent) / len(recent)))
        return min(len(sampled) + left, most)

    def _tokens_of_teams(self, control: Member) -> float:
        """The most tokens that a team with this seed, and this control, has sampled."""
        study = self.study
        teams = [
            study.member_of(cell, control.seed)
            for cell in study.cells
            if not study.is_control(cell) and study.control_of(cell) is study.cell_of(control)
        ]
        return max(
            (sum(self.counts.of(team.name)[: study.section.iterations]) for team in teams), default=0.0
        )
