"""BM25 over the words of passages, whether words and scores lie in memory or are mapped from files.

Scores are those of the `bm25s` library (Lucene's variant of Okapi BM25, arXiv:2407.03618). Title and text
are one field. A word is a run of letters and digits, case folded and stemmed; there is no list of stop
words, because the rarity of a word already weighs it in every language.

Left out: phrases, and fields with weights of their own.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from workflows.errors import WorkflowError, did_you_mean
from workflows.tools.retriever_protocol import MAX_QUERY_CHARACTERS
from workflows.trajectory import clean_text

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_WORD: Final = re.compile(r"\w+")
_BLOCK: Final = 1024  # scores of which the best one is looked up first


@dataclass(frozen=True, slots=True)
class Bm25Options:
    """What scores of BM25 depend on beside the corpus.

    Attributes:
        k1: how much repetition of a word in a passage counts.
        b: how much long passages are held back, 0 to 1.
        stemmer: a language of the Snowball stemmers ("english", "german", …), or None to compare words as
            they are.

    Raises:
        WorkflowError: an option is out of range, or no such stemmer.
    """

    k1: float = 1.5
    b: float = 0.75
    stemmer: str | None = "english"

    def __post_init__(self) -> None:
        numbers = (self.k1, self.b)
        if any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers) or not (
            self.k1 >= 0 and 0 <= self.b <= 1
        ):
            raise WorkflowError(
                f"BM25 needs k1 of at least 0 and b from 0 to 1; got k1={self.k1!r}, b={self.b!r}"
            )
        stemmer_of(self.stemmer)


def stemmer_of(language: str | None) -> Any:
    """A Snowball stemmer, or None for None.

    Raises:
        WorkflowError: no stemmer for this language.
    """
    if language is None:
        return None
    import Stemmer

    if language not in Stemmer.algorithms():
        raise WorkflowError(
            f"no stemmer for {language!r}{did_you_mean(str(language), Stemmer.algorithms())}; "
            f"one of {', '.join(Stemmer.algorithms())}, or None"
        )
    return Stemmer.Stemmer(language)


def words_of(text: str, stem: Any) -> list[str]:
    """The words of a text as they are compared. A stemmer is not thread-safe: one thread at a time."""
    words = _WORD.findall(unicodedata.normalize("NFC", text).casefold())
    return list(stem.stemWords(words)) if stem else words


def field_of(passage: Mapping[str, str]) -> str:
    """Title and text as the one field that is searched."""
    return f"{passage['title']} {passage['text']}"


def scores_of(ids: Sequence[array[int]], vocabulary: Mapping[str, int], options: Bm25Options) -> Any:
    """The library's index over the word numbers of each passage: a sparse matrix of scores, in memory."""
    import bm25s

    bm25 = bm25s.BM25(
        k1=options.k1,
        b=options.b,
        method="lucene",
        backend="numpy",
        csc_backend="scipy",  # half the time and two thirds of the memory of the other
        auto_compile=False,
    )
    bm25.index((ids, dict(vocabulary)), show_progress=False)
    return bm25


def order_of(ids: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """The place of each passage among all, sorted by id: what decides between equal scores."""
    import numpy as np
    import pyarrow.compute as pc

    by_id = pc.sort_indices(ids).to_numpy()
    order = np.empty(len(by_id), dtype=np.int32)
    order[by_id] = np.arange(len(by_id), dtype=np.int32)
    return order


@dataclass(frozen=True, slots=True)
class Bm25Index:
    """Scores by word, and what finds a word's number.

    `order` holds the place of each passage by its id, `[passages]`; equal scores are in this order.
    """

    scores: Any  # bm25s.BM25
    number_of: Callable[[str], int | None]
    order: np.ndarray[Any, Any]
    stem: Any  # a Stemmer or None
    stemming: threading.Lock = field(default_factory=threading.Lock)

    def best(self, query: str, top_k: int) -> list[tuple[int, float]]:
        """(passage, score), best first, at most `top_k`; only passages that share a word with the query."""
        with self.stemming:
            words = words_of(clean_text(query[:MAX_QUERY_CHARACTERS]), self.stem)
        known = [number for word in words if (number := self.number_of(word)) is not None]
        if not known:
            return []
        scores = self.scores.get_scores_from_ids(known)
        return [(int(i), float(scores[i])) for i in _best(scores, top_k, self.order)]


def _best(scores: np.ndarray[Any, Any], top_k: int, order: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers of the best positive scores: all above the last one's score, and of those equal to it the
    first in order."""
    import numpy as np

    numbers = np.flatnonzero(scores >= _low_bound(scores, top_k))
    values = scores[numbers]
    k = min(top_k, len(numbers))
    if k == 0:
        return numbers
    border = np.partition(values, len(values) - k)[len(values) - k]
    above, equal = numbers[values > border], numbers[values == border]
    if len(equal) > k - len(above):
        equal = equal[np.argsort(order[equal])[: k - len(above)]]
    chosen = np.concatenate([above, equal])
    return chosen[np.lexsort((order[chosen], -scores[chosen]))]


def _low_bound(scores: np.ndarray[Any, Any], top_k: int) -> Any:
    """A positive score that the best `top_k` reach, if so many are positive: the `top_k`-th best of the best
    scores of each block. It costs one pass over the scores, where sorting out the best ones costs several."""
    import numpy as np

    least = np.finfo(scores.dtype).smallest_subnormal
    blocks = len(scores) // _BLOCK
    if blocks < top_k:
        return least
    best = scores[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
    return max(np.partition(best, blocks - top_k)[blocks - top_k], least)
