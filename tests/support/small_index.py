"""Small indexes on disk, and an embedding model of a few lines, whose vectors can be worked out by hand."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from workflows.tools.bm25 import Bm25Options
from workflows.tools.index.build import build_index
from workflows.tools.index.embedders import load_embedder
from workflows.tools.index.folder import CorpusFile, DenseOptions, Kind, Manifest, Recipe
from workflows.tools.index.survey import survey

HASHED = "tests.support.small_index:HashedWords"
OTHER = "tests.support.small_index:OtherWords"


class HashedWords:
    """A text's vector counts its words, each at a place that its letters say. Synonyms share a place."""

    dimension = 64
    fingerprint = "hashed-1"
    synonyms: ClassVar = {"auto": "car", "automobile": "car"}

    def __init__(self) -> None:
        self.seen: list[str] = []

    def documents(self, texts: Sequence[str]) -> Any:
        self.seen += texts
        return self.queries(texts)

    def queries(self, texts: Sequence[str]) -> Any:
        vectors = np.full((len(texts), self.dimension), 1e-3, dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split():
                place = zlib.crc32(self.synonyms.get(word, word).encode()) % self.dimension
                vectors[row, place] += 1
        return vectors


class OtherWords(HashedWords):
    """A model of other weights."""

    fingerprint = "hashed-2"


class Silent:
    """A watch that nobody looks at."""

    def start(self, label: str, total: int | None, unit: str) -> None: ...

    def advance(self, amount: int = 1) -> None: ...

    def finish(self) -> None: ...


def write_corpus(path: Path, texts: Sequence[str], ids: Sequence[str] | None = None) -> str:
    """A corpus of texts without titles, with ids p0, p1, … or these."""
    names = ids or [f"p{i}" for i in range(len(texts))]
    rows = [{"id": id, "title": "", "text": text} for id, text in zip(names, texts, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def recipe_of(
    corpus: str, kind: Kind = "hybrid", bm25: Bm25Options | None = None, model: str = HASHED
) -> Recipe:
    embedder = load_embedder(model)
    return Recipe(
        CorpusFile.read(corpus),
        kind,
        None if kind == "dense" else bm25 or Bm25Options(),
        None if kind == "bm25" else DenseOptions(model, embedder.fingerprint, embedder.dimension),
    )


def make_index(
    corpus: str,
    folder: Path,
    kind: Kind = "hybrid",
    bm25: Bm25Options | None = None,
    watch: Any = None,
    model: str = HASHED,
) -> Manifest:
    """Build, or go on with, an index."""
    watch = watch or Silent()
    recipe = recipe_of(corpus, kind, bm25, model)
    embedder = None if kind == "bm25" else load_embedder(model)
    rows = survey(corpus, {}, Silent())
    return build_index(corpus, folder, recipe, rows.passages, embedder, watch)
