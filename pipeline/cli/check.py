"""`check`: the plan that the settings make, and what stands in its way."""

from __future__ import annotations

from pipeline.cli.options import Config, Json, Set


def check(config: Config = "pipeline.toml", set_: Set = None, as_json: Json = False) -> None:
    """Check settings, plug-ins, graph, data, memory and what this machine has; start nothing.

    The exit code is 2 where something stands in the way.
    """
    from pipeline.plan.assemble import assemble
    from pipeline.plan.overview import overview
    from pipeline.settings.reading import load_settings
    from pipeline.views.output import print_json, print_lines
    from pipeline.views.overview import overview_lines
    from workflows.errors import UsageError

    values = overview(assemble(load_settings(config, set_ or [])))
    if as_json:
        print_json(values)
    else:
        print_lines(overview_lines(values))
    if values["problems"]:
        raise UsageError("; ".join(values["problems"]))
