"""Retrieval by BM25 over a corpus of short passages.

Scores are those of the `bm25s` library (Lucene's variant of Okapi BM25, arXiv:2407.03618). Title
and text are one field. A word is a run of letters and digits, case folded and stemmed; there is no
list of stop words, because the rarity of a word already weighs it in every language.

Left out: phrases, fields with weights of their own, and an index on disk.
"""

from __future__ import annotations

import asyncio
import re
import threading
import unicodedata
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from workflows.data import shipped_file
from workflows.data.rows import READ_ROWS, Broken, read_rows
from workflows.errors import DataError, WorkflowError, did_you_mean
from workflows.hooks import ToolHooks
from workflows.tools.retriever_protocol import DEFAULT_TOP_K, MAX_QUERY_CHARACTERS, checked_top_k, query_of
from workflows.trajectory import clean_text

if TYPE_CHECKING:
    from workflows.tools.retriever_http import HttpRetriever

_PASSAGES: Final = pa.schema([("id", pa.string()), ("title", pa.string()), ("text", pa.string())])
# A search of fewer passages takes less than handing it to a thread and back.
_INLINE_PASSAGES: Final = 50_000
_WORD: Final = re.compile(r"\w+")


class Bm25Retriever(ToolHooks):
    """A tool: `{"query": str, "top_k": int}` to `{"documents": [{"id", "title", "text", "score"}]}`.

    Documents come best first; equal scores keep the order of the corpus. There are at most `top_k`,
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
        if not k1 >= 0 or not 0 <= b <= 1:
            raise WorkflowError(f"BM25 needs k1 of at least 0 and b from 0 to 1; got k1={k1}, b={b}")
        _stemmer(stemmer)
        self.corpus = corpus
        self.k1 = k1
        self.b = b
        self.stemmer = stemmer
        self._index: _Index | None = None
        self._building = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Bm25Retriever, self.corpus, k1=self.k1, b=self.b, stemmer=self.stemmer), ()

    def check_ready(self) -> None:
        """Look at the corpus's first passage; the others are read by `start`.

        Raises:
            DataError: the corpus can't be read as declared.
        """
        if next(_checked(self.corpus), None) is None:
            raise _empty(self.corpus)

    async def start(self) -> None:
        """Read the corpus and build the index, without holding up the event loop."""
        if self._index is None:
            await asyncio.to_thread(self._ready)

    @property
    def num_passages(self) -> int:
        """How many passages the index has; builds it if need be."""
        return self._ready().num_passages

    async def __call__(self, request: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Search for one query; `top_k` is 4 where the request has none.

        Raises:
            ToolRefusal: the query is missing, not a text, or blank.
            WorkflowError: `top_k` is not a whole number of at least 1.
        """
        query, top_k = query_of(request)
        await self.start()
        if self._ready().num_passages <= _INLINE_PASSAGES:
            return {"documents": self.search([query], top_k)[0]}
        documents = await asyncio.to_thread(self.search, [query], top_k)
        return {"documents": documents[0]}

    def search(self, queries: Sequence[str], top_k: int = DEFAULT_TOP_K) -> list[list[dict[str, Any]]]:
        """The documents of each query, in the order of the queries; none for a blank one.

        Raises:
            WorkflowError: `top_k` is not a whole number of at least 1.
        """
        checked_top_k(top_k)
        index = self._ready()
        return [index.search(query, top_k) for query in queries]

    def _ready(self) -> _Index:
        with self._building:  # the first of several episodes builds, the others wait
            if self._index is None:
                self._index = _Index.build(self)
            return self._index


def make_retriever(
    corpus: str = "facts",
    urls: Sequence[str] = (),
    *,
    timeout_seconds: float = 10.0,
    attempts: int = 5,
) -> Bm25Retriever | HttpRetriever:
    """The retriever of a workflow's options: a pool of servers where `urls` names some, else BM25 here.

    Raises:
        WorkflowError: an option out of range, or both a corpus of one's own and servers.
    """
    if isinstance(urls, str):
        raise WorkflowError(f"option urls must be a list of URLs, got the text {urls!r}")
    if not urls:
        return Bm25Retriever(corpus)
    if corpus != "facts":
        raise WorkflowError(
            f"options corpus ({corpus!r}) and urls are both given; servers have a corpus of their own, "
            "so leave one out"
        )
    from workflows.tools.retriever_http import HttpRetriever

    return HttpRetriever(urls, timeout_seconds=timeout_seconds, attempts=attempts)


