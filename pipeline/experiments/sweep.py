"""The command `run sweep`: the same team at several points of its settings, each with the same seeds.

Runs are ordinary ones and are made one after another, each in a process of its own. A run that fails
is reported at the end with its cause, and the others go on. Calling the command again finishes the rest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from pipeline.experiments.points import Point, points_of, seeds_of, settings_at
from pipeline.experiments.process import Train, train_apart
from pipeline.experiments.sweep_folder import Child, SweepFolder, finished_iterations
from pipeline.experiments.sweep_record import FOLDER, begin_record, child_tags, point_metrics, sweep_links
from pipeline.plan.memory import memory_report
from pipeline.plan.parameters import parameters_of
from pipeline.run.signals import raise_on_stop_signals
from pipeline.settings.reading import parse_settings, read_settings, settings_toml
from pipeline.settings.schema import Settings
from pipeline.store.lock import RunLock
from pipeline.store.run import Run
from pipeline.tracking.mlflow_view import VARIES
from pipeline.tracking.tracker import EvaluationRecord, Parameters, Tracker
from pipeline.views.progress import RichProgress, duration
from pipeline.views.render import echo, make_console, places, visible
from workflows.errors import RunFailed, UsageError

if TYPE_CHECKING:
    from pipeline.plan.assemble import Plan

DEFAULT_REGIMES = "full,separate,adapters"
MOST_PASSES = 3  # of a run whose iterations depend on what they sample


@dataclass(frozen=True, slots=True)
class Member:
    """One run of a sweep, before it has a page of its own to stand under."""

    name: str
    point: Point
    seed: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep before it runs. `raw` are the settings that all runs share, `base` is their validated form."""

    name: str
    raw: Mapping[str, Any]
    base: Settings
    iterations: int
    points: tuple[Point, ...]
    members: tuple[Member, ...]  # seed by seed, so that a sweep that is stopped can be compared
    wanted: Callable[[Member], int] | None = None  # iterations of a run, where not all have as many

    @property
    def root(self) -> str:
        return self.base.run.root

    def iterations_of(self, member: Member) -> int:
        """How many iterations a run is to have, by what the runs before it have."""
        return self.iterations if self.wanted is None else self.wanted(member)

    def settings_of(self, member: Member, tags: Mapping[str, str]) -> Settings:
        return settings_at(self.raw, member.point, seed=member.seed, name=member.name, tags=tags)


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """The options of `run sweep`, as the command line has them."""

    iterations: int
    sharing: bool = False  # sweep the sharing regimes
    regimes: str | None = None
    grid: Sequence[str] = ()
    set_for: Sequence[str] = ()
    seeds: str | None = None
    name: str | None = None
    dry_run: bool = False


def sweep_command(config: str, overrides: Sequence[str], options: SweepOptions) -> None:
    """Plan a sweep as the command line says, and run it or print it.

    Raises:
        UsageError, RunFailed: as `plan_sweep` and `run_sweep`.
    """
    if options.regimes and not options.sharing:
        raise UsageError("--regimes belongs to `run sweep sharing`; put the word sharing after sweep")
    if options.sharing and not options.regimes:
        options = replace(options, regimes=DEFAULT_REGIMES)
    sweep = plan_sweep(config, overrides, options)
    if options.dry_run:
        dry_run(sweep)
        return
    raise_on_stop_signals()
    run_sweep(sweep)


def plan_sweep(config: str, overrides: Sequence[str], options: SweepOptions) -> Sweep:
    """The runs of a sweep, from the command line.

    Raises:
        UsageError: something in it can't be read, or a point has settings that are not valid.
    """
    raw = read_settings(config, overrides)
    groups = raw.get("sharing", {}).get("groups", {})
    points = points_of(options.regimes, options.grid, options.set_for, groups)
    if options.regimes:
        raw.pop("sharing", None)  # each point has its own
    base = parse_settings(raw, config, overrides)
    keys = [g.partition("=")[0].rsplit(".", 1)[-1].strip() for g in options.grid]
    name = options.name or "-".join([base.run.name, *(["sharing"] if options.regimes else []), *keys])
    members = tuple(
        Member(f"{name}-{point.slug}-s{seed}", point, seed)
        for seed in seeds_of(options.seeds, base.run.seed)
        for point in points
    )
    sweep = Sweep(name, raw, base, options.iterations, tuple(points), members)
    for member in members:
        sweep.settings_of(member, {})
    return sweep


def dry_run(sweep: Sweep) -> None:
    """Print the runs, how each stands, and what each needs; run nothing.

    Raises:
        UsageError: a point can't work.
    """
    from pipeline.experiments.comparison_view import sweep_table

    plans = check_points(sweep)
    folder = SweepFolder(sweep.root, sweep.name)
    rows = []
    for member in sweep.members:
        plan, child = plans[member.point.label], folder.children.get(member.name)
        rows.append(
            {
                "run": member.name,
                "point": member.point.label,
                "seed": member.seed,
                "state": _state(sweep, folder, member, child),
                "parameters": parameters_of(plan),
                "memory_gib": memory_report(plan)["total"],
            }
        )
    data, rollout = sweep.base.data, sweep.base.rollout
    head = f"sweep {sweep.name}: {len(rows)} runs of {sweep.iterations} iterations, one after another"
    episodes = f"{data.tasks_per_iteration} tasks × {rollout.group_size} episodes an iteration"
    total = Text(f"forecast  {visible(forecast_text(sweep, folder, plans))}")
    echo(make_console(), Text(f"{visible(head)}; {episodes}"), sweep_table(rows), total)


