"""Searching an index from disk: what words and vectors give, one order, and no index of something else."""

from __future__ import annotations

import asyncio
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.small_index import HASHED, OTHER, HashedWords, make_index, write_corpus
from workflows.errors import ToolRefusal, UsageError, WorkflowError
from workflows.tools.bm25 import Bm25Options
from workflows.tools.index import parts
from workflows.tools.index.folder import MANIFEST
from workflows.tools.index.graph import GRAPH_FILE
from workflows.tools.index.search import IndexRetriever, fused
from workflows.tools.retriever import Bm25Retriever, make_retriever

QUERIES = ["capital of Albania", "", "zzz", "Fe", "  ", "symbol of iron", "the city and the river \ud800\x00"]


def _ids(documents: list[dict[str, Any]]) -> list[str]:
    return [document["id"] for document in documents]


@pytest.fixture(scope="module")
def facts(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("index") / "facts"
    make_index("facts", folder)
    return folder


@pytest.fixture(scope="module")
def in_memory() -> Bm25Retriever:
    return Bm25Retriever()


def test_words_give_from_disk_what_they_give_in_memory_to_the_last_bit(facts, in_memory):
    retriever = IndexRetriever(str(facts), kind="bm25")
    for top_k in (1, 4, 50, 2000):
        assert retriever.search(QUERIES, top_k) == in_memory.search(QUERIES, top_k)
    asked = {"query": "capital of Albania"}
    assert asyncio.run(retriever(asked)) == asyncio.run(in_memory(asked))
    assert retriever.num_passages == in_memory.num_passages == 872


def test_options_of_words_are_those_that_the_index_was_built_with(tmp_path):
    options = Bm25Options(k1=0.6, b=0.2, stemmer=None)
    make_index("facts", tmp_path / "i", kind="bm25", bm25=options)
    found = IndexRetriever(str(tmp_path / "i")).search(QUERIES, 9)
    assert found == Bm25Retriever(k1=0.6, b=0.2, stemmer=None).search(QUERIES, 9)
    assert found != Bm25Retriever().search(QUERIES, 9)


def test_meaning_gives_exact_cosines_best_first(facts):
    retriever = IndexRetriever(str(facts), kind="dense", depth=872)
    model = HashedWords()
    passages = parts.Passages.open(facts).take(range(872))
    matrix = model.queries([f"{p['title']} {p['text']}" for p in passages]).astype(np.float64)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    vector = model.queries(["capital of Albania"])[0].astype(np.float64)
    cosines = matrix @ (vector / np.linalg.norm(vector))
    (documents,) = retriever.search(["capital of Albania"], 20)
    place = {passage["id"]: number for number, passage in enumerate(passages)}
    for document in documents:
        assert document["score"] == pytest.approx(cosines[place[document["id"]]], abs=1e-3)
    assert min(d["score"] for d in documents) >= np.sort(cosines)[-20] - 1e-3
    keys = [(-document["score"], document["id"]) for document in documents]
    assert keys == sorted(keys)


def test_meaning_finds_what_shares_no_word(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", ["a red automobile", "a green apple", "a blue boat"])
    make_index(corpus, tmp_path / "i")
    by_words = IndexRetriever(str(tmp_path / "i"), kind="bm25").search(["car"], 3)
    by_meaning = IndexRetriever(str(tmp_path / "i"), kind="dense").search(["car"], 1)
    assert (by_words, [d["id"] for d in by_meaning[0]]) == ([[]], ["p0"])


def test_both_are_fused_by_reciprocal_ranks():
    """Worked out by hand: passage 7 is first by words and third by meaning, 2 second in both, …"""
    words, meaning = [(7, 9.0), (2, 5.0), (4, 1.0)], [(9, 0.9), (2, 0.8), (7, 0.7)]
    order = np.arange(10)[::-1]  # 9 comes before 4 by id
    found = fused([words, meaning], 60, order)
    assert found == [
        (7, 1 / 61 + 1 / 63),
        (2, 1 / 62 + 1 / 62),
        (9, 1 / 61),
        (4, 1 / 63),
    ]
    assert [number for number, _ in fused([words, meaning], 0, order)] == [7, 9, 2, 4]
    tied = fused([[(4, 1.0)], [(9, 1.0)]], 60, order)
    assert tied == [(9, 1 / 61), (4, 1 / 61)]
    assert fused([[], []], 60, order) == []


def test_a_hybrid_search_fuses_what_the_two_searches_give(facts):
    index = str(facts)
    depth = {"depth": 30}
    lists = [
        [(d["id"], d["score"]) for d in retriever.search(["capital of Albania"], 30)[0]]
        for retriever in (IndexRetriever(index, kind="bm25"), IndexRetriever(index, kind="dense", **depth))
    ]
    for constant in (60, 1):
        expected: dict[str, float] = {}
        for hits in lists:
            for rank, (id, _) in enumerate(hits, 1):
                expected[id] = expected.get(id, 0.0) + 1 / (constant + rank)
        ranked = sorted(expected.items(), key=lambda hit: (-hit[1], hit[0]))
        hybrid = IndexRetriever(index, rank_constant=constant, **depth)
        found = hybrid.search(["capital of Albania"], 8)[0]
        assert [(d["id"], d["score"]) for d in found] == ranked[:8]


@pytest.mark.parametrize("kind", ["bm25", "dense", "hybrid"])
def test_equal_scores_are_in_the_order_of_ids_for_every_top_k(tmp_path, kind):
    ids = [f"{(i * 7) % 31:02d}" for i in range(31)]
    corpus = write_corpus(tmp_path / "c.jsonl", ["same words"] * 31, ids)
    make_index(corpus, tmp_path / "i")
    retriever = IndexRetriever(str(tmp_path / "i"), kind=kind)
    for top_k in (1, 2, 7, 30, 31, 1000):
        assert _ids(retriever.search(["words"], top_k)[0]) == sorted(ids)[:top_k]
    if kind == "bm25":
        assert _ids(Bm25Retriever(corpus).search(["words"], 7)[0]) == sorted(ids)[:7]


@pytest.mark.parametrize("kind", ["bm25", "dense", "hybrid"])
def test_a_batch_gives_what_single_queries_give(facts, kind):
    retriever = IndexRetriever(str(facts), kind=kind)
    together = retriever.search(QUERIES, 5)
    assert together == [retriever.search([query], 5)[0] for query in QUERIES]
    assert [bool(found) for found in together][:2] == [True, False]


def test_many_threads_get_their_own_answers(facts):
    retriever = IndexRetriever(str(facts))
    queries = ["capital of Albania", "symbol of iron", "author of Dracula"] * 20

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(retriever({"query": query, "top_k": 3}) for query in queries))

    expected = retriever.search(queries, 3)
    assert [answer["documents"] for answer in asyncio.run(ask_all())] == expected


def test_it_refuses_a_query_without_words_and_a_wrong_top_k_as_the_other_retrievers_do(facts):
    retriever = IndexRetriever(str(facts))
    with pytest.raises(ToolRefusal):
        asyncio.run(retriever({"query": " \n"}))
    with pytest.raises(WorkflowError, match="top_k"):
        retriever.search(["x"], 0)


def test_a_pickled_retriever_carries_its_arguments_and_not_its_index(facts):
    retriever = IndexRetriever(str(facts), kind="dense", depth=7)
    expected = retriever.search(QUERIES, 3)
    data = pickle.dumps(retriever)
    assert len(data) < 1000
    assert pickle.loads(data).search(QUERIES, 3) == expected


def test_who_checks_a_run_keeps_neither_index_nor_model(facts):
    retriever = IndexRetriever(str(facts))
    retriever.check_ready()
    assert retriever._opened is None
    retriever.open_checked()
    assert retriever._opened is not None


# --- one index for a node ---------------------------------------------------------------------------------

PLAYER = """
import pickle, sys
retriever = pickle.loads(bytes.fromhex(sys.argv[1]))
retriever.search(["word1 word2 word3 word4 common"], 5)
print("ready", flush=True)
sys.stdin.readline()
"""


def mapped(pid: int, folder: Path) -> dict[str, dict[str, int]]:
    """KiB of the files of a folder in a process's memory, by file: resident, its share, written copies."""
    sizes: dict[str, dict[str, int]] = {}
    name = None
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            name = words[5] if len(words) > 5 and words[5].startswith(str(folder)) else None
        elif name is not None and words[0] in ("Rss:", "Pss:", "Private_Dirty:"):
            here = sizes.setdefault(Path(name).name, {})
            here[words[0]] = here.get(words[0], 0) + int(words[1])
    return sizes


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="needs Linux's account of shared pages")
def test_players_of_a_node_share_one_index(tmp_path):
    """Each of two processes has the index's pages in its memory, and half of them are counted for each."""
    texts = [" ".join(f"word{(i * j) % 1999}" for j in range(40)) + " common" for i in range(6000)]
    make_index(write_corpus(tmp_path / "c.jsonl", texts), tmp_path / "i")
    argument = pickle.dumps(IndexRetriever(str(tmp_path / "i"))).hex()
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    players = [subprocess.Popen([sys.executable, "-c", PLAYER, argument], **pipes) for _ in range(2)]
    try:
        for player in players:
            assert player.stdout is not None
            assert player.stdout.readline() == "ready\n"
        sizes = [mapped(player.pid, tmp_path / "i") for player in players]
    finally:
        for player in players:
            player.communicate("\n", timeout=60)
    for each in sizes:
        assert {parts.PASSAGES_FILE, GRAPH_FILE, parts.VECTORS_FILE, parts.ORDER_FILE} <= each.keys()
        assert {"data.csc.index.npy", "indices.csc.index.npy"} <= each.keys()
        resident = sum(file["Rss:"] for file in each.values())
        assert resident > 200  # KiB: it searches in what it has mapped
        assert sum(file["Private_Dirty:"] for file in each.values()) < 0.02 * resident  # nobody has a copy
        assert sum(file["Pss:"] for file in each.values()) < 0.75 * resident  # a half, and what one read more


