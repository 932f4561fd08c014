"""The retriever: right scores, one order, stated refusals, and good enough on the tasks that ship."""

from __future__ import annotations

import asyncio
import json
import math
import os
import pickle
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows.data.tasks import load_tasks
from workflows.errors import DataError, ToolRefusal, WorkflowError
from workflows.tools import bm25
from workflows.tools.retriever import Bm25Retriever

REAL = os.environ.get("CADRE_TEST_DATA")


def _corpus(path: Path, *texts: str) -> str:
    rows = [{"id": f"p{i}", "title": "", "text": text} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def _ids(documents: list[dict]) -> list[str]:
    return [document["id"] for document in documents]


def _ask(retriever: Bm25Retriever, request: dict) -> list[dict]:
    return asyncio.run(retriever(request))["documents"]


@pytest.fixture(scope="module")
def facts() -> Bm25Retriever:
    return Bm25Retriever()


def _recall(retriever: Bm25Retriever, queries: list[str], golds: list[list[str]]) -> float:
    found = [_ids(documents) for documents in retriever.search(queries, 4)]
    shares = [sum(g in ids for g in gold) / len(gold) for gold, ids in zip(golds, found, strict=True)]
    return sum(shares) / len(shares)


def test_one_hop_questions_find_their_passage_and_two_hop_questions_need_a_second_query(facts):
    tasks = load_tasks("facts").tasks.to_pylist()
    queries, golds = {1: [], 2: []}, {1: [], 2: []}
    for task in tasks:
        gold = json.loads(task["gold"])
        queries[gold["hops"]].append(json.loads(task["inputs"])["question"])
        golds[gold["hops"]].append(gold["passages"])
    assert _recall(facts, queries[1], golds[1]) >= 0.95
    first, last = ([[gold[hop]] for gold in golds[2]] for hop in (0, -1))
    assert _recall(facts, queries[2], first) >= 0.85
    assert _recall(facts, queries[2], last) <= 0.25  # else one query would do


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=8), min_size=1, max_size=8),
    st.lists(st.sampled_from("abcdez"), min_size=1, max_size=4),
    st.sampled_from([(1.5, 0.75), (0.9, 0.4), (2.0, 0.0)]),
)
def test_scores_and_order_are_those_of_the_formula(tmp_path_factory, texts, query, constants):
    k1, b = constants
    path = _corpus(tmp_path_factory.mktemp("c") / "c.jsonl", *map(" ".join, texts))
    (documents,) = Bm25Retriever(path, k1=k1, b=b, stemmer=None).search([" ".join(query)], len(texts))

    mean = sum(map(len, texts)) / len(texts)

    def score(text: list[str]) -> float:
        total = 0.0
        for word in query:
            df, tf = sum(word in t for t in texts), text.count(word)
            idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
            total += idf * tf / (tf + k1 * (1 - b + b * len(text) / mean))
        return total

    scores = {f"p{i}": score(text) for i, text in enumerate(texts)}
    assert set(_ids(documents)) == {id for id, value in scores.items() if value > 0}
    for document in documents:
        assert document["score"] == pytest.approx(scores[document["id"]], rel=1e-5)
    keys = [(-document["score"], int(document["id"][1:])) for document in documents]
    assert keys == sorted(keys)


def test_equal_scores_keep_the_order_of_the_corpus_for_every_top_k(tmp_path):
    retriever = Bm25Retriever(_corpus(tmp_path / "c.jsonl", *["same words"] * 30, "same words words"))
    (everything,) = retriever.search(["words"], 31)
    for top_k in (1, 2, 7, 30, 31, 1000):
        assert retriever.search(["words"], top_k) == [everything[:top_k]]
    assert _ids(everything)[:3] == ["p30", "p0", "p1"]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.sampled_from([1, 3, 100]))
