"""What the commands print: the end of an iteration, a stored iteration, single episodes, the runs.

Here tables and manifests are found; `pipeline.render` and `pipeline.transcript` make them readable.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.console import RenderableType
from rich.text import Text

from pipeline.alarms import Alarm
from pipeline.artifacts import update_summaries
from pipeline.episodes import Played, find_episode, sample_episodes
from pipeline.metrics import iteration_metrics
from pipeline.render import (
    IterationView,
    alarm_line,
    echo,
    evaluation_table,
    make_console,
    places,
    runs_table,
    summary,
    summary_dict,
    training_line,
    visible,
)
from pipeline.store import Manifest, Run, stored_tables
from pipeline.transcript import transcript, transcript_dict
from stages.tables import TableRef
from workflows.errors import UsageError

if TYPE_CHECKING:
    from pipeline.evaluation import Evaluated
    from pipeline.execution import Finished

EPISODES: Final = 3  # that are listed, unless told otherwise


def print_summary(run: Run, finished: Finished, link: str | None) -> None:
    """Print the summary of an iteration that has just ended; the last lines say where everything is."""
    echo(make_console(), summary_of(run, finished, link))


def summary_of(run: Run, finished: Finished, link: str | None = None) -> RenderableType:
    """The summary of an iteration that has just ended."""
    return summary(
        IterationView(
            run=run.name,
            iteration=finished.index,
            metrics=finished.metrics,
            accounts=finished.accounts,
            updates=update_summaries(finished.tables),
            seconds={name: manifest.seconds for name, manifest in finished.manifests.items()},
            notes=finished.notes,
            alarms=[str(alarm) for alarm in finished.alarms],
            resumed=finished.resumed,
            where=places_of(run, finished.index, link),
        )
    )


class TrainingLog:
    """One printed line for each iteration of a training; keeps the last for the summary."""

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations
        self.last: Finished | None = None
        self._console = make_console()
        self._alarms: set[str] = set()  # that were said

    def add(self, finished: Finished) -> None:
        self.last = finished
        line = training_line(finished.metrics, finished.index, self.iterations, finished.seconds)
        now = {alarm.key: alarm for alarm in finished.alarms}
        begun = [alarm_line(str(alarm)) for key, alarm in now.items() if key not in self._alarms]
        over = [Text(f"  alarm over: {visible(key)}", "green") for key in sorted(self._alarms - now.keys())]
        echo(self._console, line, *begun, *over)
        self._alarms = set(now)


def print_evaluation(found: Evaluated, *, as_json: bool = False) -> None:
    """Print the scores of one evaluation, and where its tables are."""
    data = found.as_dict()
    table = evaluation_table(found.split, found.index, data["scores"], data["episodes"])
    notes = [Text(f"  note: {visible(note)}", "yellow") for note in found.done.notes]
    where = places({"  tables": found.folder})
    _print_all([table, *notes, where], data | {"folder": found.folder}, as_json)


def print_iteration(
    run: Run, iteration: int | None, *, episode: str | None, episodes: int, full: bool, as_json: bool
) -> None:
    """Print a stored iteration, the newest by default, with some of its episodes; or one episode alone.

    Raises:
        UsageError: the run has no such iteration, or the iteration no such episode.
    """
    index = _iteration_index(run, iteration, episode)
    tables, manifests = stored_tables(run, index)
    if episode is not None:
        shown = [_found(tables, episode, index, full)]
        _print_all([transcript(p, full=full) for p in shown], transcript_dict(shown[0]), as_json)
        return
    view = stored_view(run, index, tables, manifests)
    shown = sample_episodes(tables, episodes, full=full) if "episodes" in tables else []
    pages: list[RenderableType] = [summary(view)]
    for played in shown:
        pages += [Text(), transcript(played, full=full)]
    _print_all(pages, summary_dict(view) | {"episodes": [transcript_dict(p) for p in shown]}, as_json)


def print_where(
    run: Run, iteration: int | None, where: str, *, limit: int | None, full: bool, as_json: bool
) -> None:
    """Print the turns of a stored iteration, the newest by default, that the condition chooses.

    Raises:
        UsageError: no such iteration, or a condition that can't be read.
    """
    from pipeline.where import print_turns

    index = _iteration_index(run, iteration, None)
    tables, _ = stored_tables(run, index)
    what = f"iteration {index} of run {run.name}"
    print_turns(tables, what, where, limit=limit, full=full, as_json=as_json)


def print_runs(runs: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print one line for each run."""
    _print_all([runs_table(runs)], list(runs), as_json)


def places_of(run: Run, iteration: int, link: str | None) -> dict[str, str]:
    """Where the tables, the checkpoints and the tracker's page are."""
    where = {"tables": run.iteration(iteration).folder.url, "checkpoints": f"{run.folder.url}/checkpoints"}
    return where | ({"MLflow": link} if link else {})


def stored_view(
    run: Run, index: int, tables: Mapping[str, TableRef], manifests: Sequence[Manifest]
) -> IterationView:
    """The summary of a stored iteration, computed from its tables."""
    seconds = {m.stage: m.seconds for m in manifests}
    accounts = [a for m in manifests for a in m.accounts]
    notes = [n for m in manifests for n in m.notes]
    if not run.is_finished(index):
        notes.append(f"this iteration is unfinished; finished stages: {', '.join(seconds) or 'none'}")
    link = run.info.get("tracker", {}).get("link")
    return IterationView(
        run=run.name,
        iteration=index,
        metrics=iteration_metrics(tables, accounts, seconds),
        accounts=accounts,
        updates=update_summaries(tables),
        seconds=seconds,
        notes=notes,
        alarms=[str(alarm) for alarm in stored_alarms(run, index)],
        where=places_of(run, index, link),
    )


def stored_alarms(run: Run, index: int) -> list[Alarm]:
    """The alarms that there were after a finished iteration."""
    text = run.iteration(index).folder.read_text("done.json")
    return [Alarm(**raw) for raw in json.loads(text).get("alarms", ())] if text else []


def _iteration_index(run: Run, iteration: int | None, episode: str | None) -> int:
    """The iteration to show: the one asked for, that of the episode, or the newest."""
    indices = run.iterations()
    if iteration is None and episode is not None and (head := episode.partition("/")[0]).isdigit():
        iteration = int(head)
    if not indices:
        raise UsageError(f"run {run.name!r} at {run.folder.url} has no iteration yet")
    if iteration is None:
        return indices[-1]
    if iteration not in indices:
        raise UsageError(
            f"run {run.name!r} has no iteration {iteration}; it has {indices[0]} to {indices[-1]}"
        )
    return iteration


def _found(tables: Mapping[str, TableRef], episode: str, index: int, full: bool) -> Played:
    played = find_episode(tables, episode, full=full) if "episodes" in tables else None
    if played is None:
        some = (
            [str(p.episode["episode_id"]) for p in sample_episodes(tables, 3)] if "episodes" in tables else []
        )
        raise UsageError(
            f"iteration {index} has no episode {episode!r}; it has, for example: {', '.join(some) or 'none'}"
        )
    return played


def _print_all(pages: Sequence[RenderableType], data: Any, as_json: bool) -> None:
    if as_json:
        # escaped, so that no control character of a model reaches the terminal
        sys.stdout.write(json.dumps(data, indent=1) + "\n")
    else:
        echo(make_console(), *pages)