# --- the right index --------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path) -> tuple[str, Path]:
    corpus = write_corpus(tmp_path / "c.jsonl", ["red apple", "green apple", "blue boat"])
    make_index(corpus, tmp_path / "i")
    return corpus, tmp_path / "i"


def refused(index: Path, message: str, **arguments: Any) -> None:
    with pytest.raises(UsageError, match=message) as error:
        IndexRetriever(str(index), **arguments).check_ready()
    assert "\n" not in str(error.value)
    assert str(index) in str(error.value) or "module" in str(error.value) or "no effect" in str(error.value)


def test_a_stale_index_is_refused_and_a_corpus_that_was_only_touched_is_not(small):
    corpus, index = small
    os.utime(corpus)  # another time of change, with the same bytes
    IndexRetriever(str(index)).check_ready()
    text = Path(corpus).read_text()
    Path(corpus).write_text(text.replace("red", "raw"))  # of the same length
    refused(index, "is stale: .*c.jsonl has changed since it was built; build one anew")
    refused(index, "is stale", corpus=corpus)
    Path(corpus).write_text(text)
    IndexRetriever(str(index), corpus=corpus).check_ready()


def test_an_index_of_another_corpus_is_refused_and_one_without_its_corpus_is_not(small, tmp_path):
    corpus, index = small
    other = write_corpus(tmp_path / "other.jsonl", ["a", "b", "c"])
    refused(index, "of another corpus: it was built from .*c.jsonl, not from .*other.jsonl", corpus=other)
    Path(corpus).unlink()
    moved = shutil.copytree(index, tmp_path / "elsewhere")
    IndexRetriever(str(moved)).check_ready()
    assert _ids(IndexRetriever(str(moved), kind="bm25").search(["boat"], 1)[0]) == ["p2"]