def test_the_best_of_many_are_those_that_sorting_all_would_give(seed, top_k, levels):
    drawn = np.random.default_rng(seed)
    scores = drawn.integers(0, levels + 1, 5000).astype(np.float32) / 7
    scores[drawn.random(5000) < drawn.random()] = 0
    order = drawn.permutation(5000).astype(np.int32)
    every = np.lexsort((order, -scores))
    expected = every[scores[every] > 0][:top_k]
    with mock.patch.object(bm25, "_BLOCK", 16):
        assert bm25._best(scores, top_k, order).tolist() == expected.tolist()
    assert bm25._best(scores, top_k, order).tolist() == expected.tolist()


def test_a_batch_gives_what_single_queries_give(facts):
    queries = ["capital of Albania", "", "zzz", "Fe", "capital of Albania"]
    assert facts.search(queries, 3) == [facts.search([query], 3)[0] for query in queries]


def test_documents_are_whole_passages_with_a_score(facts):
    (document, *_) = _ask(facts, {"query": "Which city is the capital of Albania?", "top_k": 1})
    assert document.keys() == {"id", "title", "text", "score"}
    assert (document["id"], document["title"]) == ("country-al", "Albania")
    assert json.loads(json.dumps(document)) == document


def test_four_documents_unless_asked_otherwise(facts):
    assert len(_ask(facts, {"query": "the capital"})) == 4


def test_a_query_of_unknown_words_finds_nothing(facts):
    assert _ask(facts, {"query": "qwertz ?!", "top_k": 5}) == []


@pytest.mark.parametrize("request_", [{}, {"query": None}, {"query": " \n"}, {"query": ["capital"]}])
def test_a_query_without_words_is_refused_as_the_policys_doing(facts, request_):
    with pytest.raises(ToolRefusal):
        _ask(facts, request_)


@pytest.mark.parametrize("top_k", [0, -1, 2.0, True, "3", None])
def test_a_wrong_top_k_is_the_authors_mistake(facts, top_k):
    with pytest.raises(WorkflowError, match="top_k"):
        _ask(facts, {"query": "capital", "top_k": top_k})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k1": -1}, "k1"),
        ({"b": 1.5}, "b from"),
        ({"b": math.nan}, "b="),
        ({"stemmer": "engish"}, "'english'"),
    ],
)
def test_wrong_options_are_refused_when_the_tool_is_made(options, message):
    with pytest.raises(WorkflowError, match=message):
        Bm25Retriever(**options)


def test_composed_and_decomposed_letters_case_and_endings_are_one_word(tmp_path):
    retriever = Bm25Retriever(_corpus(tmp_path / "c.jsonl", "Malmo\u0308 straße cities", "other"))
    for query in ("malm\u00f6", "MALMO\u0308", "STRASSE", "city"):
        assert _ids(retriever.search([query], 2)[0]) == ["p0"], query


def test_words_of_other_scripts_and_lone_surrogates_do_no_harm(tmp_path):
    retriever = Bm25Retriever(_corpus(tmp_path / "c.jsonl", "東京 は 首都", "столица Москва"), stemmer=None)
    found = retriever.search(["首都", "москва \ud800", "\x00"], 2)
    assert [_ids(documents) for documents in found] == [["p0"], ["p1"], []]


def test_a_runaway_query_is_cut_not_refused(facts):
    query = "Albania capital " * 100_000
    assert "country-al" in _ids(_ask(facts, {"query": query, "top_k": 4}))


def test_it_can_be_pickled_before_and_after_it_started(facts):
    expected = facts.search(["capital of Albania"], 4)
    for retriever in (Bm25Retriever(), facts):
        data = pickle.dumps(retriever)
        assert len(data) < 1000  # the arguments, not the index
        assert pickle.loads(data).search(["capital of Albania"], 4) == expected
    changed = pickle.loads(pickle.dumps(Bm25Retriever(k1=0.5, b=0.1, stemmer=None)))
    assert (changed.k1, changed.b, changed.stemmer) == (0.5, 0.1, None)


