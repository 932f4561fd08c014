"""Building an index: passages, words and vectors shard by shard, then scores and graph, then the manifest.

Each file grows by one shard at a time, and a line in a journal says how long every file was after it. A build
that was killed cuts its files back to the last line and goes on from there, so no finished shard is read,
split into words or embedded again. The parts that need all shards (scores of BM25, the graph) are made from
these files and never touch corpus or model.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from workflows.errors import DataError, UsageError
from workflows.tools.bm25 import field_of, order_of, scores_of, stemmer_of, words_of
from workflows.tools.corpus import PASSAGES, passages
from workflows.tools.index import parts
from workflows.tools.index.embedders import Vectors
from workflows.tools.index.folder import MANIFEST, UNFINISHED, Manifest, Recipe, write_json
from workflows.tools.index.graph import GRAPH_FILE, Watch, link_vectors

SHARD: Final = 2_048
"""Passages of a shard: what a kill costs at most."""
_BATCH: Final = 64  # passages that are embedded at a time, and steps of a progress bar
_ALIGN: Final = 64  # bytes; Arrow's batches are mapped where they lie
_JOURNAL: Final = "journal.jsonl"
_SCORED: Final = "scored"  # stands once the scores are whole
_WORDS_MET: Final = ("words.i32", "lengths.i32", "words.txt")
_WORK_FILES: Final = (_SCORED, *_WORDS_MET)  # of an unfinished build only
_LOCK: Final = ".lock"
_NOT_PARTS: Final = (MANIFEST, UNFINISHED, _JOURNAL, _LOCK, *_WORK_FILES)


def build_index(
    corpus: str,
    folder: Path,
    recipe: Recipe,
    num_passages: int,
    embedder: Vectors | None,
    watch: Watch,
    threads: int = 1,
) -> Manifest:
    """Build, or go on with, the index of a corpus whose rows were all checked.

    With one thread the graph is the same at every build; with more it is built faster, and neighbours may
    differ between builds.

    Raises:
        UsageError: the folder has something else in it, or an unfinished index of another recipe.
        DataError: no passage has a word in it.
    """
    with _only_builder(folder):
        if (folder / MANIFEST).exists():
            manifest = Manifest.read(folder)
            if difference := manifest.recipe.difference(recipe):
                raise UsageError(f"{str(folder)!r} has another index: {difference}; choose another --out")
            _clear(folder)
            return manifest
        _begin(folder, recipe)
        _append_shards(corpus, folder, recipe, num_passages, embedder, watch)
        _finish(folder, recipe, num_passages, watch, threads)
        return Manifest.read(folder)


def passages_done(folder: Path, recipe: Recipe) -> int:
    """How many passages an unfinished, or finished, index of this recipe already holds."""
    if (folder / MANIFEST).exists():
        manifest = Manifest.read(folder)
        return 0 if manifest.recipe.difference(recipe) else manifest.passages
    if not (folder / UNFINISHED).exists() or _begun(folder).difference(recipe):
        return 0
    journal = parts.read_lines(folder / _JOURNAL)
    return int(journal[-1]["passages"]) if journal else 0


@contextmanager
def _only_builder(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / _LOCK).open("w")
    except OSError as error:
        raise UsageError(
            f"the index can't be written to {str(folder)!r}: {error}; choose another --out"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another process is building the index {str(folder)!r}; wait for it, or choose another --out"
            ) from None
        yield


def _begin(folder: Path, recipe: Recipe) -> None:
    if (folder / UNFINISHED).exists():
        if difference := _begun(folder).difference(recipe):
            raise UsageError(
                f"{str(folder)!r} has an unfinished index of another kind: {difference}; repeat the command "
                "that began it, choose another --out, or remove the folder"
            )
    elif others := sorted(path.name for path in folder.iterdir() if path.name != _LOCK):
        raise UsageError(
            f"{str(folder)!r} has other files in it ({others[0]!r}), and is not an index; choose an --out "
            "that is empty or not there"
        )
    else:
        write_json(folder / UNFINISHED, recipe.as_dict())


def _begun(folder: Path) -> Recipe:
    return Recipe.from_dict(json.loads((folder / UNFINISHED).read_text("utf-8")))


class _Growing:
    """A file that grows; what stands behind `size` bytes was not finished and is cut off."""

    def __init__(self, path: Path, size: int) -> None:
        self._file = path.open("r+b" if path.exists() else "w+b")
        if self._file.seek(0, os.SEEK_END) < size:
            raise UsageError(
                f"the unfinished index has lost what it had: {path} is shorter than {size:,} bytes; remove "
                f"the folder {str(path.parent)!r} and build it anew"
            )
        self._file.truncate(size)
        self._file.seek(size)
        self.size = size

    def append(self, data: Any) -> None:
        self.size += self._file.write(data)

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _append_shards(
    corpus: str, folder: Path, recipe: Recipe, total: int, embedder: Vectors | None, watch: Watch
) -> None:
    journal = parts.read_lines(folder / _JOURNAL)
    last = journal[-1] if journal else {}
    done = int(last.get("passages", 0))
    if done == total:
        return
    rows = passages(corpus, recipe.columns, done)
    names = [parts.PASSAGES_FILE, *(_WORDS_MET if recipe.bm25 else ())]
    names += [parts.VECTORS_FILE] if recipe.dense else []
    with ExitStack() as stack:
        files = {name: _Growing(folder / name, last.get(name, 0)) for name in names}
        lines = _Growing(folder / _JOURNAL, sum(len(json.dumps(line)) + 1 for line in journal))
        for file in (*files.values(), lines):
            stack.callback(file.close)
        words = _Words(folder, recipe) if recipe.bm25 else None
        stack.callback(watch.finish)
        watch.start("embedding" if embedder else "reading words", total - done, "passage")
        while shard := list(islice(rows, SHARD)):
            _append_passages(files[parts.PASSAGES_FILE], shard)
            if words is not None:
                words.append(shard, files)
            for start in range(0, len(shard), _BATCH):
                batch = shard[start : start + _BATCH]
                if embedder is not None:
                    vectors = embedder.documents([field_of(passage) for passage in batch])
                    files[parts.VECTORS_FILE].append(vectors.astype("float16").tobytes())
                watch.advance(len(batch))
            done += len(shard)
            for file in files.values():
                file.sync()
            sizes = {name: file.size for name, file in files.items()}
            lines.append((json.dumps({"passages": done, **sizes}) + "\n").encode())
            lines.sync()
    if done != total:
        raise UsageError(
            f"corpus {corpus!r} had {total:,} passages when it was checked, and {done:,} now; it must not "
            "change while it is read"
        )


def _append_passages(file: _Growing, shard: list[dict[str, str]]) -> None:
    data = pa.RecordBatch.from_pylist(shard, schema=PASSAGES).serialize()
    file.append(data)
    file.append(b"\0" * (-data.size % _ALIGN))


class _Words:
    """The words of passages as numbers, in the order in which words are first met."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        assert recipe.bm25 is not None
        self._stem = stemmer_of(recipe.bm25.stemmer)
        self._numbers = {word: number for number, word in enumerate(_met_words(folder))}

    def append(self, shard: list[dict[str, str]], files: dict[str, _Growing]) -> None:
        numbers, lengths, known = array("i"), array("i"), len(self._numbers)
        for passage in shard:
            words = words_of(field_of(passage), self._stem)
            numbers.extend(self._numbers.setdefault(word, len(self._numbers)) for word in words)
            lengths.append(len(words))
        files["words.i32"].append(numbers.tobytes())
        files["lengths.i32"].append(lengths.tobytes())
        new = islice(self._numbers, known, None)
        files["words.txt"].append("".join(f"{word}\n" for word in new).encode())


