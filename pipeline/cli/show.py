"""What the commands print: the end of an iteration, what is stored of it, single episodes, the runs.

Here tables and manifests are found; `views.render` and `views.transcript` make them readable.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.console import RenderableType
from rich.text import Text

from pipeline.metrics.alarms import Alarm
from pipeline.metrics.iteration import iteration_metrics
from pipeline.store.episodes import Played, find_episode, sample_episodes
from pipeline.store.run import Run
from pipeline.store.shelf import Place, Shelf
from pipeline.views.files import update_summaries
from pipeline.views.render import (
    IterationView,
    alarm_line,
    echo,
    evaluation_table,
    make_console,
    places,
    summary,
    summary_dict,
    training_line,
    visible,
)
from pipeline.views.runs_table import runs_table
from pipeline.views.transcript import transcript, transcript_dict
from workflows.errors import UsageError

if TYPE_CHECKING:
    from pipeline.run.evaluation import Evaluated
    from pipeline.run.execution import Finished

EPISODES: Final = 3  # that are listed, unless told otherwise
_PLAYED: Final = ("episodes", "turns")  # what is measured of an evaluation


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


def print_place(
    shelf: Shelf, index: int | None, *, episode: str | None, episodes: int, full: bool, as_json: bool
) -> None:
    """Print an iteration or evaluation, the newest by default, with some of its episodes; or one episode
    alone.

    Raises:
        UsageError: there is no such iteration or evaluation, or no such episode in it.
    """
    place = _place(shelf, index, episode)
    if episode is not None:
        shown = [_found(place, shelf.title(place.index), episode, full)]
        _print_all([transcript(p, full=full) for p in shown], transcript_dict(shown[0]), as_json)
        return
    view = stored_view(shelf, place)
    shown = sample_episodes(place.tables, episodes, full=full) if "episodes" in place.tables else []
    pages: list[RenderableType] = [summary(view)]
    data = summary_dict(view)
    if shelf.split is not None and (scores := _scores(place)):
        counts = {name: value for m in place.manifests for name, value in m.metrics.items()}
        pages.insert(0, evaluation_table(shelf.split, place.index, scores, counts))
        data |= {"scores": scores}
    for played in shown:
        pages += [Text(), transcript(played, full=full)]
    _print_all(pages, data | {"episodes": [transcript_dict(p) for p in shown]}, as_json)


def print_where(
    shelf: Shelf, index: int | None, where: str, *, limit: int | None, full: bool, as_json: bool
) -> None:
    """Print the turns of an iteration or evaluation, the newest by default, that the condition chooses.

    Raises:
        UsageError: no such iteration or evaluation, or a condition that can't be read.
    """
    from pipeline.cli.where import print_turns

    place = shelf.place(shelf.chosen(index))
    what = f"{shelf.title(place.index)} of run {shelf.name}"
    print_turns(place.tables, what, where, limit=limit, full=full, as_json=as_json)


def print_runs(runs: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print one line for each run."""
    _print_all([runs_table(runs)], list(runs), as_json)


def places_of(run: Run, iteration: int, link: str | None) -> dict[str, str]:
    """Where the tables, the checkpoints and the tracker's page are."""
    where = {"tables": run.iteration(iteration).folder.url, "checkpoints": f"{run.folder.url}/checkpoints"}
    return where | ({"MLflow": link} if link else {})


def stored_view(shelf: Shelf, place: Place) -> IterationView:
    """The summary of what is stored, computed from its tables."""
    run, index = shelf.run, place.index
    # the tables of a replay are partly its run's, whose stages took their time then
    own = [m for m in place.manifests if m.stage not in place.inherited]
    seconds = {m.stage: m.seconds for m in own}
    accounts = [a for m in place.manifests for a in m.accounts]
    notes = [n for m in own for n in m.notes]
    if not place.finished:
        notes.append(f"this {shelf.kind} is unfinished; finished stages: {', '.join(seconds) or 'none'}")
    where = {"tables": place.store.folder.url}
    alarms: list[str] = []
    if shelf.replay is not None:
        checkpoints = f"{run.folder.url}/replays/{shelf.replay}/checkpoints"
        where |= {"checkpoints": checkpoints} if any(n.startswith("updates/") for n in place.tables) else {}
    elif shelf.split is None:
        where = places_of(run, index, run.info.get("tracker", {}).get("link"))
        alarms = [str(alarm) for alarm in stored_alarms(run, index)]
    shown = (
        place.tables if shelf.split is None else {n: place.tables[n] for n in _PLAYED if n in place.tables}
    )
    return IterationView(
        run=shelf.name,
        iteration=index,
        title=shelf.title(index),
        metrics=iteration_metrics(shown, accounts, seconds),
        accounts=accounts,
        updates=update_summaries(place.tables),
        seconds=seconds,
        notes=notes,
        alarms=alarms,
        where=where,
    )


def stored_alarms(run: Run, index: int) -> list[Alarm]:
    """The alarms that there were after a finished iteration."""
    text = run.iteration(index).folder.read_text("done.json")
    return [Alarm(**raw) for raw in json.loads(text).get("alarms", ())] if text else []


def _place(shelf: Shelf, index: int | None, episode: str | None) -> Place:
    """The one asked for, that of the episode, or the newest."""
    head = (episode or "").partition("/")[0]
    if index is None and head.isdigit():
        index = int(head)
    return shelf.place(shelf.chosen(index))


def _scores(place: Place) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(place.store.folder.read_text("result.json") or "{}").get(
        "scores", []
    )
    return found


def _found(place: Place, title: str, episode: str, full: bool) -> Played:
    there = "episodes" in place.tables
    played = find_episode(place.tables, episode, full=full) if there else None
    if played is None:
        some = [str(p.episode["episode_id"]) for p in sample_episodes(place.tables, 3)] if there else []
        raise UsageError(
            f"{title} has no episode {episode!r}; it has, for example: {', '.join(some) or 'none'}"
        )
    return played


def _print_all(pages: Sequence[RenderableType], data: Any, as_json: bool) -> None:
    if as_json:
        # escaped, so that no control character of a model reaches the terminal
        sys.stdout.write(json.dumps(data, indent=1) + "\n")
    else:
        echo(make_console(), *pages)
