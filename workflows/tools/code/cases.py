"""Tests of programs, from every encoding that data sets use.

    {"kind": …, "cases": […]}                      what `CodeTests.to_json` writes
    [{"input" | "stdin": …, "output" | "stdout" | "expected_output": …}, …]
    {"inputs": […], "outputs": […]}                parallel lists, also under singular names; a list of such
    ["assert f(1) == 2", …]                        MBPP's `test_list`; with `test_setup_code` beside it
    {"test": "def check(candidate): …", "entry_point": "f"}     HumanEval, and MultiPL-E's MBPP
    "def check(candidate): …"                      Python as such
    "def test_f(): assert f(1) == 2"               pytest's functions, unittest's classes (`testcode.py`)
    {"tests" | "test_cases" | "public_tests" | "private_tests" | …: any of these}

Each may be an object or JSON text of it, at any depth. The name of the function (`fn_name`,
`function_name`, `func_name`, `entry_point`), the judge (`checker_type`, `special_judge`, `checker`,
`checker_code`) and the limit of time count from any level, `metadata` included; the innermost wins.

**Arguments of a call.** A text holds one argument a line, each JSON (or a Python literal; else the line
itself is the text). A list is the list of arguments. A list stays a list: nothing goes through `str()`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from workflows.errors import DataError
from workflows.tools.code.codetests import AssertCase, CallCase, Case, CodeTests, StdioCase
from workflows.tools.code.names import defined_names, parse_python
from workflows.tools.code.statement import checker_of, split_batch, time_limit
from workflows.tools.code.testcode import function_name, packages_of, runnable

__all__ = ["AssertCase", "CallCase", "CodeTests", "StdioCase", "read_tests"]

_INPUT: Final = ("input", "stdin", "args")
_OUTPUT: Final = ("output", "stdout", "expected_output", "expected")
_WRAPPERS: Final = (
    *("tests", "test_cases", "public_tests", "public_test_cases", "test_list", "input_output"),
    *("private_tests", "private_test_cases", "generated_tests", "cases"),
)
_NAMES: Final = ("fn_name", "function_name", "func_name", "entry_point")
_JUDGES: Final = ("checker_type", "special_judge", "checker")
_MAX_DEPTH: Final = 8


@dataclass(frozen=True, slots=True)
class _Context:
    """What the levels above a case said."""

    fn_name: str | None = None
    checker: str | None = None
    checker_code: str = ""
    setup: str = ""
    whitespace: str | None = None
    time_limit_seconds: float | None = None
    strict_bool: bool = False

    def within(self, level: Mapping[str, Any]) -> _Context:
        """With what this level says on top."""
        for key in ("metadata", "extra_info"):
            if isinstance(inner := _unjson(level.get(key)), Mapping):
                self = self.within(inner)
        judge = _first_text(level, _JUDGES)
        code = _first_text(level, ("checker_code",))
        if judge and "def check" in judge:  # `checker` holds code in some data sets, a name in others
            judge, code = "custom", judge
        setup = "\n".join(
            filter(None, (_first_text(level, (k,)) for k in ("test_imports", "test_setup_code", "setup")))
        )
        limit = level.get("time_limit_seconds", self.time_limit_seconds)
        return _Context(
            fn_name=function_name(_first_text(level, _NAMES)) or self.fn_name,
            checker=judge or ("custom" if code else self.checker),
            checker_code=code or self.checker_code,
            setup=setup or self.setup,
            whitespace=_first_text(level, ("whitespace",)) or self.whitespace,
            time_limit_seconds=_number(limit),
            strict_bool=level.get("strict_bool") is True or self.strict_bool,
        )


@dataclass(frozen=True, slots=True)
class _Raw:
    """One test before it is known what kind the whole set is of."""

    context: _Context
    input: Any = None
    output: Any = None
    code: str | None = None
    parallel: bool = False  # from parallel lists
    exact: bool = False  # a list of arguments, and nothing else


def read_tests(
    encoding: Any, problem: str = "", fn_name: str | None = None, metadata: Mapping[str, Any] | None = None
) -> CodeTests:
    """The tests that `encoding` holds, in any of the encodings above.

    Args:
        problem: the statement, for what it says of batches, of the judge, and of the limit of time.
        fn_name: the function's name where the encoding has none.
        metadata: of the row; its `fn_name` counts as the outermost.

    Raises:
        DataError: not one of these encodings, kinds of tests mixed, or a field that can't be.
    """
    if isinstance(encoding, CodeTests):
        return encoding
    encoding = _unjson(encoding)
    if isinstance(encoding, Mapping) and "kind" in encoding:
        tests = _runnable(CodeTests.from_json(encoding))
        return tests if tests.time_limit_seconds else replace(tests, time_limit_seconds=time_limit(problem))
    outer = _Context(fn_name=function_name(fn_name)).within({"metadata": metadata or {}})
    raw = list(_walk(encoding, outer, 0))
    told = next((r.context for r in raw), outer)
    common: dict[str, Any] = {
        "fn_name": told.fn_name or next((r.context.fn_name for r in raw if r.context.fn_name), None),
        "checker_code": told.checker_code,
        "checker": _checker(told.checker, problem),
        "setup": told.setup,
        "whitespace": told.whitespace or "tokens",
        "time_limit_seconds": told.time_limit_seconds or time_limit(problem),
        "strict_bool": told.strict_bool,
    }
    kinds = {"assert" if r.code is not None else "call" if common["fn_name"] else "stdio" for r in raw}
    if len(kinds) > 1:
        raise DataError(f"tests of two kinds in one set, {' and '.join(sorted(kinds))}; keep to one")
    kind = kinds.pop() if kinds else ("call" if common["fn_name"] else "stdio")
    cases: list[Case] = []
    # one output that is no list of one item shows that outputs stand as they are
    wrapped = all(isinstance(one.output, list) and len(one.output) == 1 for one in raw if one.parallel)
    for one in raw:
        if kind == "assert":
            cases.append(AssertCase(_with_call(str(one.code), common["fn_name"])))
        elif kind == "call":
            cases.append(_call_case(one, wrapped and one.parallel))
        else:
            whole = StdioCase(_as_text(one.input), _as_text(one.output))
            cases += split_batch(problem, whole, common["checker"])
    return _runnable(CodeTests(kind=kind, cases=tuple(cases), **common))  # type: ignore[arg-type]


def _runnable(tests: CodeTests) -> CodeTests:
    """Tests with the packages that they need, after refusing what no sandbox can run."""
    if tests.kind != "assert":
        return tests
    codes = [case.code for case in tests.cases if isinstance(case, AssertCase)]
    for code in codes:
        runnable(code)
    packages = {name for code in [tests.setup, *codes] for name in packages_of(code)}
    return replace(tests, packages=tuple(sorted(packages)))


def _walk(value: Any, context: _Context, depth: int) -> Iterator[_Raw]:
    if depth > _MAX_DEPTH:
        raise DataError("tests are nested too deeply")
    value = _unjson(value)
    if value is None:
        return
    if isinstance(value, str):
        if value.strip():
            yield _Raw(context, code=_python(value))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _walk(item, context, depth + 1)
    elif isinstance(value, Mapping):
        yield from _walk_mapping(value, context.within(value), depth)
    else:
        raise DataError(f"tests: expected a list, an object or JSON text of one, got {value!r:.80}")


def _walk_mapping(value: Mapping[str, Any], context: _Context, depth: int) -> Iterator[_Raw]:
    inputs, outputs = _unjson(value.get("inputs")), _unjson(value.get("outputs"))
    if isinstance(inputs, list) and isinstance(outputs, list):
        if len(inputs) != len(outputs):
            raise DataError(
                f"tests: {len(inputs)} inputs and {len(outputs)} outputs; each input needs its output"
            )
        for one, other in zip(inputs, outputs, strict=True):
            yield _Raw(context, one, other, parallel=True)
        return
    input_key = next((k for k in _INPUT if k in value), None)
    output_key = next((k for k in _OUTPUT if k in value), None)
    if output_key is not None:
        given = value[input_key] if input_key else ""
        if input_key not in (None, "args") and _are_parallel(_unjson(given), _unjson(value[output_key])):
            for one, other in zip(_unjson(given), _unjson(value[output_key]), strict=True):
                yield _Raw(context, one, other, parallel=True)
            return
        yield _Raw(context, given, value[output_key], exact=input_key == "args")
        return
    for key in _WRAPPERS:
        if value.get(key):
            yield from _walk(value[key], context, depth + 1)
            return
    for key in ("code", "assert", "test"):
        if isinstance(code := value.get(key), str) and code.strip():
            yield _Raw(context, code=_python(code))
            return
    if not any(key in value for key in _WRAPPERS) and not isinstance(inputs, list):
        raise DataError(
            f"tests: an object with {', '.join(map(str, value)) or 'no key'} is no test; "
            "the encodings are listed in workflows/tools/code/cases.py"
        )


def _are_parallel(inputs: Any, outputs: Any) -> bool:
    """Whether two lists are the inputs and outputs of as many cases, and not the lines of one case.

    As many texts on both sides are; a list beside another number of lines is one case.
    """
    both = (inputs, outputs)
    if not all(isinstance(one, list) and one and all(isinstance(x, str) for x in one) for one in both):
        return False
    return len(inputs) == len(outputs)


def _python(text: str) -> str:
    if parse_python(text) is None:
        raise DataError(f"tests: neither JSON nor Python: {text!r:.80}")
    return text


def _with_call(code: str, fn_name: str | None) -> str:
    """HumanEval's `check(candidate)` is only defined; without a call nothing would be tested."""
    if "check" not in defined_names(code) or not fn_name:
        return code
    tree = parse_python(code)
    calls = (
        [n for n in tree.body if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)] if tree else []
    )
    return code if calls else f"{code.rstrip()}\n\ncheck({fn_name})\n"


