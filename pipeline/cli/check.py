"""`check`: the plan that the settings make, and what stands in its way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import Config, Json, Set

if TYPE_CHECKING:
    from pipeline.metrics.forecast import Pace
    from pipeline.settings.schema import Settings


def check(
    config: Config = "pipeline.toml",
    set_: Set = None,
    as_json: Json = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Measure a small iteration for the forecast, about 20 s after the start of its engines.",
        ),
    ] = False,
    settings: Annotated[
        bool,
        typer.Option(
            "--settings",
            help="Print every setting and where it comes from: file, --set, default, or derived.",
        ),
    ] = False,
) -> None:
    """Check settings, plug-ins, graph, data, evaluation, memory and what this machine has; start nothing but
    a probe, where it is asked for.

    The exit code is 2 where something stands in the way.
    """
    from pipeline.plan.assemble import assemble
    from pipeline.plan.overview import overview
    from pipeline.settings.origins import settings_with_origins
    from pipeline.settings.reading import parse_settings, read_settings
    from pipeline.views.output import print_json, print_lines
    from pipeline.views.overview import overview_lines, settings_lines
    from workflows.errors import UsageError

    overrides = set_ or []
    raw = read_settings(config, overrides)
    parsed = parse_settings(raw, config, overrides)
    plan = assemble(parsed)
    if settings:
        all_settings = settings_with_origins(plan.settings, parsed, raw, overrides)
        if as_json:
            print_json({s.key: {"value": s.value, "from": s.origin} for s in all_settings})
        else:
            print_lines(settings_lines(all_settings))
        return
    pace = None
    if probe:
        pace = _probed(parsed)
    values = overview(plan, pace=pace)
    if as_json:
        print_json(values)
    else:
        print_lines(overview_lines(values))
    if values["problems"]:
        raise UsageError("; ".join(values["problems"]))


def _probed(settings: Settings) -> Pace:
    """The pace of a small iteration with these settings: one task, in a run that is thrown away."""
    import tempfile

    from pipeline.plan.assemble import assemble
    from pipeline.run.probe import measure

    with tempfile.TemporaryDirectory(prefix="cadre-probe-", ignore_cleanup_errors=True) as folder:
        small = {
            "run": settings.run.model_copy(update={"name": "probe", "root": folder}),
            "data": settings.data.model_copy(update={"tasks_per_iteration": 1}),
            "tracking": settings.tracking.model_copy(update={"uri": "none"}),
        }
        return measure(assemble(settings.model_copy(update=small)))
