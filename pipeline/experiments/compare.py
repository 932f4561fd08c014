"""The command `compare`: runs and sweeps by name → tables in the terminal, plots and numbers as files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from pipeline.experiments.comparison import Comparison, as_dict, compare
from pipeline.experiments.comparison_plots import comparison_files
from pipeline.experiments.comparison_view import comparison_page
from pipeline.experiments.sweep_folder import SweepFolder
from pipeline.experiments.sweep_record import FOLDER, RUNS, reopen_record, sweep_links
from pipeline.settings.names import slug
from pipeline.store.folder import Folder
from pipeline.store.history import History, read_history
from pipeline.store.run import Run
from pipeline.store.runs import find_run, is_sweep
from pipeline.tracking.mlflow import MlflowTracker
from pipeline.tracking.mlflow_store import artifact_folder, tracking_uri
from pipeline.tracking.mlflow_view import of_runs
from pipeline.views.render import as_text, echo, make_console, places, plain
from stages.tables.parquet import write_bytes
from workflows.errors import UsageError

FILE_WIDTH = 160  # characters of the table as a file


@dataclass(frozen=True, slots=True)
class Named:
    """The runs that names stand for. `labels` are by URL, for runs of a sweep."""

    histories: list[History]
    labels: dict[str, str]
    sweeps: list[SweepFolder]


def compare_command(
    names: Sequence[str], root: str, *, out: str | None, last: int | None, as_json: bool
) -> None:
    """Print the comparison and write its files.

    Raises:
        UsageError: no such run, or fewer than two.
    """
    named = named_runs(names, root)
    comparison = compare(named.histories, named.labels, last)
    folder = out or _default_folder(named, names, root)
    files = write_comparison(comparison, folder)
    # a comparison with other runs does not belong on the page of the sweep
    alone = len(named.sweeps) == 1 and len(named.labels) == len(named.histories)
    links = _record(named.sweeps[0], files) if alone else _links(named.histories)
    if as_json:
        data = as_dict(comparison) | {"folder": folder, "files": sorted(files), "links": links}
        sys.stdout.write(json.dumps(plain(data), indent=1) + "\n")
        return
    echo(make_console(), comparison_page(comparison), Text(), places({"plots": folder} | links))


def named_runs(names: Sequence[str], root: str) -> Named:
    """The histories of all runs that the names stand for; a sweep stands for its runs.

    Raises:
        UsageError: no run or sweep has such a name.
    """
    named = Named([], {}, [])
    for name in names:
        where, _, last = name.rstrip("/").rpartition("/")
        if is_sweep(where or root, last):
            sweep = SweepFolder(where or root, last)
            named.sweeps.append(sweep)
            for child in sweep.children.values():
                if (run := Run(sweep.root, child.name)).exists:
                    history = read_history(run)
                    named.histories.append(history)
                    named.labels[history.url] = child.point
        else:
            named.histories.append(read_history(find_run(root, name)))
    if named.sweeps and not named.histories:
        raise UsageError(f"sweep {named.sweeps[0].name!r} has no run yet; the command that made it goes on")
    return named


def write_comparison(comparison: Comparison, folder: str) -> dict[str, bytes]:
    """Write the plots, their numbers, the table as text and all of it as JSON; the files by name."""
    files = comparison_files(comparison)
    files["comparison.txt"] = as_text(comparison_page(comparison), FILE_WIDTH).encode()
    files["comparison.json"] = json.dumps(plain(as_dict(comparison)), indent=1).encode()
    for name, data in files.items():
        write_bytes(f"{folder}/{name}", data)
    return files


def _default_folder(named: Named, names: Sequence[str], root: str) -> str:
    if len(named.sweeps) == 1 and len(names) == 1:
        return named.sweeps[0].folder.child("compare").url
    return Folder(root).child(f"comparisons/{slug('-'.join(h.name for h in named.histories))}").url


def _record(sweep: SweepFolder, files: dict[str, bytes]) -> dict[str, str]:
    """Put the files on the sweep's page; links to the pages of its runs and of itself."""
    tracker = reopen_record(sweep)
    try:
        logged = tracker.log_files(FOLDER, files)
        return sweep_links(sweep, tracker) if logged else {}
    finally:
        tracker.close()


def _links(histories: Sequence[History]) -> dict[str, str]:
    """A link to MLflow's page of these runs, where one experiment has all of them."""
    ids = [history.info.get("tracker", {}).get("run_id") for history in histories]
    places = {_place(history) for history in histories}
    if not all(ids) or len(places) != 1 or None in places:
        return {}
    uri, experiment = next(place for place in places if place)
    view = of_runs([str(run_id) for run_id in ids])
    tracker = MlflowTracker(uri, experiment, artifact_folder(uri))
    try:
        tracker.open_experiment(view)
        link = tracker.runs_link(view.key)
        return {RUNS: link} if link else {}
    finally:
        tracker.close()


def _place(history: History) -> tuple[str, str] | None:
    """The address of MLflow and the experiment that a run was recorded in; None where it was not."""
    tracking = history.kept.get("tracking", {})
    if tracking.get("uri") == "none":
        return None
    root = history.url.rpartition("/")[0]
    return tracking_uri(tracking.get("uri"), root), tracking.get("experiment", "cadre")
