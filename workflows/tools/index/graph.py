"""The graph of neighbours of an index's vectors: building it, how widely a search looks, and opening it.

A graph misses neighbours, more of them the more vectors it has, so how widely a search looks is not a number
for all: some vectors are held out until all others are linked, their nearest are found by comparing them with
every vector, and the narrowest search that finds most of those is written down beside the graph.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from workflows.tools.index.embedders import require

if TYPE_CHECKING:
    import numpy as np

GRAPH_FILE: Final = "graph.usearch"
REACH_FILE: Final = "reach.json"

# Of the graph (HNSW, arXiv:1603.09320): links of a vector, and how widely they are looked for.
CONNECTIVITY: Final = 16
EXPANSION: Final = 128

NEAREST: Final = 10
HELD_OUT: Final = 100
MEASURED_FROM: Final = 2_000  # vectors; a smaller graph is seen nearly whole by the narrowest search
EXPANSIONS: Final = (128, 256, 512, 1024, 2048)
ENOUGH: Final = 0.95
"""Share of the nearest that a search is made wide enough to find."""
_BATCH: Final = 5_000
_BLOCK: Final = 50_000


class Watch(Protocol):
    """What is told of progress; `stages.base.Progress` is one."""

    def start(self, label: str, total: int | None, unit: str) -> None: ...

    def advance(self, amount: int = 1) -> None: ...

    def finish(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Reach:
    """How widely a graph is searched.

    Attributes:
        expansion: candidates that a search keeps.
        recall: share of the ten nearest of the vectors held out that it then finds; None where the graph is
            too small to be measured.
        queries: how many vectors were held out.
    """

    expansion: int = EXPANSION
    recall: float | None = None
    queries: int = 0

    @classmethod
    def read(cls, folder: Path) -> Reach:
        """The reach that stands beside a graph; that of small graphs where none was measured."""
        path = folder / REACH_FILE
        return cls(**json.loads(path.read_text("utf-8"))) if path.exists() else cls()

    def line(self) -> str:
        """What was measured, in words; empty where nothing was."""
        if self.recall is None:
            return ""
        found = (
            f"graph: finds {self.recall:.0%} of the {NEAREST} nearest (measured with {self.queries} passages "
            f"held out), looking at {self.expansion} candidates"
        )
        if self.recall >= ENOUGH:
            return found
        return (
            f"{found}; fewer than {ENOUGH:.0%}: a larger depth of the retriever, or kind hybrid, finds more"
        )


def new_graph(dimension: int) -> Any:
    """An empty graph of neighbours by inner product."""
    require("usearch", "dense search")
    from usearch.index import Index

    return Index(ndim=dimension, metric="ip", dtype="f16", connectivity=CONNECTIVITY, expansion_add=EXPANSION)


def open_graph(folder: Path, depth: int) -> Any:
    """The mapped graph, which looks at `depth` neighbours and more."""
    require("usearch", "dense search")
    from usearch.index import Index

    graph = Index.restore(str(folder / GRAPH_FILE), view=True)
    graph.expansion_search = max(Reach.read(folder).expansion, 2 * depth)
    return graph


def link_vectors(folder: Path, vectors: np.ndarray[Any, Any], watch: Watch, threads: int) -> Reach:
    """Build the graph of `vectors` [passages, dimension] into `folder`, and measure how it must be searched.

    With one thread, the same vectors give the same graph.
    """
    import numpy as np

    total, dimension = vectors.shape
    graph = new_graph(dimension)
    held = np.arange(0, total, max(1, total // HELD_OUT))[: HELD_OUT if total >= MEASURED_FROM else 0]
    watch.start("linking vectors", total, "vector")
    for numbers in _batches(np.setdiff1d(np.arange(total), held, assume_unique=True)):
        graph.add(numbers, np.asarray(vectors[numbers]), threads=threads)
        watch.advance(len(numbers))
    reach = _measured(graph, vectors, held) if len(held) else Reach()
    if len(held):
        graph.add(held, np.asarray(vectors[held]), threads=threads)
        watch.advance(len(held))
    half = folder / f"{GRAPH_FILE}.tmp"
    graph.save(str(half))
    (folder / REACH_FILE).write_text(json.dumps(asdict(reach)) + "\n", encoding="utf-8")
    half.replace(folder / GRAPH_FILE)
    watch.finish()
    return reach


def _batches(numbers: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    for start in range(0, len(numbers), _BATCH):
        yield numbers[start : start + _BATCH]


def _measured(graph: Any, vectors: np.ndarray[Any, Any], held: np.ndarray[Any, Any]) -> Reach:
    """The narrowest of the expansions that finds enough; else the widest."""
    queries = vectors[held]
    nearest = exact(vectors, queries, held)
    reach = Reach()
    for expansion in EXPANSIONS:
        graph.expansion_search = expansion
        found = [set(graph.search(query, NEAREST, threads=1).keys.tolist()) for query in queries]
        hits = sum(len(found[i] & set(nearest[i].tolist())) for i in range(len(held)))
        reach = Reach(expansion, hits / (NEAREST * len(held)), len(held))
        if hits >= ENOUGH * NEAREST * len(held):
            break
    return reach


def exact(
    vectors: np.ndarray[Any, Any],
    queries: np.ndarray[Any, Any],
    leave_out: np.ndarray[Any, Any] | None = None,
) -> np.ndarray[Any, Any]:
    """The ten nearest vectors of each query by their numbers, [queries, 10]; `leave_out` are passed over."""
    import numpy as np

    asked = queries.astype(np.float32).T
    best = np.full((asked.shape[1], NEAREST), -np.inf, dtype=np.float32)
    numbers = np.full((asked.shape[1], NEAREST), -1, dtype=np.int64)
    for start in range(0, len(vectors), _BLOCK):
        scores = (np.asarray(vectors[start : start + _BLOCK], dtype=np.float32) @ asked).T
        if leave_out is not None:
            inside = leave_out[(leave_out >= start) & (leave_out < start + _BLOCK)]
            scores[:, inside - start] = -np.inf
        both = np.concatenate([best, scores], axis=1)
        keep = np.argpartition(-both, NEAREST - 1, axis=1)[:, :NEAREST]
        known = np.concatenate(
            [numbers, np.broadcast_to(np.arange(start, start + scores.shape[1]), scores.shape)], axis=1
        )
        best, numbers = np.take_along_axis(both, keep, axis=1), np.take_along_axis(known, keep, axis=1)
    return numbers
