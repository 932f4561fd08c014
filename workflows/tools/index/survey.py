"""What building an index will cost, before it is spent: every row is checked, and a sample is tried out."""

from __future__ import annotations

import math
import os
import random
import resource
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workflows.tools.bm25 import Bm25Options, field_of, stemmer_of, words_of
from workflows.tools.corpus import checked_rows, empty
from workflows.tools.index.graph import CONNECTIVITY, Watch, new_graph

if TYPE_CHECKING:
    from workflows.tools.index.embedders import Vectors

SAMPLE: Final = 64
_PROBE_VECTORS: Final = 2_000
# Bytes, from the layouts: a posting is a score and a passage number. While scores are made, a posting takes
# six such numbers and each passage a list of its own.
_POSTING: Final = 8
_POSTING_WHILE_BUILT: Final = 28
_LIST: Final = 250
# of a vector in the graph: its own numbers, links of 4 bytes (twice as many at the ground), levels and key
_LINKS: Final = 4 * 2 * CONNECTIVITY + 24


@dataclass(frozen=True, slots=True)
class Survey:
    """A corpus whose rows are all in order: how many there are, how long, and some of them."""

    passages: int
    characters: int
    bytes: int
    sample: tuple[Mapping[str, str], ...]


def survey(corpus: str, columns: Mapping[str, str], watch: Watch) -> Survey:
    """Read and check every row.

    Raises:
        DataError: the corpus can't be read as declared; names the row, and the closest column.
    """
    drawn = random.Random(0)
    sample: list[Mapping[str, str]] = []
    count = characters = size = 0
    watch.start("checking rows", None, "passage")
    for passage in checked_rows(corpus, columns):
        count += 1
        text = field_of(passage)
        characters += len(text)
        size += len(text.encode()) + len(passage["id"].encode())
        if len(sample) < SAMPLE:
            sample.append(passage)
        elif (place := drawn.randrange(count)) < SAMPLE:
            sample[place] = passage
        watch.advance()
    watch.finish()
    if not count:
        raise empty(corpus)
    return Survey(count, characters, size, tuple(sample))


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds by part of the work, and the bytes at the most."""

    seconds: Mapping[str, float]
    memory: int
    disk: int

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())

    def as_dict(self) -> dict[str, Any]:
        return {"seconds": dict(self.seconds), "memory_bytes": self.memory, "disk_bytes": self.disk}


def forecast(
    of: Survey, bm25: Bm25Options | None, embedder: Vectors | None, threads: int, done: int = 0
) -> Forecast:
    """What the whole build takes here, by what the sample took. `done` passages are read and embedded.

    The machine is taken to stay as busy as it was in the last minute: a sample of words or vectors is over
    before anything else gets the core, and the whole shares it. Memory and disk do not depend on that.
    """
    left = (of.passages - done) / of.passages
    characters = sum(len(field_of(passage)) for passage in of.sample)
    scale = of.characters / max(1, characters)
    seconds: dict[str, float] = {}
    memory, disk = 120 * of.passages, of.bytes + 20 * of.passages
    if bm25 is not None:
        took, postings, words = _words_of_sample(of, bm25)
        seconds["words"] = took * scale * left * _share()
        seconds["scores"] = postings * scale * 7e-7 * _share()
        memory = max(
            memory, int(postings * scale * _POSTING_WHILE_BUILT + words * scale * 4 + of.passages * _LIST)
        )
        disk += int(postings * scale * _POSTING + words * scale * 4)
    if embedder is not None:
        seconds["vectors"] = _embedding_of_sample(of, embedder) * scale * left
        seconds["graph"] = _linking(of.passages, embedder.dimension, threads) * _share()
        graph = of.passages * (2 * embedder.dimension + _LINKS)
        memory = max(memory, graph)
        disk += graph + 2 * embedder.dimension * of.passages
    return Forecast(seconds, memory + _held(), disk)


def _held() -> int:
    """The most bytes that this process has had in memory: with the embedding model, once it was tried."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _share() -> float:
    """How much longer a thread takes than it computes: how many want each core, this one included."""
    return max(1.0, (os.getloadavg()[0] + 1) / (os.cpu_count() or 1))


def room_on_disk(folder: Path) -> int:
    """Bytes that are free where a folder is, or will be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _words_of_sample(of: Survey, bm25: Bm25Options) -> tuple[float, int, int]:
    stem, postings, words = stemmer_of(bm25.stemmer), 0, 0
    began = time.process_time()
    for passage in of.sample:
        listed = words_of(field_of(passage), stem)
        words += len(listed)
        postings += len(set(listed))
    return time.process_time() - began, postings, words


def _embedding_of_sample(of: Survey, embedder: Vectors) -> float:
    texts = [field_of(passage) for passage in of.sample]
    embedder.documents(texts[:2])  # what a first call loads is not counted
    began = time.perf_counter()
    embedder.documents(texts)
    return time.perf_counter() - began


def _linking(passages: int, dimension: int, threads: int) -> float:
    """Seconds to link all vectors: a vector's work grows with the logarithm of how many there are."""
    import numpy as np

    size = min(_PROBE_VECTORS, passages)
    vectors = np.random.default_rng(0).standard_normal((size, dimension)).astype(np.float16)
    graph = new_graph(dimension)
    began = time.process_time()
    graph.add(np.arange(size), vectors, threads=threads)
    each = (time.process_time() - began) / size / threads
    return passages * each * max(1.0, math.log(passages) / math.log(max(2, size)))
