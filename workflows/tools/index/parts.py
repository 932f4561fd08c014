"""The parts of an index on disk, and how they are mapped: passages, words and scores, vectors.

Everything is read through memory maps of whole files, so all processes of a node that search one index share
one copy of it, in the page cache, and it need not fit into memory.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from workflows.tools.bm25 import Bm25Index, Bm25Options, stemmer_of
from workflows.tools.corpus import PASSAGES

if TYPE_CHECKING:
    import numpy as np

PASSAGES_FILE: Final = "passages.bin"
SHARDS_FILE: Final = "shards.npy"
ORDER_FILE: Final = "order.npy"
WORDS_FILE: Final = "words.arrow"
SCORES_FOLDER: Final = "bm25"
VECTORS_FILE: Final = "vectors.f16"


@dataclass(frozen=True, slots=True)
class Passages:
    """Passages by number, in a mapped file of Arrow record batches. `shards` is `[shards + 1, 2]`: the number
    of a shard's first passage, and the byte where its batch begins."""

    data: pa.Buffer
    shards: np.ndarray[Any, Any]

    @classmethod
    def open(cls, folder: Path) -> Passages:
        import numpy as np

        with pa.memory_map(str(folder / PASSAGES_FILE)) as file:
            return cls(file.read_buffer(), np.load(folder / SHARDS_FILE))

    def batch(self, shard: int) -> pa.RecordBatch:
        start, end = int(self.shards[shard, 1]), int(self.shards[shard + 1, 1])
        return pa.ipc.read_record_batch(self.data.slice(start, end - start), PASSAGES)

    def take(self, numbers: Sequence[int]) -> list[dict[str, str]]:
        import numpy as np

        rows = []
        for number in numbers:
            shard = int(np.searchsorted(self.shards[:, 0], number, side="right")) - 1
            batch = self.batch(shard)
            rows.append(batch.slice(number - int(self.shards[shard, 0]), 1).to_pylist()[0])
        return rows

    def ids(self) -> pa.ChunkedArray:
        return pa.chunked_array(
            [self.batch(shard).column("id") for shard in range(len(self.shards) - 1)], pa.string()
        )


def write_words(folder: Path, words: Sequence[str]) -> None:
    """Write words sorted, with the number that each has in the scores: its place in `words`."""
    import pyarrow.compute as pc

    table = pa.table(
        {"word": pa.array(words, pa.string()), "number": pa.array(range(len(words)), pa.int32())}
    )
    table = table.take(pc.sort_indices(table.column("word"))).combine_chunks()
    with pa.OSFile(str(folder / WORDS_FILE), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


class _Words:
    """Sorted words in a mapped file; code points and UTF-8 bytes sort alike."""

    def __init__(self, folder: Path) -> None:
        with pa.memory_map(str(folder / WORDS_FILE)) as file:
            batch = pa.ipc.open_file(file).get_batch(0)
        self._words, self._numbers = batch.column("word"), batch.column("number")

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, place: int) -> str:
        return str(self._words[place].as_py())

    def number_of(self, word: str) -> int | None:
        place = bisect_left(self, word)
        if place < len(self) and self[place] == word:
            return int(self._numbers[place].as_py())
        return None


def open_bm25(folder: Path, options: Bm25Options) -> Bm25Index:
    """The mapped scores of an index."""
    import bm25s
    import numpy as np

    scores = bm25s.BM25.load(
        folder / SCORES_FOLDER, mmap=True, load_vocab=False, show_progress=False, auto_compile=False
    )
    order = np.load(folder / ORDER_FILE, mmap_mode="r")
    return Bm25Index(scores, _Words(folder).number_of, order, stemmer_of(options.stemmer))


def save_scores(folder: Path, scores: Any) -> None:
    """Write the library's index; words lie beside it, sorted, so none are in it."""
    scores.vocab_dict = {}
    scores.save(folder / SCORES_FOLDER, show_progress=False)


def map_vectors(folder: Path, passages: int, dimension: int) -> np.ndarray[Any, Any]:
    """The vectors, `[passages, dimension]`, float16."""
    import numpy as np

    return np.memmap(folder / VECTORS_FILE, dtype=np.float16, mode="r", shape=(passages, dimension))


def read_lines(path: Path) -> list[Any]:
    """The whole lines of a file of JSON lines; a last line that was cut off is left out."""
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines]