def _call_case(raw: _Raw, wrapped: bool) -> CallCase:
    given = raw.input
    if isinstance(given, str):
        args = tuple(_argument(line) for line in given.strip().split("\n")) if given.strip() else ()
        if (
            len(args) > 1
            and not all(_is_json(line) for line in given.strip().split("\n"))
            and _is_json(given)
        ):
            args = (json.loads(given),)  # one argument over several lines
        expected = _argument(raw.output) if isinstance(raw.output, str) else raw.output
        return CallCase(args, expected, "line", wrapped)
    if isinstance(given, list | tuple):
        return CallCase(tuple(given), raw.output, "exact" if raw.exact else "list", wrapped)
    return CallCase((given,), raw.output, "exact", wrapped)


def _argument(text: str) -> Any:
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(text.strip())
            json.dumps(value)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        return value
    return text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _as_text(value: Any) -> str:
    """What a program reads or writes: a list is its lines, and what is no text is its JSON."""
    if isinstance(value, list):
        return "\n".join(_as_text(item) for item in value)
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _unjson(value: Any) -> Any:
    """The object or list that a JSON text holds; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return _unjson(json.loads(value))
        except (ValueError, RecursionError):
            return value
    return value


def _checker(told: str | None, problem: str) -> str:
    if told is None or told in ("", "auto"):
        return checker_of(problem)
    return {"true": "standard", "false": "standard", "none": "standard"}.get(told.lower(), told)


def _first_text(level: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    for key in keys:
        value = level.get(key)
        if isinstance(value, list) and value and all(isinstance(line, str) for line in value):
            value = "\n".join(value)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None


def _number(value: Any) -> float | None:
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None
    )