def test_an_index_of_another_model_or_identity_is_refused(small):
    _, index = small
    refused(index, "was built with the embedding model .*hashed-1.* is another .*hashed-2", model=OTHER)
    identity = json.loads((index / MANIFEST).read_text())["identity"]
    IndexRetriever(str(index), identity=identity[:8], model=HASHED).check_ready()
    refused(index, f"has the identity {identity}, expected 'abc'", identity="abc")
    refused(index, "expected ''", identity="")


def test_what_is_no_index_or_a_damaged_one_is_refused(small, tmp_path):
    _, index = small
    refused(tmp_path / "nowhere", "is not an index: it does not exist; build it: python -m pipeline index")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "has no manifest.json")
    with pytest.raises(UsageError, match="is a URL: copy the folder"):
        IndexRetriever("s3://bucket/index").check_ready()
    for name in (GRAPH_FILE, "bm25/data.csc.index.npy", parts.PASSAGES_FILE):
        copy = shutil.copytree(index, tmp_path / name.replace("/", "-"))
        (copy / name).write_bytes((index / name).read_bytes()[:-1])
        refused(copy, f"is damaged: {name} is .* bytes long, expected")
        (copy / name).unlink()
        refused(copy, f"is damaged: {name} is missing")
    for change, message in [
        ({"format": 99}, "has format 99, this Cadre reads 1"),
        ({"kind": "dense"}, "is not what its manifest.json says"),
        ({"corpus": None}, "damaged manifest.json"),
    ]:
        raw = json.loads((index / MANIFEST).read_text())
        copy = shutil.copytree(index, tmp_path / message.replace(" ", "")[:12])
        (copy / MANIFEST).write_text(json.dumps(raw | change))
        refused(copy, message)


