"""How widely a graph is searched is measured where it is built, with vectors that it doesn't have yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.small_index import Silent
from workflows.tools.index import graph as graphs
from workflows.tools.index.graph import GRAPH_FILE, REACH_FILE, Reach, exact, link_vectors, open_graph

pytest.importorskip("usearch")


def made(count: int, dimension: int = 24, seed: int = 0) -> np.ndarray[Any, Any]:
    vectors = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)


def test_the_nearest_are_those_of_sorting_all_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_BLOCK", 70)  # several blocks, the last one short
    vectors, queries, out = made(300), made(5, seed=1), np.array([3, 69, 70, 299])
    products = vectors.astype(np.float32) @ queries.astype(np.float32).T
    products[out] = -np.inf
    expected = [set(np.argsort(-products[:, i])[:10].tolist()) for i in range(5)]
    assert [set(row.tolist()) for row in exact(vectors, queries, out)] == expected


def test_a_search_is_as_wide_as_it_must_be_and_every_vector_is_linked(tmp_path: Path) -> None:
    vectors = made(2_500)
    reach = link_vectors(tmp_path, vectors, Silent(), threads=1)
    assert reach == Reach.read(tmp_path)
    assert reach.recall is not None
    assert (reach.queries, reach.recall >= graphs.ENOUGH) == (100, True)
    graph = open_graph(tmp_path, depth=10)
    assert (len(graph), graph.expansion_search) == (2_500, reach.expansion)
    numbers = np.arange(0, 2_500, 7)
    assert [int(graph.search(vectors[n], 1).keys[0]) for n in numbers] == numbers.tolist()
    assert open_graph(tmp_path, depth=5_000).expansion_search == 10_000
    assert "% of the 10 nearest" in reach.line()
    assert "fewer than" not in reach.line()


def test_one_that_finds_too_few_takes_the_widest_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "EXPANSIONS", (1, 2))
    reach = link_vectors(tmp_path, made(2_500, 96), Silent(), threads=1)
    assert reach.recall is not None
    assert reach.recall < graphs.ENOUGH
    assert reach.expansion == 2
    assert "fewer than 95%: a larger depth of the retriever, or kind hybrid" in reach.line()


def test_a_small_graph_is_not_measured(tmp_path: Path) -> None:
    assert link_vectors(tmp_path, made(50), Silent(), threads=1) == Reach()
    assert Reach().line() == ""
    assert len(open_graph(tmp_path, 10)) == 50


def test_an_index_of_before_is_searched_as_it_was(tmp_path: Path) -> None:
    link_vectors(tmp_path, made(50), Silent(), threads=1)
    (tmp_path / REACH_FILE).unlink()
    assert open_graph(tmp_path, 10).expansion_search == graphs.EXPANSION


def test_one_thread_builds_the_same_graph_again(tmp_path: Path) -> None:
    vectors = made(2_100)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        link_vectors(tmp_path / name, vectors, Silent(), threads=1)
    assert (tmp_path / "one" / GRAPH_FILE).read_bytes() == (tmp_path / "other" / GRAPH_FILE).read_bytes()