Finish = Callable[["Sweep", SweepFolder, Tracker, Console], None]  # prints and stores what came out


def forecast_text(sweep: Sweep, folder: SweepFolder, plans: Mapping[str, Plan]) -> str:
    """Tokens and time of the runs that are left, from runs that have finished here or were stored before."""
    from pipeline.experiments.forecast import left_of_runs

    left = [
        (plans[member.point.label], member.name, sweep.iterations_of(member))
        for member in sweep.members
        if not _is_finished(sweep, folder, member)
    ]
    return left_of_runs(sweep.root, left)


def run_sweep(sweep: Sweep, train: Train = train_apart, finish: Finish | None = None) -> None:
    """Run what is not finished, print a line for each run and the comparison of all.

    Args:
        train: how one run is made; by default in a process of its own.
        finish: what is done with the runs in the end; by default they are compared.

    Raises:
        UsageError: a point can't work, or the sweep of this name has other settings.
        RunFailed: some runs failed; the message has their causes.
    """
    plans = check_points(sweep)
    console = make_console()
    folder = SweepFolder(sweep.root, sweep.name)
    echo(console, Text(f"forecast  {visible(forecast_text(sweep, folder, plans))}"))
    with RunLock(folder.folder):
        points = {p.label: p.as_dict() for p in sweep.points}
        folder.begin(settings_toml(sweep.base), sweep.base.fingerprint(), points)
        tracker = begin_record(
            folder, sweep.base.tracking, _parameters(sweep), sweep.base.workflow.use, sweep.root, _tags(sweep)
        )
        ended_well = False
        try:
            for index in range(len(sweep.members)):
                _run_member(sweep, folder, index, train, console)
            (finish or _compare)(sweep, folder, tracker, console)
            ended_well = not _failures(sweep, folder)
        finally:
            tracker.close(failed=not ended_well)
    if failed := _failures(sweep, folder):
        causes = "\n  ".join(f"{child.name}: {child.cause}" for child in failed)
        raise RunFailed(
            f"{len(failed)} of {len(sweep.members)} runs failed; the same command tries again\n  {causes}"
        )


def _varied(sweep: Sweep) -> dict[str, list[str]]:
    """The settings that the sweep varies, each with its values in order."""
    names = dict.fromkeys(name for point in sweep.points for name in point.values)
    return {
        name: list(dict.fromkeys(p.values[name] for p in sweep.points if name in p.values)) for name in names
    }


def _tags(sweep: Sweep) -> dict[str, str]:
    """Tags of the sweep's own page."""
    values = {name: ", ".join(values) for name, values in _varied(sweep).items()}
    points = ", ".join(point.label for point in sweep.points)
    return {**values, "sweep": sweep.name, "points": points, VARIES: ", ".join(values)}


def _parameters(sweep: Sweep) -> Parameters:
    """What the sweep's own page says of its settings: those that its runs share, and what it varies."""
    base = sweep.base
    named = {
        "workflow": base.workflow.use,
        "model": ", ".join(dict.fromkeys(str(m.checkpoint) for m in base.models.values())),
        "run.seed": ", ".join(str(seed) for seed in dict.fromkeys(m.seed for m in sweep.members)),
    }
    values = {name: ", ".join(values) for name, values in _varied(sweep).items()}
    return Parameters(
        base.model_dump(mode="json", exclude_defaults=True, exclude={"run": {"seed"}}),
        named | values,
        file=settings_toml(base),
    )


def check_points(sweep: Sweep) -> dict[str, Plan]:
    """The plan of each point by its label, with the first seed: what can't work is found before anything
    runs.

    Raises:
        UsageError: a point can't work; the message says which.
    """
    from pipeline.plan.assemble import assemble, assemble_evaluation

    plans = {}
    for point in sweep.points:
        member = next(m for m in sweep.members if m.point is point)
        try:
            plans[point.label] = plan = assemble(sweep.settings_of(member, {}))
            if plan.resolved.evaluate.every:
                assemble_evaluation(plan)
        except UsageError as error:
            raise UsageError(f"point {point.label!r} of the sweep: {error}") from None
    return plans


