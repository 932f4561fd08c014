"""An index's folder: what it was made of, in `manifest.json`, and whether that is what somebody expects.

A folder is an index once its manifest stands, which is written last. Its identity is a hash of the corpus's
bytes and of all that scores depend on: options of BM25, the embedding model's weights, the file format.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import fsspec

from workflows.data import shipped_file
from workflows.data.missing import missing
from workflows.errors import DataError, UsageError
from workflows.plugins import content_hash
from workflows.tools.bm25 import Bm25Options

Kind = Literal["bm25", "dense", "hybrid"]
KINDS: Final = ("bm25", "dense", "hybrid")
FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
UNFINISHED: Final = "building.json"


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """A corpus as it was when it was read: `hash` is of the file's bytes."""

    path: str
    bytes: int
    hash: str
    modified_ns: int | None = None

    @classmethod
    def read(cls, corpus: str) -> CorpusFile:
        """
        Raises:
            DataError: no such file, or it can't be read.
        """
        path = shipped_file(corpus, "corpus")
        digest, size = hashlib.blake2b(digest_size=16), 0
        modified = os.stat(path).st_mtime_ns if os.path.exists(path) else None
        try:
            with fsspec.open(path, "rb") as file:
                while chunk := file.read(1 << 22):
                    digest.update(chunk)
                    size += len(chunk)
        except FileNotFoundError as error:
            raise DataError(missing(corpus)) from error
        except (OSError, ValueError, ImportError) as error:
            raise DataError(f"corpus {corpus!r} can't be read: {error}") from error
        return cls(_absolute(corpus), size, digest.hexdigest(), modified)

    def is_still(self, corpus: str) -> bool:
        """Whether a corpus has the same bytes; read only where size and time of change leave it open."""
        path = shipped_file(corpus, "corpus")
        if os.path.exists(path):
            now = os.stat(path)
            if now.st_size != self.bytes:
                return False
            if _absolute(corpus) == self.path and now.st_mtime_ns == self.modified_ns:
                return True
        return CorpusFile.read(corpus).hash == self.hash


@dataclass(frozen=True, slots=True)
class DenseOptions:
    """The embedding model of an index: `fingerprint` says which weights, `dimension` how long vectors are."""

    model: str
    fingerprint: str
    dimension: int
    precision: str | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an index is made of: all that its identity depends on."""

    corpus: CorpusFile
    kind: Kind
    bm25: Bm25Options | None
    dense: DenseOptions | None
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """Thirty-two hexadecimal digits. Where the corpus and the model lie does not matter."""
        parts = asdict(self)
        parts["corpus"] = self.corpus.hash
        parts["format"] = FORMAT
        if self.dense:
            del parts["dense"]["model"]
        return content_hash(json.dumps(parts, sort_keys=True).encode())

    def difference(self, other: Recipe) -> str:
        """The first thing that another recipe has otherwise, in words; empty where both are one."""
        pairs: list[tuple[str, Any, Any]] = [
            ("the corpus", self.corpus.hash, other.corpus.hash),
            ("the kind", self.kind, other.kind),
            ("the columns", dict(self.columns), dict(other.columns)),
            ("BM25's options", self.bm25, other.bm25),
            ("the embedding model", self.dense, other.dense),
        ]
        if self.identity == other.identity:
            return ""
        what, here, there = next(pair for pair in pairs if pair[1] != pair[2])
        return f"{what} was {here}, and is {there}" if what != "the corpus" else "the corpus has other bytes"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Recipe:
        return cls(
            CorpusFile(**raw["corpus"]),
            raw["kind"],
            Bm25Options(**raw["bm25"]) if raw["bm25"] else None,
            DenseOptions(**raw["dense"]) if raw["dense"] else None,
            raw["columns"],
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """What stands in `manifest.json`: `files` are names and sizes in bytes of all other files."""

    recipe: Recipe
    passages: int
    files: Mapping[str, int]

    def write(self, folder: Path) -> None:
        content = {
            "format": FORMAT,
            "identity": self.recipe.identity,
            "passages": self.passages,
            **self.recipe.as_dict(),
            "files": dict(self.files),
        }
        write_json(folder / MANIFEST, content)

    @classmethod
    def read(cls, folder: Path, rebuild: str = "") -> Manifest:
        """
        Raises:
            UsageError: not an index, an unfinished or damaged one, or one of another version of Cadre.
        """
        again = rebuild or f"build it: python -m pipeline index CORPUS --out {folder}"
        if not (folder / MANIFEST).is_file():
            if (folder / UNFINISHED).is_file():
                raise UsageError(
                    f"the index {str(folder)!r} is unfinished; the command that began it goes on where it was"
                )
            what = "has no manifest.json" if folder.is_dir() else "does not exist"
            raise UsageError(f"{str(folder)!r} is not an index: it {what}; {again}")
        try:
            raw = json.loads((folder / MANIFEST).read_text("utf-8"))
            version, identity = raw["format"], raw["identity"]
            if version != FORMAT:
                raise UsageError(
                    f"the index {str(folder)!r} has format {version}, this Cadre reads {FORMAT}; {again}"
                )
            manifest = cls(Recipe.from_dict(raw), raw["passages"], raw["files"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"the index {str(folder)!r} has a damaged manifest.json ({error!r}); {again}"
            ) from error
        if manifest.recipe.identity != identity:
            raise UsageError(
                f"the index {str(folder)!r} is not what its manifest.json says: its identity is {identity}, "
                f"and what is written there makes {manifest.recipe.identity}; {again}"
            )
        for name, size in manifest.files.items():
            got = (folder / name).stat().st_size if (folder / name).is_file() else None
            if got != size:
                state = "missing" if got is None else f"{got:,} bytes long"
                raise UsageError(
                    f"the index {str(folder)!r} is damaged: {name} is {state}, expected {size:,} bytes; "
                    f"{again}"
                )
        return manifest

    def check_corpus(self, folder: Path, corpus: str | None) -> None:
        """Refuse an index of another corpus, or of one that has changed since.

        Args:
            corpus: whose index it must be; None for the file that it was built from, where that is here.

        Raises:
            UsageError: names both, and what to do.
        """
        built_from = self.recipe.corpus
        if corpus is None and not os.path.exists(shipped_file(built_from.path, "corpus")):
            return  # an index goes where its corpus does not
        if not built_from.is_still(corpus or built_from.path):
            same = corpus is None or _absolute(corpus) == built_from.path
            state = (
                f"is stale: {built_from.path} has changed since it was built"
                if same
                else f"is of another corpus: it was built from {built_from.path}, not from {corpus}"
            )
            raise UsageError(
                f"the index {str(folder)!r} {state}; build one anew: "
                f"python -m pipeline index {corpus or built_from.path} --out NEW_FOLDER"
            )


def local_folder(index: str) -> Path:
    """The folder that an index's name stands for.

    Raises:
        UsageError: a URL, which nothing can map into memory.
    """
    if "://" in index:
        raise UsageError(
            f"an index is mapped into memory, so it lies on a disk of this machine; {index!r} is a URL: copy "
            "the folder, and name the copy"
        )
    return Path(index).expanduser()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file whole or not at all."""
    half = path.with_name(f"{path.name}.tmp")
    with half.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)


def _absolute(corpus: str) -> str:
    is_local = shipped_file(corpus, "corpus") == corpus and "://" not in corpus
    return os.path.abspath(corpus) if is_local else corpus