@pytest.mark.parametrize(
    ("built", "arguments", "message"),
    [
        (
            "bm25",
            {"kind": "dense"},
            "is of kind bm25 and can't be searched as dense; build one with --kind dense",
        ),
        ("dense", {"kind": "hybrid"}, "is of kind dense and can't be searched as hybrid"),
        ("bm25", {"depth": 5}, "depth = 5 has no effect on a search of kind bm25"),
        ("bm25", {"model": HASHED}, "model = .* has no effect"),
        ("dense", {"rank_constant": 5}, "rank_constant = 5 has no effect on a search of kind dense"),
    ],
)
def test_a_search_that_the_index_has_not_is_refused(tmp_path, built, arguments, message):
    make_index(write_corpus(tmp_path / "c.jsonl", ["a word"]), tmp_path / "i", kind=built)
    refused(tmp_path / "i", message, **arguments)


# --- options of workflows ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"search": {"k2": 1}}, r"search.k2 has no effect on a corpus in memory.*there is no such option"),
        ({"search": {"stemer": None}}, "did you mean 'stemmer'"),
        ({"search": {"kind": "dense"}}, r"search.kind has no effect on a corpus in memory"),
        ({"search": {"index": "i", "k1": 1}}, r"search.k1 has no effect on an index.*--k1 when the index is"),
        ({"search": {"index": "i", "kind": "densse"}}, r"'densse' \(did you mean 'dense'\?\)"),
        ({"search": {"index": "i", "attempts": 3}}, r"search.attempts has no effect on an index"),
        ({"search": {"index": 7}}, r"search.index must be the folder"),
        ({"search": {"index": "i", "depth": 0}}, "depth must be a whole number"),
        ({"search": {"index": "i", "rank_constant": math.nan}}, "rank_constant must be at least 0"),
        ({"search": "i"}, r"search must be a table"),
        ({"urls": ["http://x"], "search": {"index": "i"}}, r"search.index has no effect on servers"),
        ({"urls": ["http://x"], "search": {"timeout_seconds": "1"}}, "timeout_seconds must be above 0"),
        ({"urls": ["http://x"], "search": {"attempts": 0}}, "attempts must be a whole number above 0"),
        ({"search": {"k1": "1.5"}}, "k1='1.5'"),
        ({"search": {"b": True}}, "b=True"),
        ({"search": {"stemmer": "englisch"}}, "'english'"),
    ],
)
def test_options_of_search_that_are_wrong_or_without_effect_are_refused(arguments, message):
    with pytest.raises(WorkflowError, match=message):
        make_retriever(**arguments)


def test_options_of_search_reach_what_searches():
    memory = make_retriever(search={"k1": 0.9, "b": 0.4, "stemmer": None})
    assert isinstance(memory, Bm25Retriever)
    assert (memory.k1, memory.b, memory.stemmer) == (0.9, 0.4, None)
    servers: Any = make_retriever(urls=["http://x"], search={"timeout_seconds": 2.5, "attempts": 7})
    assert (servers.timeout_seconds, servers.attempts, servers.backoff_seconds) == (2.5, 7, 0.5)
    index = make_retriever("my.jsonl", search={"index": "i", "kind": "hybrid", "depth": 9})
    assert isinstance(index, IndexRetriever)
    assert index._arguments["corpus"] == "my.jsonl"
    assert make_retriever(search={"index": "i"})._arguments["corpus"] is None