def _run_member(sweep: Sweep, folder: SweepFolder, index: int, train: Train, console: Console) -> None:
    """Run one member, unless it is finished; its state is in `sweep.json` before and after."""
    member = sweep.members[index]
    child = folder.child(member.name, member.point.label, member.seed)
    label = f"[{index + 1}/{len(sweep.members)}] {member.point.label}, seed {member.seed}"
    wanted = sweep.iterations_of(member)
    if folder.is_finished(child, wanted):
        echo(console, Text(f"{visible(label)}: has its {child.iterations} iterations already", "dim"))
        return
    for _ in range(MOST_PASSES):
        _train_member(sweep, folder, index, child, label, wanted, train, console)
        before, wanted = wanted, sweep.iterations_of(member)
        if child.cause or wanted <= before:
            return


def _train_member(
    sweep: Sweep,
    folder: SweepFolder,
    index: int,
    child: Child,
    label: str,
    wanted: int,
    train: Train,
    console: Console,
) -> None:
    member = sweep.members[index]
    child.state, child.cause = "running", None
    folder.write()
    settings = sweep.settings_of(
        member,
        child_tags(folder, member.point.label, folder.data["tracker"].get("run_id"), member.point.values),
    )
    started = time.monotonic()

    def left() -> float | None:
        return seconds_left(sweep, folder, index, time.monotonic() - started)

    progress = RichProgress(brief_seconds=float("inf"), forecast=left)  # the line that stays is ours
    done = finished_iterations(sweep.root, member.name)
    progress.start(label, wanted, "iteration")
    progress.advance(done)

    def on_progress(now: int) -> None:
        nonlocal done
        progress.advance(now - done)
        done = now

    try:
        child.cause = train(settings, wanted, folder.folder, on_progress)
        child.state = "failed" if child.cause else "finished"
    finally:
        progress.finish()
        child.seconds += time.monotonic() - started
        child.iterations = finished_iterations(sweep.root, member.name)
        folder.write()
    echo(console, _line(label, child, time.monotonic() - started, folder))


def _line(label: str, child: Child, seconds: float, folder: SweepFolder) -> Text:
    head = f"{visible(label)}: "
    if child.cause:
        log = f"{folder.folder.url}/{child.name}.log"
        return Text(f"{head}FAILED after {duration(seconds)}: {visible(child.cause)} ({log})", "red")
    text = Text(f"{head}{child.iterations} iterations in {duration(seconds)} with its start")
    if (value := _last_return(folder, child)) is not None:
        text.append(f", mean return {value:.3f} in the last")
    return text


def seconds_left(sweep: Sweep, folder: SweepFolder, index: int, spent: float) -> float | None:
    """How long the sweep will take from now, by the runs that it has finished; None before the first.

    A run is expected to take as long as those of its point took on average, from start to end, or as all
    did where its point has none.

    Args:
        index: of the member that runs now, for `spent` seconds.
    """
    finished = {m.name for m in sweep.members if _is_finished(sweep, folder, m)}
    done = [child for child in folder.children.values() if child.name in finished]
    if not done:
        return None

    def expected(member: Member) -> float:
        same = [child.seconds for child in done if child.point == member.point.label]
        return fmean(same or [child.seconds for child in done])

    later = [member for member in sweep.members[index + 1 :] if member.name not in finished]
    return max(0.0, expected(sweep.members[index]) - spent) + sum(map(expected, later))


def _last_return(folder: SweepFolder, child: Child) -> float | None:
    text = Run(folder.root, child.name).iteration(child.iterations - 1).folder.read_text("done.json")
    value = json.loads(text).get("metrics", {}).get("return/mean") if text else None
    return None if value is None else float(value)


def _compare(sweep: Sweep, folder: SweepFolder, tracker: Tracker, console: Console) -> None:
    """The final table, and its files here and on the sweep's page."""
    from pipeline.experiments.compare import named_runs, write_comparison
    from pipeline.experiments.comparison import compare
    from pipeline.experiments.comparison_view import comparison_page

    named = named_runs([f"{folder.folder.url}"], sweep.root)
    if len(named.histories) < 2:
        return  # nothing to compare: one run, or none that began
    comparison = compare(named.histories, named.labels)
    where = folder.folder.child("compare").url
    files = write_comparison(comparison, where)
    tracker.log_files(FOLDER, files)
    tracker.log_evaluation(EvaluationRecord("points", len(named.histories), point_metrics(comparison)))
    places_ = {"plots": where} | sweep_links(folder, tracker)
    echo(console, Text(), comparison_page(comparison), Text(), places(places_))


def _failures(sweep: Sweep, folder: SweepFolder) -> list[Child]:
    names = {m.name for m in sweep.members}
    return [c for c in folder.children.values() if c.name in names and c.state == "failed"]


def _state(sweep: Sweep, folder: SweepFolder, member: Member, child: Child | None) -> str:
    wanted = sweep.iterations_of(member)
    if child is not None and folder.is_finished(child, wanted):
        return "finished"
    done = finished_iterations(sweep.root, member.name)
    state = f"{done} of {wanted}" if done else "new"
    if child is not None and child.state == "failed":
        return f"{state}, failed"
    return f"{state}, not ended" if done >= wanted else state


def _is_finished(sweep: Sweep, folder: SweepFolder, member: Member) -> bool:
    child = folder.children.get(member.name)
    return child is not None and folder.is_finished(child, sweep.iterations_of(member))
