"""`run iteration`: the next iteration of a run, from sampling to update."""

from __future__ import annotations

from pipeline.cli.options import Config, DryRun, New, Redo, Set


def iteration(
    config: Config = "pipeline.toml",
    set_: Set = None,
    new: New = False,
    redo: Redo = None,
    dry_run: DryRun = False,
) -> None:
    """Run the next iteration of the run that the settings name, or finish an unfinished one."""
    from pipeline.plan.assemble import assemble
    from pipeline.plan.overview import check_start, overview
    from pipeline.settings.reading import load_settings
    from pipeline.store.runs import renamed
    from pipeline.views.output import print_lines
    from pipeline.views.overview import overview_lines

    settings = load_settings(config, set_ or [])
    plan = assemble(renamed(settings) if new else settings)
    if dry_run:
        print_lines(overview_lines(overview(plan)))
        return
    check_start(plan)
    from pipeline.run.forecasting import ForecastLog
    from pipeline.run.session import session
    from pipeline.views.summary import print_summary

    forecasts = ForecastLog(plan)
    print_lines([forecasts.begin()])
    with session(plan, redo=redo) as runner:
        forecasts.ready()
        finished = runner.run_iteration()
        forecasts.finished(finished, runner.fleet.start_seconds)
        forecasts.end()
    print_summary(runner.run, finished, runner.tracker.link())
    runner.check_trained()