def test_many_first_uses_at_once_agree_and_the_corpus_is_read_once(tmp_path):
    path = _corpus(tmp_path / "c.jsonl", *(f"word{i} common" for i in range(50)))
    retriever = Bm25Retriever(path)

    async def ask_all() -> list[dict]:
        first = await asyncio.gather(*(retriever({"query": f"word{i}", "top_k": 1}) for i in range(50)))
        Path(path).unlink()  # nothing reads it again
        await retriever.start()
        await retriever({"query": "word1"})
        return first

    answers = asyncio.run(ask_all())
    assert [_ids(answer["documents"]) for answer in answers] == [[f"p{i}"] for i in range(50)]


def test_a_large_corpus_is_searched_in_a_thread_with_the_same_result(facts, monkeypatch):
    expected = _ask(facts, {"query": "capital of Albania"})
    monkeypatch.setattr("workflows.tools.retriever._INLINE_PASSAGES", 1)

    async def ask_all() -> list[dict]:
        return await asyncio.gather(*(facts({"query": "capital of Albania"}) for _ in range(20)))

    assert all(answer["documents"] == expected for answer in asyncio.run(ask_all()))


def test_nothing_is_printed_while_it_builds_and_searches(tmp_path, capfd):
    Bm25Retriever(_corpus(tmp_path / "c.jsonl", "a b", "c")).search(["a"], 1)
    assert capfd.readouterr() == ("", "")


def test_parquet_and_jsonl_give_the_same(tmp_path):
    jsonl = _corpus(tmp_path / "c.jsonl", "red apple", "green apple")
    rows = [json.loads(line) | {"vector": [0.0]} for line in Path(jsonl).read_text().splitlines()]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet")
    queries = ["green apple", "red"]
    found = Bm25Retriever(str(tmp_path / "c.parquet")).search(queries, 2)
    assert found == Bm25Retriever(jsonl).search(queries, 2)
    assert found[0][0].keys() == {"id", "title", "text", "score"}


GOOD = '{"id": "a", "title": "", "text": "x"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no passages"),
        (GOOD + "{nope\n", "row 2: not JSON"),
        (GOOD + "\n[1]\n", r"row 3: got \[1\]"),
        ('{"id": "a", "titel": "", "text": "x"}\n', "no title .did you mean 'titel'.*id, titel, text"),
        ('{"id": 1, "title": "", "text": "x"}\n', "row 1: id is 1"),
        ('{"id": " ", "title": "", "text": "x"}\n', "id is ' '"),
        ('{"id": "a", "title": null, "text": "x"}\n', "title is None"),
        ('{"id": "a", "title": "", "text": " "}\n', "text is ' '"),
        (GOOD + GOOD, "row 2: its id 'a' is that of row 1"),
        ('{"id": "a", "title": "", "text": "?!"}\n', "no passage has a word"),
    ],
)
def test_a_broken_corpus_is_refused_with_file_and_row(tmp_path, content, message):
    (tmp_path / "c.jsonl").write_text(content)
    with pytest.raises(DataError, match=message) as refused:
        asyncio.run(Bm25Retriever(str(tmp_path / "c.jsonl")).start())
    assert "c.jsonl" in str(refused.value)


@pytest.mark.parametrize("corpus", ["nowhere.jsonl", "fact", "nowhere.parquet", "c.txt"])
def test_a_missing_corpus_is_named(corpus):
    with pytest.raises(DataError, match=corpus):
        asyncio.run(Bm25Retriever(corpus).start())


@pytest.mark.skipif(
    not REAL, reason="SKIPPED LOUDLY: a real corpus is NOT tried: CADRE_TEST_DATA names no folder"
)
def test_real_questions_find_a_gold_paragraph():
    folder = Path(REAL or "") / "hotpot"
    retriever = Bm25Retriever(str(folder / "corpus.jsonl"))
    tasks = load_tasks(str(folder / "train.jsonl")).tasks.to_pylist()
    found = retriever.search([json.loads(task["inputs"])["question"] for task in tasks], 4)
    hits = [
        bool({d["title"] for d in documents} & set(json.loads(task["gold"])["supporting_titles"]))
        for task, documents in zip(tasks, found, strict=True)
    ]
    assert sum(hits) >= 0.9 * len(hits)
