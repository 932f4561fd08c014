"""`serve-retriever`: a corpus over HTTP, until Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer


def serve_retriever(
    corpus: Annotated[str, typer.Option("--corpus", help="A built-in name or a .jsonl or .parquet file.")],
    host: Annotated[
        str,
        typer.Option(
            "--host", help="The address to listen at; any but a loopback address is open to other machines."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port to listen at; 0 takes a free one.")
    ] = 8000,
) -> None:
    """Serve a corpus over HTTP to the retrievers of runs, until Ctrl-C."""
    from pipeline.run.signals import stop_is_the_end
    from workflows.tools.serve_corpus import serve

    serve(corpus, host, port, lambda line: typer.echo(line))
    stop_is_the_end()
