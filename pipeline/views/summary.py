"""The end of an iteration or an evaluation as a page, and one line for each iteration of a training."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from pipeline.store.finished import Finished
from pipeline.store.run import Run
from pipeline.views.files import update_summaries
from pipeline.views.output import print_pages
from pipeline.views.render import (
    IterationView,
    alarm_line,
    echo,
    evaluation_table,
    make_console,
    places,
    summary,
    training_line,
    visible,
)

if TYPE_CHECKING:
    from pipeline.store.evaluated import Evaluated


def print_summary(
    run: Run, finished: Finished, link: str | None, printed: Collection[str] = frozenset()
) -> None:
    """Print the summary of an iteration that has just ended; the last lines say where everything is.

    Args:
        printed: keys of the alarms that this command has printed before; the summary only names them.
    """
    echo(make_console(), summary_of(run, finished, link, printed))


def summary_of(
    run: Run, finished: Finished, link: str | None = None, printed: Collection[str] = frozenset()
) -> RenderableType:
    """The summary of an iteration that has just ended; see `print_summary`."""
    return summary(
        IterationView(
            run=run.name,
            iteration=finished.index,
            metrics=finished.metrics,
            accounts=finished.accounts,
            updates=update_summaries(finished.tables),
            seconds=finished.stage_seconds,
            notes=finished.notes,
            alarms=[f"{a.key}, as above" if a.key in printed else str(a) for a in finished.alarms],
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
        self.alarms: set[str] = set()  # keys of those that hold; their lines are printed

    def add(self, finished: Finished) -> None:
        self.last = finished
        line = training_line(finished.metrics, finished.index, self.iterations, finished.seconds)
        now = {alarm.key: alarm for alarm in finished.alarms}
        begun = [alarm_line(str(alarm)) for key, alarm in now.items() if key not in self.alarms]
        over = [Text(f"  alarm over: {visible(key)}", "green") for key in sorted(self.alarms - now.keys())]
        echo(self._console, line, *begun, *over)
        self.alarms = set(now)


def print_evaluation(evaluated: Evaluated, *, as_json: bool = False) -> None:
    """Print the scores of one evaluation, and where its tables are."""
    data = evaluated.as_dict()
    table = evaluation_table(evaluated.split, evaluated.index, data["scores"], data["episodes"])
    notes = [Text(f"  {visible(evaluated.best_so_far)}", "dim")] if evaluated.best_so_far else []
    notes += [Text(f"  note: {visible(note)}", "yellow") for note in evaluated.done.notes]
    where = places({"  tables": evaluated.folder})
    also = [other.as_dict() for other in evaluated.also]
    tables = [evaluation_table(o["split"], o["index"], o["scores"], o["episodes"]) for o in also]
    print_pages(
        [table, *notes, *tables, where],
        data | {"folder": evaluated.folder, "best_so_far": evaluated.best_so_far, "also": also},
        as_json,
    )


def places_of(run: Run, iteration: int, link: str | None) -> dict[str, str]:
    """Where the tables, the checkpoints and the tracker's page are."""
    where = {"tables": run.iteration(iteration).folder.url, "checkpoints": f"{run.folder.url}/checkpoints"}
    return where | ({"MLflow": link} if link else {})
