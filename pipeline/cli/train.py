"""`run train`: iterations one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import Config, DryRun, New, Redo, Set

if TYPE_CHECKING:
    from pipeline.store.evaluated import Evaluated
    from pipeline.store.finished import Finished

BRIEF_SECONDS = 10.0  # a stage that is done sooner leaves no line: each iteration has one


def train(
    iterations: Annotated[
        int, typer.Option("--iterations", "-n", min=1, help="How many iterations the run has at the end.")
    ],
    config: Config = "pipeline.toml",
    set_: Set = None,
    overfit: Annotated[
        bool,
        typer.Option("--overfit", help="Train on one group until it is solved: the first smoke test."),
    ] = False,
    new: New = False,
    redo: Redo = None,
    dry_run: DryRun = False,
) -> None:
    """Run iterations one after another, with engines and trainers kept up. The same command goes on
    where it was stopped; [evaluate] every = K evaluates on the way."""
    from pipeline.plan.assemble import assemble, assemble_evaluation
    from pipeline.plan.overview import check_start, overview
    from pipeline.run.overfit import already_solved, overfit_settings, watch
    from pipeline.settings.reading import load_settings
    from pipeline.store.run import Run
    from pipeline.store.runs import renamed
    from pipeline.views.output import print_lines
    from pipeline.views.overview import overview_lines

    settings = load_settings(config, set_ or [])
    if overfit:
        settings = overfit_settings(settings)
    plan = assemble(renamed(settings) if new else settings)
    evaluation = assemble_evaluation(plan) if settings.evaluate.every and not overfit else None
    if dry_run:
        print_lines(overview_lines(overview(plan, evaluation, iterations)))
        return
    solved = watch(settings.evaluate, settings.rewards) if overfit else None
    run_before = Run(plan.resolved.run.root, plan.resolved.run.name)
    if solved is not None and run_before.exists and solved.is_solved_by(run_before):
        print_lines([already_solved(run_before, solved)])
        return
    check_start(plan)
    from pipeline.run.forecasting import ForecastLog
    from pipeline.run.session import session
    from pipeline.views.progress import RichProgress
    from pipeline.views.summary import TrainingLog, print_evaluation, print_summary

    log = TrainingLog(iterations)

    forecasts = ForecastLog(plan, evaluation, iterations)
    print_lines([forecasts.begin()])

    def on_done(finished: Finished) -> bool:
        log.add(finished)
        if line := forecasts.finished(finished, runner.fleet.start_seconds):
            print_lines([line])
        return solved is not None and solved.add(finished)

    def on_evaluated(evaluated: Evaluated) -> None:
        forecasts.evaluated(runner.fleet.start_seconds)
        print_evaluation(evaluated)

    with session(plan, RichProgress(brief_seconds=BRIEF_SECONDS), redo=redo) as runner:
        forecasts.ready()
        runner.train(iterations, evaluation, on_done, on_evaluated)
        forecasts.end()
    if log.last is None:
        run = runner.run
        print_lines([f"run {run.name!r} has its {iterations} iterations already: {run.folder.url}"])
        return
    print_summary(runner.run, log.last, runner.tracker.link(), printed=log.alarms)
    if solved is not None:
        print_lines([solved.verdict()])
    else:
        runner.check_trained()
