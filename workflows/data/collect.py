"""Rows of files, collected as rows of the tasks table; what can't be used is kept with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any, Final

from workflows.data.fields import (
    BAD_FIELD,
    NO_OBJECT,
    NOT_DECODED,
    REPEATED,
    TOO_LARGE,
    Converter,
    Draft,
    Unusable,
)
from workflows.data.files import DataFile, split_name
from workflows.data.formats import EXPECTED, NAMES, converter, detect, from_columns
from workflows.data.math_rows import known_set
from workflows.data.rejects import Reject
from workflows.data.rows import Broken, read_rows
from workflows.errors import DataError, UsageError, did_you_mean
from workflows.loading import load_object
from workflows.trajectory import to_json

MAX_TASK_CHARS: Final = (
    4_000_000  # of inputs and gold as JSON: a task is copied into every iteration it is in
)

RENAMED_NOTE: Final = "ids made distinct: an earlier file gives them to another task"
SHARED_NOTE: Final = "tasks of another split with the inputs of a task of train"


class Collector:
    """Reads files one after another.

    Attributes:
        tasks: rows of the schema TASKS, in the order of the files.
        rejects: the rows that became no task.
        notes: what was decided about rows that are used, counted.
        formats: the formats that were read, in their order.
    """

    def __init__(self, format: str, columns: Mapping[str, str] | None, public_tests: int) -> None:
        self.tasks: list[dict[str, Any]] = []
        self.rejects: list[Reject] = []
        self.notes: Counter[str] = Counter()
        self.formats: list[str] = []
        self._public_tests = public_tests
        self._loader = format if ":" in format else None
        self._converter = self._declared(format, columns)
        self._first: dict[str, tuple[str, int, str]] = {}  # by id: file, row and hash of its first task

    def read(self, file: DataFile) -> None:
        """Add what one file holds.

        Raises:
            DataError: it can't be read, or its first row is of no known format.
            UsageError: the loader that the format names can't be imported.
        """
        convert = self._converter
        for number, row in self._rows(file.path):
            try:
                fields = _object(row)
                if convert is None:
                    convert = self._detected(fields, file.path, number)
                self._add(_drafted(fields, convert), file, number)
            except Unusable as unusable:
                name = PurePosixPath(file.path).name
                self.rejects.append(Reject(number, unusable.cause, unusable.reason, name))

    def count_shared(self) -> None:
        """Note tasks of a held-out split that train asks, too: their scores say less than they seem to."""
        trained = {task["inputs"] for task in self.tasks if task["split"] == "train"}
        shared = sum(task["split"] != "train" and task["inputs"] in trained for task in self.tasks)
        if shared:
            self.notes[SHARED_NOTE] += shared

    def _declared(self, format: str, columns: Mapping[str, str] | None) -> Converter | None:
        if columns:
            self.formats.append("columns")
            return from_columns(columns, self._public_tests)
        if self._loader:
            self.formats.append(format)
            return converter("cadre", self._public_tests)
        if format == "auto":
            return None
        if format not in NAMES:
            known = ("auto", *NAMES)
            raise DataError(
                f"[data] format = {format!r} is unknown{did_you_mean(format, known)}; one of "
                f"{', '.join(known)}, or package.module:function of a loader"
            )
        self.formats.append(format)
        return converter(format, self._public_tests)

    def _rows(self, path: str) -> Iterator[tuple[int, Any]]:
        return _loaded_by(self._loader, path) if self._loader else read_rows(path)

    def _detected(self, row: Mapping[str, Any], path: str, number: int) -> Converter:
        name = detect(row)
        if name is None:
            fields = ", ".join(map(str, row)) or "no fields"
            raise DataError(
                f"tasks {path!r}, row {number}: of no known format; it has {fields}; expected {EXPECTED}; "
                "or say which column is which in [data] columns"
            )
        if name not in self.formats:
            self.formats.append(name)
        return converter(name, self._public_tests)

    def _add(self, draft: Draft, file: DataFile, number: int) -> None:
        try:
            inputs, gold = to_json(draft.inputs), to_json(draft.gold)
        except (TypeError, ValueError) as error:
            raise Unusable(BAD_FIELD, f"a value that JSON can't hold ({error})") from error
        if (size := len(inputs) + len(gold)) > MAX_TASK_CHARS:
            raise Unusable(TOO_LARGE, f"it has {size} characters, at most {MAX_TASK_CHARS} are read")
        row_hash = blake2b(f"[{inputs},{gold}]".encode(), digest_size=16).hexdigest()
        task_id = self._distinct_id(draft.task_id, row_hash, file, number)
        split = file.split if file.declared else split_name(draft.split or file.split)
        self.tasks.append(
            {
                "task_id": task_id,
                "split": split,
                "source": draft.source or _source(draft, file),
                "inputs": inputs,
                "gold": gold,
                "row_hash": row_hash,
            }
        )
        self.notes.update(draft.notes)

    def _distinct_id(self, own: str | None, row_hash: str, file: DataFile, number: int) -> str:
        task_id = own or row_hash
        if first := self._first.get(task_id):
            path, row, its_hash = first
            if own is None or path == file.path or its_hash == row_hash:
                what, where = "id" if own else "content", f"row {row}"
                if path != file.path:
                    where += f" of {path!r}"
                raise Unusable(REPEATED, f"its {what} is that of {where} (task {task_id!r})")
            task_id = f"{task_id}~{row_hash[:8]}"
            if task_id in self._first:
                raise Unusable(REPEATED, f"its id and content are those of task {task_id!r}")
            self.notes[RENAMED_NOTE] += 1
        self._first[task_id] = (file.path, number, row_hash)
        return task_id


def _object(row: Any) -> Mapping[str, Any]:
    if isinstance(row, Broken):
        raise Unusable(NOT_DECODED, row.reason)
    if not isinstance(row, Mapping):
        raise Unusable(NO_OBJECT, f"got {row!r:.60}, expected an object")
    return row


def _drafted(row: Mapping[str, Any], convert: Converter) -> Draft:
    try:
        return convert(row)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        # a field of another shape than the data set has
        raise Unusable(BAD_FIELD, f"fields of an unexpected type ({error})") from error


def _source(draft: Draft, file: DataFile) -> str:
    """A mathematics set is known by its usual name, wherever its file lies; others by their file's."""
    return ("problem" in draft.inputs and known_set([file.path])) or file.source


def _loaded_by(loader: str, path: str) -> Iterator[tuple[int, Any]]:
    function = load_object(loader)
    try:
        yield from enumerate(function(path), 1)
    except UsageError:
        raise
    except Exception as error:
        raise DataError(f"loader {loader!r} failed on {path!r}: {type(error).__name__}: {error}") from error