@dataclass(frozen=True, slots=True)
class _Index:
    passages: pa.Table
    bm25: Any  # bm25s.BM25
    vocabulary: Mapping[str, int]
    stem: Any  # a Stemmer or None
    stemming: threading.Lock = field(default_factory=threading.Lock)  # a Stemmer is not thread-safe

    @classmethod
    def build(cls, settings: Bm25Retriever) -> _Index:
        import bm25s

        passages = read_corpus(settings.corpus)
        stem = _stemmer(settings.stemmer)
        vocabulary: dict[str, int] = {}
        ids = []
        for batch in passages.to_batches(max_chunksize=READ_ROWS):
            titles, texts = batch.column("title").to_pylist(), batch.column("text").to_pylist()
            for title, text in zip(titles, texts, strict=True):
                words = _words(f"{title} {text}", stem)
                # 4 bytes a word: lists of a million passages would not fit
                ids.append(array("i", [vocabulary.setdefault(w, len(vocabulary)) for w in words]))
        if not vocabulary:
            raise DataError(f"corpus {settings.corpus!r}: no passage has a word in it")
        bm25 = bm25s.BM25(k1=settings.k1, b=settings.b, method="lucene", backend="numpy", auto_compile=False)
        bm25.index((ids, dict(vocabulary)), show_progress=False)
        return cls(passages, bm25, vocabulary, stem)

    @property
    def num_passages(self) -> int:
        return int(self.passages.num_rows)

    def search(self, query: str, top_k: int) -> list[dict[str, Any]]:
        import numpy as np

        with self.stemming:
            words = _words(clean_text(query[:MAX_QUERY_CHARACTERS]), self.stem)
        known = [self.vocabulary[w] for w in words if w in self.vocabulary]
        if not known:
            return []
        scores = self.bm25.get_scores_from_ids(known)
        k = min(top_k, int(np.count_nonzero(scores > 0)))
        if k == 0:
            return []
        # the k-th best score decides: all above it, and of those equal to it the first in the corpus
        border = np.partition(scores, len(scores) - k)[len(scores) - k]
        above = np.flatnonzero(scores > border)
        chosen = np.concatenate([above, np.flatnonzero(scores == border)[: k - len(above)]])
        chosen = chosen[np.lexsort((chosen, -scores[chosen]))]
        rows = self.passages.take(pa.array(chosen, pa.int64())).to_pylist()
        return [{**row, "score": float(scores[i])} for row, i in zip(rows, chosen, strict=True)]


def read_corpus(corpus: str) -> pa.Table:
    """The passages as text columns `id`, `title`, `text`.

    Raises:
        DataError: no such file, no rows, or a row without these three texts, with a text or an id that is
            blank, or with the id of an earlier row. Names the file and the row.
    """
    rows = _checked(corpus)
    batches = []
    while chunk := list(islice(rows, READ_ROWS)):
        batches.append(pa.RecordBatch.from_pylist(chunk, schema=_PASSAGES))
    if not batches:
        raise _empty(corpus)
    return pa.Table.from_batches(batches)


def _empty(corpus: str) -> DataError:
    return DataError(f"corpus {corpus!r} has no passages; expected rows of {{id, title, text}}")


def _checked(corpus: str) -> Iterator[dict[str, str]]:
    row_of: dict[str, int] = {}
    for number, row in read_rows(shipped_file(corpus, "corpus"), _PASSAGES.names):
        if problem := _problem(row):
            raise DataError(
                f"corpus {corpus!r}, row {number}: {problem}; expected {{id, title, text}} of texts, "
                "the id and the text not blank"
            )
        if (first := row_of.setdefault(row["id"], number)) != number:
            raise DataError(
                f"corpus {corpus!r}, row {number}: its id {row['id']!r} is that of row {first}; "
                "give every passage an id of its own"
            )
        yield {name: row[name] for name in _PASSAGES.names}


def _problem(row: Any) -> str | None:
    if isinstance(row, Broken):
        return row.reason
    if not isinstance(row, Mapping):
        return f"got {row!r:.60}"
    for name in _PASSAGES.names:
        if name not in row:
            return f"no {name}{did_you_mean(name, row)}, it has {', '.join(map(str, row)) or 'nothing'}"
        if not isinstance(row[name], str) or (name != "title" and not row[name].strip()):
            return f"{name} is {row[name]!r:.60}"
    return None


def _stemmer(language: str | None) -> Any:
    if language is None:
        return None
    import Stemmer

    if language not in Stemmer.algorithms():
        raise WorkflowError(
            f"no stemmer for {language!r}{did_you_mean(language, Stemmer.algorithms())}; "
            f"one of {', '.join(Stemmer.algorithms())}, or None"
        )
    return Stemmer.Stemmer(language)


def _words(text: str, stem: Any) -> list[str]:
    words = _WORD.findall(unicodedata.normalize("NFC", text).casefold())
    return list(stem.stemWords(words)) if stem else words
