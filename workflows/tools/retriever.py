"""The retriever of a workflow: BM25 over a corpus in memory, or whatever its options name instead.

In memory is for corpora of up to some hundred thousand passages: each player builds the index anew and has
its own. Larger ones are built once into files, which all players of a node share (`workflows.tools.index`).
"""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from workflows.data.rows import READ_ROWS
from workflows.errors import DataError, WorkflowError, did_you_mean
from workflows.hooks import ToolHooks
from workflows.tools.bm25 import Bm25Index, Bm25Options, field_of, order_of, scores_of, stemmer_of, words_of
from workflows.tools.corpus import checked_rows, empty, read_corpus
from workflows.tools.retriever_protocol import DEFAULT_TOP_K, checked_top_k, query_of

if TYPE_CHECKING:
    from workflows.tools.index.search import IndexRetriever
    from workflows.tools.retriever_http import HttpRetriever

# A search of fewer passages takes less than handing it to a thread and back.
_INLINE_PASSAGES: Final = 50_000


class Bm25Retriever(ToolHooks):
    """A tool: `{"query": str, "top_k": int}` to `{"documents": [{"id", "title", "text", "score"}]}`.

    Documents come best first; equal scores are in the order of their ids. There are at most `top_k`,
    and only passages that share a word with the query, so a query of unknown words finds none.

    The index is built once, at `start` or at the first use, in a thread. A pickled retriever carries
    its arguments only and builds the index where it arrives. The corpus stays in memory as Arrow
    columns, the index as a sparse matrix of one float and one integer per word of a passage.

    Args:
        corpus: a built-in name ("facts"), or any fsspec path of a file that `workflows.data.rows` reads
            (.jsonl, .json, .csv, .parquet, …), with the columns `id`, `title`, `text`.
        k1: how much repetition of a word in a passage counts.
        b: how much long passages are held back, 0 to 1.
        stemmer: a language of the Snowball stemmers ("english", "german", …), or None to compare
            words as they are.

    Raises:
        WorkflowError: an argument is out of range, or no such stemmer.
        DataError: from `start` or the first use, where the corpus can't be read as declared.
    """

    deterministic = True

    def __init__(
        self, corpus: str = "facts", *, k1: float = 1.5, b: float = 0.75, stemmer: str | None = "english"
    ) -> None:
        self._options = Bm25Options(k1, b, stemmer)
        self.corpus = corpus
        self.k1 = k1
        self.b = b
        self.stemmer = stemmer
        self._index: tuple[pa.Table, Bm25Index] | None = None
        self._building = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Bm25Retriever, self.corpus, k1=self.k1, b=self.b, stemmer=self.stemmer), ()

    def check_ready(self) -> None:
        """Look at the corpus's first passage; the others are read by `start`.

        Raises:
            DataError: the corpus can't be read as declared.
        """
        if next(checked_rows(self.corpus), None) is None:
            raise empty(self.corpus)

    async def start(self) -> None:
        """Read the corpus and build the index, without holding up the event loop."""
        if self._index is None:
            await asyncio.to_thread(self._ready)

    @property
    def num_passages(self) -> int:
        """How many passages the index has; builds it if need be."""
        return int(self._ready()[0].num_rows)

    async def __call__(self, request: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Search for one query; `top_k` is 4 where the request has none.

        Raises:
            ToolRefusal: the query is missing, not a text, or blank.
            WorkflowError: `top_k` is not a whole number of at least 1.
        """
        query, top_k = query_of(request)
        await self.start()
        if self.num_passages <= _INLINE_PASSAGES:
            return {"documents": self.search([query], top_k)[0]}
        documents = await asyncio.to_thread(self.search, [query], top_k)
        return {"documents": documents[0]}

    def search(self, queries: Sequence[str], top_k: int = DEFAULT_TOP_K) -> list[list[dict[str, Any]]]:
        """The documents of each query, in the order of the queries; none for a blank one.

        Raises:
            WorkflowError: `top_k` is not a whole number of at least 1.
        """
        checked_top_k(top_k)
        passages, index = self._ready()
        return [_documents(passages, index.best(query, top_k)) for query in queries]

    def _ready(self) -> tuple[pa.Table, Bm25Index]:
        with self._building:  # the first of several episodes builds, the others wait
            if self._index is None:
                passages = read_corpus(self.corpus)
                self._index = passages, _built(self.corpus, passages, self._options)
            return self._index


def _built(corpus: str, passages: pa.Table, options: Bm25Options) -> Bm25Index:
    stem = stemmer_of(options.stemmer)
    vocabulary: dict[str, int] = {}
    ids = []
    for batch in passages.to_batches(max_chunksize=READ_ROWS):
        for passage in batch.to_pylist():
            words = words_of(field_of(passage), stem)
            # 4 bytes a word: lists of a million passages would not fit
            ids.append(array("i", [vocabulary.setdefault(w, len(vocabulary)) for w in words]))
    if not vocabulary:
        raise DataError(f"corpus {corpus!r}: no passage has a word in it")
    scores = scores_of(ids, vocabulary, options)
    return Bm25Index(scores, vocabulary.get, order_of(passages.column("id")), stem)


def _documents(passages: pa.Table, hits: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
    rows = passages.take(pa.array([number for number, _ in hits], pa.int64())).to_pylist()
    return [{**row, "score": score} for row, (_, score) in zip(rows, hits, strict=True)]


# Options of `search`, by what looks the query up.
_IN_MEMORY: Final = ("k1", "b", "stemmer")
_SERVERS: Final = ("timeout_seconds", "attempts", "backoff_seconds")
_FILES: Final = ("index", "kind", "model", "depth", "rank_constant", "identity")


def make_retriever(
    corpus: str = "facts",
    urls: Sequence[str] = (),
    search: Mapping[str, Any] | None = None,
) -> Bm25Retriever | HttpRetriever | IndexRetriever:
    """The retriever of a workflow's options.

    A pool of servers where `urls` names some; the files of an index where `search` has `index`; else BM25 in
    memory. With an index, a corpus of one's own is checked to be the index's.

    Args:
        search: how is searched. In memory: k1, b, stemmer. Of servers: timeout_seconds, attempts,
            backoff_seconds. Of an index: index (its folder), kind, model, depth, rank_constant, identity.

    Raises:
        WorkflowError: an option out of range, one that is not there or has no effect here, or both a corpus
            of one's own and servers.
    """
    if isinstance(urls, str):
        raise WorkflowError(f"option urls must be a list of URLs, got the text {urls!r}")
    if search is not None and not isinstance(search, Mapping):
        raise WorkflowError(f"option search must be a table such as {{ k1 = 1.2 }}, got {search!r}")
    options = dict(search or {})
    if urls and corpus != "facts":
        raise WorkflowError(
            f"options corpus ({corpus!r}) and urls are both given; servers have a corpus of their own, "
            "so leave one out"
        )
    if urls:
        _check_search(options, _SERVERS, "servers (urls)")
        from workflows.tools.retriever_http import HttpRetriever

        return HttpRetriever(urls, **options)
    if "index" not in options:
        _check_search(options, _IN_MEMORY, "a corpus in memory")
        return Bm25Retriever(corpus, **options)
    _check_search(options, _FILES, "an index")
    from workflows.tools.index.search import IndexRetriever

    index = options.pop("index")
    if not isinstance(index, str) or not index:
        raise WorkflowError(f"option search.index must be the folder of an index, got {index!r}")
    return IndexRetriever(index, corpus=None if corpus == "facts" else corpus, **options)


def _check_search(options: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    for name in options:
        if name in known:
            continue
        if name in _IN_MEMORY and known is _FILES:
            hint = f"give --{name} when the index is built"
        elif name in (*_IN_MEMORY, *_SERVERS, *_FILES):
            hint = "leave it out"
        else:
            hint = f"there is no such option{did_you_mean(name, known)}"
        raise WorkflowError(
            f"option search.{name} has no effect on {what}, which takes {', '.join(known)}; {hint}"
        )