def _met_words(folder: Path) -> list[str]:
    return (folder / "words.txt").read_text("utf-8").split("\n")[:-1]


def _finish(folder: Path, recipe: Recipe, num_passages: int, watch: Watch, threads: int) -> None:
    import numpy as np

    journal = parts.read_lines(folder / _JOURNAL)
    starts = [(0, 0), *((line["passages"], line[parts.PASSAGES_FILE]) for line in journal)]
    np.save(folder / parts.SHARDS_FILE, np.array(starts, dtype=np.int64))
    np.save(folder / parts.ORDER_FILE, order_of(parts.Passages.open(folder).ids()))
    if recipe.bm25 is not None and not (folder / _SCORED).exists():
        _score(folder, recipe, watch)
    if recipe.dense is not None and not (folder / GRAPH_FILE).exists():
        link_vectors(folder, parts.map_vectors(folder, num_passages, recipe.dense.dimension), watch, threads)
    ours = [path for path in folder.rglob("*") if path.is_file() and path.name not in _NOT_PARTS]
    files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(ours)}
    Manifest(recipe, num_passages, files).write(folder)
    _clear(folder)


def _clear(folder: Path) -> None:
    """Remove what only an unfinished build needs."""
    for name in (_JOURNAL, *_WORK_FILES, UNFINISHED):
        (folder / name).unlink(missing_ok=True)


def _score(folder: Path, recipe: Recipe, watch: Watch) -> None:
    """The scores of BM25, from the words of all passages."""
    import numpy as np

    assert recipe.bm25 is not None
    met = _met_words(folder)
    if not met:
        raise DataError(f"corpus {recipe.corpus.path!r}: no passage has a word in it")
    numbers = np.memmap(folder / "words.i32", dtype=np.int32, mode="r")
    ends = np.cumsum(np.fromfile(folder / "lengths.i32", dtype=np.int32), dtype=np.int64)
    watch.start("scoring words", None, "")
    ids = [array("i", numbers[start:end].tobytes()) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    scores = scores_of(ids, {word: number for number, word in enumerate(met)}, recipe.bm25)
    shutil.rmtree(folder / parts.SCORES_FOLDER, ignore_errors=True)
    parts.save_scores(folder, scores)
    parts.write_words(folder, met)
    (folder / _SCORED).touch()
    watch.finish()
