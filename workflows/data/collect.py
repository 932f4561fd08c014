"""Rows of files, collected as rows of the tasks table; what can't be used is kept with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any, Final, Literal

from workflows.data.fields import (
    BAD_FIELD,
    BAD_TESTS,
    NO_OBJECT,
    NOT_DECODED,
    REPEATED,
    TOO_LARGE,
    Converter,
    Draft,
    Unusable,
    has_path,
    paths_of,
)
from workflows.data.files import DataFile, split_name
from workflows.data.formats import (
    EXPECTED,
    NAMES,
    converter,
    detect,
    detect_beside,
    from_columns,
)
from workflows.data.math_rows import known_set
from workflows.data.rejects import Reject
from workflows.data.rows import Broken, Reading, cleaned, delimiter_hint, read_rows
from workflows.data.shapes import usual_shape
from workflows.errors import DataError, UsageError, did_you_mean
from workflows.plugins import load_function
from workflows.tools.code.testcode import missing_packages
from workflows.trajectory import to_json

MAX_TASK_CHARS: Final = (
    4_000_000  # of inputs and gold as JSON: a task is copied into every iteration it is in
)

MAX_UNKNOWN_ROWS: Final = 100  # at the beginning of a file, before it is given up as of no known format

RENAMED_NOTE: Final = "ids made distinct: an earlier file gives them to another task"
SHARED_NOTE: Final = "tasks of another split with the inputs of a task of train"
FOLDED_NOTE: Final = "rows that repeat a task, folded into the first of it"
FOLDED_ACROSS_NOTE: Final = "rows that repeat a task of another split, folded into the first of it"
SAME_CONTENT_NOTE: Final = "tasks with the content of another task of their split under another id"

Repeats = Literal["fold", "reject"]


@dataclass(frozen=True, slots=True)
class _First:
    """The first task of an id."""

    path: str
    row: int
    row_hash: str
    split: str


class Collector:
    """Reads files one after another. Rows read = tasks + folded rows + rejects.

    Attributes:
        tasks: rows of the schema TASKS, in the order of the files.
        folded: how many rows repeat a task that is there already, and so make no second one.
        rejects: the rows that became no task.
        notes: what was decided about rows that are used, counted.
        formats: the formats that were read, in their order.
    """

    def __init__(
        self,
        format: str,
        columns: Mapping[str, str] | None,
        public_tests: int,
        repeats: Repeats = "fold",
        reading: Reading | None = None,
        packages: Sequence[str] = (),
    ) -> None:
        self.tasks: list[dict[str, Any]] = []
        self.folded = 0
        self.rejects: list[Reject] = []
        self.notes: Counter[str] = Counter()
        self.formats: list[str] = []
        self._columns = columns
        self._public_tests = public_tests
        self._repeats = repeats
        self._reading = reading or Reading()
        self._packages = tuple(packages)
        self._loader = format if ":" in format else None
        self._converters: dict[str, Converter] = {}
        self._converter = self._declared(format, columns)
        self._first: dict[str, _First] = {}  # by id
        self._contents: set[tuple[str, str]] = set()  # splits and hashes of all tasks

    def read(self, file: DataFile) -> None:
        """Add what one file holds.

        Raises:
            DataError: it can't be read, none of its first rows is of a known format, or a column that the
                settings name is in none of its rows.
            UsageError: the loader that the format names can't be imported.
        """
        first_format, unseen, last = "", dict(self._columns or {}), None
        unknown: list[tuple[int, Mapping[str, Any]]] = []  # rows before the first of a known format
        for number, row in self._rows(file.path):
            fields = self._fields(row, file, number)
            if fields is None:
                continue
            last = fields
            if unseen:
                unseen = {name: path for name, path in unseen.items() if not has_path(fields, path)}
            if self._converter is not None:
                self._take(fields, self._converter, file, number)
            elif name := detect_beside(fields, first_format) if first_format else detect(fields):
                for earlier, its_fields in unknown:
                    self._take(its_fields, self._converter_of(name), file, earlier)
                first_format, unknown = first_format or name, []
                self._take(fields, self._converter_of(name), file, number)
            else:
                unknown.append((number, fields))
                if len(unknown) > MAX_UNKNOWN_ROWS:
                    break
        if unknown:
            raise DataError(_no_format(file.path, *unknown[0]))
        if unseen and last is not None:
            raise DataError(_missing_columns(unseen, file.path, last))

    def _fields(self, row: Any, file: DataFile, number: int) -> Mapping[str, Any] | None:
        """The row as an object; None for a reject."""
        try:
            return _object(row if self._columns or self._loader else usual_shape(row))
        except Unusable as unusable:
            self._reject(unusable, file, number)
            return None

    def _take(self, fields: Mapping[str, Any], convert: Converter, file: DataFile, number: int) -> None:
        try:
            self._add(_drafted(fields, convert), file, number)
        except Unusable as unusable:
            self._reject(unusable, file, number)

    def _reject(self, unusable: Unusable, file: DataFile, number: int) -> None:
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
        return _loaded_by(self._loader, path) if self._loader else read_rows(path, reading=self._reading)

    def _converter_of(self, name: str) -> Converter:
        if name not in self._converters:
            self._converters[name] = converter(name, self._public_tests)
        if name not in self.formats:
            self.formats.append(name)
        return self._converters[name]

    def _add(self, draft: Draft, file: DataFile, number: int) -> None:
        for tests in (draft.inputs.get("public_tests"), draft.gold.get("private_tests")):
            wanted = tests.get("packages", ()) if isinstance(tests, Mapping) else ()
            if missing := missing_packages(wanted, self._packages):
                raise Unusable(
                    BAD_TESTS,
                    f"its tests import {missing[0]}, which the sandbox does not have; name a folder "
                    "that has it in [sandbox] packages",
                )
        try:
            inputs, gold = to_json(draft.inputs), to_json(draft.gold)
        except (TypeError, ValueError) as error:
            raise Unusable(BAD_FIELD, f"a value that JSON can't hold ({error})") from error
        if (size := len(inputs) + len(gold)) > MAX_TASK_CHARS:
            raise Unusable(TOO_LARGE, f"it has {size} characters, at most {MAX_TASK_CHARS} are read")
        row_hash = blake2b(f"[{inputs},{gold}]".encode(), digest_size=16).hexdigest()
        split = file.split if file.declared else split_name(draft.split or file.split)
        task_id = self._distinct_id(draft.task_id, row_hash, file, number, split)
        if task_id is None:
            return
        self._first[task_id] = _First(file.path, number, row_hash, split)
        if (split, row_hash) in self._contents:
            self.notes[SAME_CONTENT_NOTE] += 1
        self._contents.add((split, row_hash))
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

    def _distinct_id(
        self, given_id: str | None, row_hash: str, file: DataFile, number: int, split: str
    ) -> str | None:
        """The id of a new task; None for a row that repeats one and is folded into it."""
        task_id = given_id or row_hash
        if (first := self._first.get(task_id)) is None:
            return task_id
        if first.row_hash == row_hash:
            self._repeated(first, task_id, file, split, "id and content" if given_id else "content")
            return None
        if first.path == file.path:
            raise Unusable(
                REPEATED, f"its id is that of row {first.row}, its content is another (task {task_id!r})"
            )
        task_id = f"{task_id}~{row_hash[:8]}"
        if (first := self._first.get(task_id)) is not None:
            self._repeated(first, task_id, file, split, "id and content")
            return None
        self.notes[RENAMED_NOTE] += 1
        return task_id

    def _repeated(self, first: _First, task_id: str, file: DataFile, split: str, what: str) -> None:
        if self._repeats == "reject":
            where = f"row {first.row}" + (f" of {first.path!r}" if first.path != file.path else "")
            raise Unusable(REPEATED, f"its {what} is that of {where} (task {task_id!r})")
        self.folded += 1
        self.notes[FOLDED_NOTE if split == first.split else FOLDED_ACROSS_NOTE] += 1


def _no_format(path: str, number: int, fields: Mapping[str, Any]) -> str:
    shown = ", ".join(map(str, fields)) or "no fields"
    return (
        f"tasks {path!r}, row {number}: of no known format; it has {shown}; expected {EXPECTED}; "
        f"or say which column is which in [data] columns{delimiter_hint(path, fields)}"
    )


def _missing_columns(missing: Mapping[str, str], path: str, row: Mapping[str, Any]) -> str:
    """The message about columns of the settings that no row of a file has, each with the closest one."""
    known = list(paths_of(row))
    each = "; ".join(f"{name} = {column!r}{did_you_mean(column, known)}" for name, column in missing.items())
    return (
        f"[data] columns names what no row of {path!r} has: {each}; "
        f"its rows have {', '.join(map(str, row)) or 'nothing'}{delimiter_hint(path, row)}"
    )


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
    function = load_function(loader, "loader")
    try:
        yield from ((number, cleaned(row)) for number, row in enumerate(function(path), 1))
    except UsageError:
        raise
    except Exception as error:
        raise DataError(f"loader {loader!r} failed on {path!r}: {type(error).__name__}: {error}") from error
