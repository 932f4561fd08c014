"""`ui`: MLflow's page of the runs, until Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.cli.options import Root


def ui(
    root: Root = "runs",
    uri: Annotated[
        str | None, typer.Option("--uri", help="The record's address, where it is not under the root.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Default: 5000, or the next free one.")
    ] = None,
    anyone: Annotated[
        bool,
        typer.Option("--anyone", help="Allow a --host that other machines reach; there is no password."),
    ] = False,
) -> None:
    """Serve MLflow's page of the runs under a root, on this machine only, until Ctrl-C."""
    from pipeline.run.signals import Stopped, raise_on_stop_signals, stop_is_the_end
    from pipeline.settings.names import without_password
    from pipeline.tracking.mlflow_store import tracking_uri
    from pipeline.tracking.server import newest_page, serving
    from pipeline.views.output import print_lines
    from workflows.errors import CadreError

    uri = tracking_uri(uri, root)
    if uri.startswith(("http://", "https://")):
        print_lines([f"MLflow runs at {without_password(uri)}: open it there"])
        return
    raise_on_stop_signals()
    try:
        with serving(uri, host, port, anyone=anyone) as (process, address):
            # flushed: readers wait for it
            typer.echo(f"MLflow: {address}{newest_page(address)}   (Ctrl-C ends it)")
            code = process.wait()
    except Stopped:
        stop_is_the_end()
        return
    raise CadreError(f"the MLflow server ended by itself, with code {code}")
