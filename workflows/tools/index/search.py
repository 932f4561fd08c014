"""Searching an index that is mapped from a folder: by words, by meaning, or both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workflows.errors import UsageError, WorkflowError, did_you_mean
from workflows.hooks import ToolHooks
from workflows.tools.index import parts
from workflows.tools.index.embedders import Precision, Vectors, load_embedder
from workflows.tools.index.folder import KINDS, Kind, Manifest, local_folder
from workflows.tools.index.graph import open_graph
from workflows.tools.retriever_protocol import DEFAULT_TOP_K, MAX_QUERY_CHARACTERS, checked_top_k, query_of

if TYPE_CHECKING:
    import numpy as np

DEPTH: Final = 100
RANK_CONSTANT: Final = 60

Hits = list[tuple[int, float]]  # (passage, score), best first


class IndexRetriever(ToolHooks):
    """A tool: `{"query": str, "top_k": int}` to `{"documents": [{"id", "title", "text", "score"}]}`.

    Documents come best first; equal scores are in the order of their ids. By words (`bm25`) the scores are
    those of `Bm25Retriever`. By meaning (`dense`) they are cosines, exact ones: the graph names `depth`
    neighbours, and their own vectors are compared. Both together (`hybrid`) are fused by reciprocal ranks,
    see `fused`.

    All files are memory maps, which the processes of a node share; a pickled retriever carries its
    arguments. The embedding model is loaded in each process that searches: serve a large one with
    `serve-retriever`, and let workflows ask that.

    Args:
        index: a folder that `python -m pipeline index` built.
        kind: how it is searched: bm25, dense or hybrid; without, as it was built. An index of kind hybrid
            can be searched all three ways.
        model: where the embedding model is now, if it is not where it was.
        depth: candidates of each list that hybrid fuses, and neighbours that dense compares.
        rank_constant: how much less the first ranks stand out in hybrid.
        corpus: refuse an index that is not of this corpus.
        identity: refuse an index whose identity does not begin with this.

    Raises:
        WorkflowError: an option out of range, or without effect on this kind.
        UsageError: from `check_ready`, `start` or the first use: no index there, one that is damaged, stale
            or of another corpus or model, or a package that is missing.
    """

    def __init__(
        self,
        index: str,
        *,
        kind: Kind | None = None,
        model: str | None = None,
        depth: int | None = None,
        rank_constant: float | None = None,
        corpus: str | None = None,
        identity: str | None = None,
    ) -> None:
        if kind is not None and kind not in KINDS:
            raise WorkflowError(
                f"the kind of search is {kind!r}{did_you_mean(str(kind), KINDS)}; expected {', '.join(KINDS)}"
            )
        if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int) or depth < 1):
            raise WorkflowError(f"the retriever's depth must be a whole number of at least 1, got {depth!r}")
        if rank_constant is not None and (
            isinstance(rank_constant, bool)
            or not isinstance(rank_constant, int | float)
            or not rank_constant >= 0
        ):
            raise WorkflowError(f"the retriever's rank_constant must be at least 0, got {rank_constant!r}")
        self._arguments: dict[str, Any] = {
            "kind": kind,
            "model": model,
            "depth": depth,
            "rank_constant": rank_constant,
            "corpus": corpus,
            "identity": identity,
        }
        self.index = index
        self._opened: _Opened | None = None
        self._opening = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(IndexRetriever, self.index, **self._arguments), ()

    def check_ready(self) -> None:
        """Open the index and its model, check that they belong together and to their corpus, and let go of
        them: who checks a run does not search.

        Raises:
            UsageError: they do not; says what to do.
        """
        self._open(check_corpus=True)

    def open_checked(self) -> None:
        """As `check_ready`, and keep what was opened, to search with it here."""
        with self._opening:
            self._opened = self._open(check_corpus=True)

    async def start(self) -> None:
        """Map the files and load the embedding model, without holding up the event loop."""
        if self._opened is None:
            await asyncio.to_thread(self._ready)

    @property
    def num_passages(self) -> int:
        """How many passages the index has."""
        return self._ready().manifest.passages

    async def __call__(self, request: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Search for one query; `top_k` is 4 where the request has none.

        Raises:
            ToolRefusal: the query is missing, not a text, or blank.
            WorkflowError: `top_k` is not a whole number of at least 1.
        """
        query, top_k = query_of(request)
        documents = await asyncio.to_thread(self.search, [query], top_k)
        return {"documents": documents[0]}

    def search(self, queries: Sequence[str], top_k: int = DEFAULT_TOP_K) -> list[list[dict[str, Any]]]:
        """The documents of each query, in the order of the queries; none for a blank one.

        Raises:
            WorkflowError: `top_k` is not a whole number of at least 1.
        """
        checked_top_k(top_k)
        return self._ready().search(queries, top_k)

    def _ready(self) -> _Opened:
        with self._opening:  # the first of several episodes opens, the others wait
            if self._opened is None:
                self._opened = self._open(check_corpus=False)
            return self._opened

    def _open(self, check_corpus: bool) -> _Opened:
        return _Opened.open(local_folder(self.index), self._arguments, check_corpus)


