"""The tests of a program in the one form that loaders write and the judge reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from workflows.errors import DataError, did_you_mean

Kind = Literal["stdio", "call", "assert"]
CheckerType = Literal["standard", "unordered_tokens", "cf_rearrange_string", "custom"]
Whitespace = Literal["tokens", "lines"]
ArgsForm = Literal["exact", "line", "list"]


@dataclass(frozen=True, slots=True)
class StdioCase:
    """What the program reads, and what it should write."""

    input: str
    output: str

    @property
    def characters(self) -> tuple[int, int]:
        """Of what goes in, and of what should come out."""
        return len(self.input), len(self.output)


@dataclass(frozen=True, slots=True)
class CallCase:
    """Arguments and the value that the function should return, both JSON values.

    `form` says what the writing of the arguments leaves open: nothing ("exact"), whether one list is to be
    spread ("line"), or whether a list of arguments is one argument ("list"); the function's number of
    parameters then decides. With `wrapped` the value may also be the only item of `expected`: data sets with
    parallel lists of inputs and outputs (APPS) may wrap each output in a list, and then wrap all of them.
    """

    args: tuple[Any, ...]
    expected: Any
    form: ArgsForm = "exact"
    wrapped: bool = False

    @property
    def characters(self) -> tuple[int, int]:
        return len(json.dumps(self.args)), len(json.dumps(self.expected))


@dataclass(frozen=True, slots=True)
class AssertCase:
    """A test in Python that calls the program's functions by name and raises where one is wrong."""

    code: str

    @property
    def characters(self) -> tuple[int, int]:
        return len(self.code), 0


Case = StdioCase | CallCase | AssertCase
_CASES: Final[dict[str, Any]] = {"stdio": StdioCase, "call": CallCase, "assert": AssertCase}


@dataclass(frozen=True, slots=True)
class CodeTests:
    """All tests of one problem; the cases are of one kind.

    Args:
        fn_name: the function that call tests call; what an assert's `candidate` stands for.
        checker: how the output of a stdio test is compared; "custom" runs `checker_code`, which defines
            `check(input, output, expected)`.
        setup: Python that runs before each assert, where the assert runs.
        whitespace: whether an output's line breaks count ("lines") or separate words as blanks do.
        time_limit_seconds: CPU time of a case that the statement or the data set gives.
        packages: modules that tests import and that Python does not have; a sandbox must be given them.
        strict_bool: a call that should return 1 may not return True, nor the other way round.

    Raises:
        DataError: fields that don't fit together.
    """

    kind: Kind
    cases: tuple[Case, ...]
    fn_name: str | None = None
    checker: CheckerType = "standard"
    checker_code: str = ""
    setup: str = ""
    whitespace: Whitespace = "tokens"
    time_limit_seconds: float | None = None
    strict_bool: bool = False
    packages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _one_of("kind", self.kind, get_args(Kind))
        _one_of("checker", self.checker, get_args(CheckerType))
        _one_of("whitespace", self.whitespace, get_args(Whitespace))
        if not isinstance(self.strict_bool, bool):
            raise DataError(f"strict_bool of tests must be true or false, got {self.strict_bool!r}")
        if self.kind == "call" and not self.fn_name:
            raise DataError("tests that call a function need its name, fn_name")
        if self.checker == "custom" and not self.checker_code.strip():
            raise DataError(
                "tests with checker 'custom' need checker_code, which defines check(input, output, expected)"
            )
        if self.time_limit_seconds is not None and not 0 < self.time_limit_seconds < 1e6:
            raise DataError(f"time_limit_seconds of tests must be above 0, got {self.time_limit_seconds!r}")
        if wrong := [case for case in self.cases if not isinstance(case, _CASES[self.kind])]:
            raise DataError(f"tests of kind {self.kind!r} hold a {type(wrong[0]).__name__}")

    def to_json(self) -> dict[str, Any]:
        """JSON values; what is as usual is left out, but for kind, fn_name, checker, setup and cases."""
        out: dict[str, Any] = {
            "kind": self.kind,
            "fn_name": self.fn_name,
            "checker": self.checker,
            "setup": self.setup,
            "cases": [_case_to_json(case) for case in self.cases],
        }
        if self.checker_code:
            out["checker_code"] = self.checker_code
        if self.whitespace != "tokens":
            out["whitespace"] = self.whitespace
        if self.packages:
            out["packages"] = list(self.packages)
        if self.strict_bool:
            out["strict_bool"] = True
        if self.time_limit_seconds is not None:
            out["time_limit_seconds"] = self.time_limit_seconds
        return out

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CodeTests:
        """What `to_json` wrote.

        Raises:
            DataError: a key or a value that it does not write.
        """
        fields = dict(value)
        kind = fields.get("kind")
        _one_of("kind", kind, get_args(Kind))
        _known(fields, cls.__slots__, "tests")
        fields["cases"] = tuple(_case_from_json(str(kind), case) for case in _list(fields.get("cases")))
        fields["setup"] = fields.get("setup") or ""
        fields["packages"] = tuple(map(str, _list(fields.get("packages") or [])))
        return cls(**fields)

    def with_time_limit(self, seconds: float | None) -> CodeTests:
        """With this limit of CPU time for each case; unchanged if None."""
        return self if seconds is None else replace(self, time_limit_seconds=float(seconds))


def _case_to_json(case: Case) -> dict[str, Any]:
    if isinstance(case, AssertCase):
        return {"code": case.code}
    if isinstance(case, StdioCase):
        return {"input": case.input, "output": case.output}
    out = {"args": list(case.args), "expected": case.expected}
    if case.form != "exact":
        out["form"] = case.form
    if case.wrapped:
        out["wrapped"] = True
    return out


def _case_from_json(kind: str, case: Any) -> Case:
    make = _CASES[kind]
    if not isinstance(case, Mapping):
        raise DataError(f"a test of kind {kind!r} is {case!r:.80}; expected {{{', '.join(make.__slots__)}}}")
    _known(case, make.__slots__, f"a test of kind {kind!r}")
    fields = dict(case)
    if kind == "call":
        fields["args"] = tuple(_list(fields.get("args")))
    elif wrong := [name for name in make.__slots__ if not isinstance(fields.get(name), str)]:
        raise DataError(
            f"{wrong[0]} of a test of kind {kind!r} is {fields.get(wrong[0])!r:.80}; expected a text"
        )
    try:
        made: Case = make(**fields)
    except TypeError:
        needs = ", ".join(make.__slots__[:2])
        raise DataError(
            f"a test of kind {kind!r} needs {needs}; got {', '.join(fields) or 'nothing'}"
        ) from None
    return made


def _known(value: Mapping[str, Any], names: Any, what: str) -> None:
    for key in value:
        if key not in names:
            raise DataError(f"{what} can't have the key {key!r}{did_you_mean(str(key), names)}")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise DataError(f"tests: expected a list, got {value!r:.80}")
    return list(value)


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise DataError(
            f"{name} of tests is {value!r}{did_you_mean(str(value), known)}; one of {', '.join(known)}"
        )
