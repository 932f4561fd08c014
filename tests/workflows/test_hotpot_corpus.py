"""The passages of HotpotQA's rows become a corpus."""

from __future__ import annotations

import json

import pytest

from tests.support.data_files import write
from workflows.data.hotpot_corpus import main as hotpot_main
from workflows.data.hotpot_corpus import passages
from workflows.data.rows import read_rows
from workflows.errors import DataError

HOTPOT = [
    {"context": [["Ada", ["Ada wrote.", " She did."]], ["Bea", ["Bea read."]]]},
    {"context": {"title": ["Ada", "Cyd"], "sentences": [["Ada wrote.", " She did."], ["Cyd sang."]]}},
]


def test_passages_of_hotpotqa_become_a_corpus_each_once(tmp_path):
    (tmp_path / "hotpot.json").write_text(json.dumps(HOTPOT))
    found = list(passages(str(tmp_path / "hotpot.json")))
    assert [(p["title"], p["text"]) for p in found] == [
        ("Ada", "Ada wrote. She did."),
        ("Bea", "Bea read."),
        ("Cyd", "Cyd sang."),
    ]
    assert hotpot_main([str(tmp_path / "hotpot.json"), str(tmp_path / "corpus.jsonl")]) == 0
    from workflows.tools.retriever import Bm25Retriever

    retriever = Bm25Retriever(str(tmp_path / "corpus.jsonl"))
    assert [row for _, row in read_rows(retriever.corpus)] == found


@pytest.mark.parametrize(
    "row", [{}, {"context": "text"}, {"context": [["Ada", "text"]]}, {"context": {"title": []}}, 3]
)
def test_rows_without_passages_are_refused_by_number(tmp_path, row, capsys):
    path = write(tmp_path / "h.jsonl", HOTPOT[0], row)
    with pytest.raises(DataError, match="row 2: no passages"):
        list(passages(path))
    assert hotpot_main([path, str(tmp_path / "c.jsonl")]) == 2
    assert "row 2" in capsys.readouterr().err
    assert not (tmp_path / "c.jsonl").exists()