class _Opened:
    """An index's parts, mapped, and how they are searched."""

    def __init__(
        self, folder: Path, manifest: Manifest, kind: Kind, depth: int, rank_constant: float
    ) -> None:
        import numpy as np

        self.manifest = manifest
        self._kind = kind
        self._depth = depth
        self._rank_constant = rank_constant
        self._passages = parts.Passages.open(folder)
        self._order = np.load(folder / parts.ORDER_FILE, mmap_mode="r")
        self._graph_use = threading.Lock()  # one search at a time: its working memory is one
        recipe = manifest.recipe
        self._bm25 = parts.open_bm25(folder, recipe.bm25) if kind != "dense" and recipe.bm25 else None
        self._embedder: Vectors | None = None
        if kind != "bm25" and recipe.dense is not None:
            self._graph = open_graph(folder, depth)
            self._vectors = parts.map_vectors(folder, manifest.passages, recipe.dense.dimension)

    @classmethod
    def open(cls, folder: Path, arguments: Mapping[str, Any], check_corpus: bool) -> _Opened:
        manifest = Manifest.read(folder)
        if check_corpus or arguments["corpus"] is not None:
            manifest.check_corpus(folder, arguments["corpus"])
        wanted, identity = arguments["identity"], manifest.recipe.identity
        if wanted is not None and (not wanted or not identity.startswith(wanted)):
            raise UsageError(
                f"the index {str(folder)!r} has the identity {identity}, expected {wanted!r}; name the index "
                "that is meant, or leave identity out"
            )
        kind: Kind = arguments["kind"] or manifest.recipe.kind
        if manifest.recipe.kind not in (kind, "hybrid"):
            raise UsageError(
                f"the index {str(folder)!r} is of kind {manifest.recipe.kind} and can't be searched as "
                f"{kind}; build one with --kind {kind} or --kind hybrid"
            )
        _refuse_without_effect(kind, arguments)
        depth = DEPTH if arguments["depth"] is None else arguments["depth"]
        constant = RANK_CONSTANT if arguments["rank_constant"] is None else arguments["rank_constant"]
        opened = cls(folder, manifest, kind, depth, constant)
        if kind != "bm25":
            opened._embedder = _embedder_of(manifest, folder, arguments["model"])
        return opened

    def search(self, queries: Sequence[str], top_k: int) -> list[list[dict[str, Any]]]:
        asked = [query[:MAX_QUERY_CHARACTERS] for query in queries]
        worded = [i for i, query in enumerate(asked) if query.strip()]
        hits: list[Hits] = [[] for _ in asked]
        depth = top_k if self._kind == "bm25" else max(top_k, self._depth)
        by_words: list[Hits] = [self._bm25.best(asked[i], depth) if self._bm25 else [] for i in worded]
        by_meaning: list[Hits] = [[] for _ in worded]
        if self._embedder is not None and worded:
            vectors = self._embedder.queries([asked[i] for i in worded])
            by_meaning = [self._nearest(vector, depth) for vector in vectors]
        for i, *lists in zip(worded, by_words, by_meaning, strict=True):
            if self._kind == "hybrid":
                hits[i] = fused(lists, self._rank_constant, self._order)
            else:
                hits[i] = lists[self._kind == "dense"]
        return [self._documents(found[:top_k]) for found in hits]

    def _nearest(self, vector: np.ndarray[Any, Any], depth: int) -> Hits:
        """The passages of the nearest vectors, by their exact cosines."""
        import numpy as np

        with self._graph_use:
            numbers = np.sort(self._graph.search(vector, min(depth, self.manifest.passages)).keys)
        numbers = numbers.astype(np.int64)
        # one row at a time: a product of matrices may round a row by what stands beside it
        cosines = np.array([np.dot(self._vectors[n].astype(np.float32), vector) for n in numbers])
        best = np.lexsort((self._order[numbers], -cosines))
        return [(int(numbers[i]), float(cosines[i])) for i in best]

    def _documents(self, hits: Hits) -> list[dict[str, Any]]:
        rows = self._passages.take([number for number, _ in hits])
        return [{**row, "score": score} for row, (_, score) in zip(rows, hits, strict=True)]


def fused(lists: Iterable[Hits], constant: float, order: Any) -> Hits:
    """Reciprocal rank fusion: a passage's score is the sum of 1 / (constant + rank) over the lists it is in.

    Ranks count from 1; equal scores are in the order of ids.
    Source: Cormack, Clarke and Büttcher, SIGIR 2009, which found a constant of 60.
    """
    scores: dict[int, float] = {}
    for hits in lists:
        for rank, (number, _) in enumerate(hits, 1):
            scores[number] = scores.get(number, 0.0) + 1.0 / (constant + rank)
    return sorted(scores.items(), key=lambda hit: (-hit[1], order[hit[0]]))


def _refuse_without_effect(kind: Kind, arguments: Mapping[str, Any]) -> None:
    needs = {"model": ("dense", "hybrid"), "depth": ("dense", "hybrid"), "rank_constant": ("hybrid",)}
    for name, kinds in needs.items():
        if arguments[name] is not None and kind not in kinds:
            raise WorkflowError(
                f"{name} = {arguments[name]!r} has no effect on a search of kind {kind}; leave it out, or "
                f"search as {' or '.join(kinds)}"
            )


def _embedder_of(manifest: Manifest, folder: Path, model: str | None) -> Vectors:
    dense = manifest.recipe.dense
    assert dense is not None
    precision: Precision | None = dense.precision  # type: ignore[assignment]
    embedder = load_embedder(model or dense.model, precision)
    if (embedder.fingerprint, embedder.dimension) != (dense.fingerprint, dense.dimension):
        raise UsageError(
            f"the index {str(folder)!r} was built with the embedding model {dense.model!r} "
            f"({dense.fingerprint}, {dense.dimension} numbers), and {embedder.model!r} is another "
            f"({embedder.fingerprint}, {embedder.dimension} numbers): their vectors can't be compared; name "
            "that model, or build the index anew"
        )
    return embedder
