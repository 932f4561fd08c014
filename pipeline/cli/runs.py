"""`runs`: the list of runs."""

from __future__ import annotations

from pipeline.cli.options import Json, Root


def runs(root: Root = "runs", as_json: Json = False) -> None:
    """List the runs under a root."""
    from pipeline.store.runs import list_runs
    from pipeline.views.output import print_pages
    from pipeline.views.runs_table import runs_table

    stored = list_runs(root)
    print_pages([runs_table(stored)], stored, as_json)
