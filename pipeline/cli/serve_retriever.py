"""`serve-retriever`: a corpus or an index over HTTP, until Ctrl-C."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def serve_retriever(
    corpus: Annotated[
        str | None, typer.Option("--corpus", help="A built-in name or a .jsonl or .parquet file.")
    ] = None,
    index: Annotated[
        str | None, typer.Option("--index", help="A folder that `index` built, in place of a corpus.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", help="How an index is searched: bm25, dense, hybrid. Default: as it was built."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Where the embedding model of an index is now, if it was moved."),
    ] = None,
    depth: Annotated[
        int | None, typer.Option("--depth", help="dense, hybrid: candidates of each list. Default: 100.")
    ] = None,
    rank_constant: Annotated[
        float | None, typer.Option("--rank-constant", help="hybrid: of reciprocal rank fusion. Default: 60.")
    ] = None,
    k1: Annotated[
        float | None, typer.Option("--k1", help="BM25 of a corpus: repetition. Default: 1.5.")
    ] = None,
    b: Annotated[
        float | None, typer.Option("--b", help="BM25 of a corpus: length, 0 to 1. Default: 0.75.")
    ] = None,
    stemmer: Annotated[
        str | None, typer.Option("--stemmer", help="BM25 of a corpus: a language, or none. Default: english.")
    ] = None,
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
    """Serve a corpus or an index over HTTP to the retrievers of runs, until Ctrl-C.

    With both, the index is refused unless it is the corpus's.
    """
    from pipeline.run.signals import stop_is_the_end
    from workflows.errors import UsageError
    from workflows.tools.retriever import make_retriever
    from workflows.tools.serve_corpus import serve

    if corpus is None and index is None:
        raise UsageError("serve-retriever needs --corpus FILE or --index FOLDER: what is to be searched")
    given: dict[str, Any] = {
        "index": index,
        "kind": kind,
        "model": model,
        "depth": depth,
        "rank_constant": rank_constant,
        "k1": k1,
        "b": b,
        "stemmer": stemmer,
    }
    search = {name: value for name, value in given.items() if value is not None}
    if stemmer == "none":
        search["stemmer"] = None
    retriever: Any = make_retriever(corpus or "facts", search=search)
    if index is not None:
        retriever.open_checked()
    serve(retriever, index or str(corpus), host, port, lambda line: typer.echo(line))
    stop_is_the_end()
