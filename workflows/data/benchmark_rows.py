"""Rows of HumanEval and MBPP, as published and as MultiPL-E has them.

Their tests are Python statements. `check(candidate)` becomes one case for each of its asserts where it
is made of asserts only, else one case.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Mapping
from typing import Any, Final

from workflows.data.code_rows import Tests, assert_tests, code_draft
from workflows.data.fields import BAD_FIELD, BAD_TESTS, NO_TESTS, Draft, Unusable, label, problem_text
from workflows.tools.code.testcode import function_name

_CHECK: Final = "check"


def from_humaneval(row: Mapping[str, Any], public_tests: int) -> Draft:
    """`{task_id, prompt, entry_point, canonical_solution, test}` of HumanEval (arXiv:2107.03374).

    Its examples are in the prompt, so no test is public, whatever `public_tests` says; `check` as it is
    published makes one private case. What the prompt defines beside the function (imports, helpers) is
    the tests' setup, because some of them call it.
    """
    prompt, fn_name = problem_text(row.get("prompt"), "prompt"), _entry_point(row)
    case = f"{without_numpy(_test_source(row, 'test'))}\n\ncheck({fn_name})\n"
    solution = row.get("canonical_solution")
    return code_draft(
        prompt,
        [],
        assert_tests([case], fn_name, _beside(prompt, fn_name)),
        public_tests,
        fn_name=fn_name,
        solution=prompt + solution if isinstance(solution, str) and solution.strip() else None,
        task_id=label(row, "task_id"),
        split=label(row, "split"),
    )


def from_mbpp(row: Mapping[str, Any], public_tests: int) -> Draft:
    """MBPP (arXiv:2108.07732): as published, or as MultiPL-E (arXiv:2208.08227) has it.

    Published: `{task_id, text or prompt, code, test_list, test_setup_code or test_imports,
    challenge_test_list}`. MultiPL-E: `{name, prompt, entry_point, test}`. The first `public_tests`
    asserts are public; challenge tests and the program `test` of MBPP+ (arXiv:2305.01210), which is one
    case, are always private.
    """
    as_published = row.get("test_list") is not None
    return _published(row, public_tests) if as_published else _multiple(row, public_tests)


def _published(row: Mapping[str, Any], public_tests: int) -> Draft:
    problem = problem_text(row.get("text") or row.get("prompt"), "text")
    cases = _statements(row.get("test_list"), "test_list")
    if not cases:
        raise Unusable(NO_TESTS, "test_list is empty")
    challenge = _statements(row.get("challenge_test_list"), "challenge_test_list")
    plus = row.get("test")
    if isinstance(plus, str) and plus.strip():
        _parsed(plus, "test")
        challenge.append(without_numpy(plus.strip()))
    setup = row.get("test_setup_code") or "\n".join(_statements(row.get("test_imports"), "test_imports"))
    code = row.get("code") if isinstance(row.get("code"), str) else None
    fn_name = _tested_function(cases[0], code)
    return code_draft(
        problem,
        None,
        assert_tests([*cases, *challenge], fn_name, setup),
        min(public_tests, len(cases)),
        fn_name=fn_name,
        solution=code,
        task_id=label(row, "task_id"),
        split=label(row, "split"),
        source=label(row, "source"),
    )


def _multiple(row: Mapping[str, Any], public_tests: int) -> Draft:
    language = row.get("language", "py")
    if language not in ("py", "python"):
        raise Unusable(BAD_FIELD, f"language is {language!r:.30}, expected py")
    prompt = problem_text(row.get("prompt"), "prompt")
    fn_name = _entry_point(row)
    return code_draft(
        prompt,
        None,
        _check_tests(_test_source(row, "test"), fn_name),
        public_tests,
        fn_name=fn_name,
        task_id=label(row, "name"),
        split=label(row, "split"),
        source=label(row, "source"),
    )


def _entry_point(row: Mapping[str, Any]) -> str:
    name = row.get("entry_point")
    name = function_name(name) if isinstance(name, str) else name
    if not isinstance(name, str) or not name.isidentifier():
        raise Unusable(BAD_FIELD, f"entry_point is {name!r:.60}, expected the name of a function")
    return name


def _test_source(row: Mapping[str, Any], name: str) -> str:
    source = row.get(name)
    if not isinstance(source, str) or not source.strip():
        raise Unusable(NO_TESTS, f"{name} is {source!r:.60}, expected Python code")
    if f"def {_CHECK}(" not in source:
        raise Unusable(BAD_TESTS, f"{name} defines no function {_CHECK}(candidate)")
    _parsed(source, name)
    return source.strip()


def without_numpy(source: str) -> str:
    """A test of EvalPlus that also runs where numpy is not installed.

    Such tests import numpy to compare floats within a tolerance; what a program returns is then never an
    array. Where numpy is missing, a stand-in with `allclose` and the names that they mention takes its
    place. Other sources come back as they are.
    """
    return _NUMPY_IMPORT.sub(_NUMPY_OR_LESS, source, count=1) if "allclose" in source else source


_NUMPY_IMPORT: Final = re.compile(r"^import numpy as np[ \t]*$", re.MULTILINE)
_NUMPY_OR_LESS: Final = """try:
    import numpy as np
except ImportError:
    class np:
        class ndarray: pass
        float16 = float32 = float64 = float
        @staticmethod
        def allclose(a, b, rtol=1e-05, atol=1e-08):
            if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
                return len(a) == len(b) and all(np.allclose(x, y, rtol, atol) for x, y in zip(a, b))
            return a == b or abs(a - b) <= atol + rtol * abs(b)"""


def _statements(value: Any, name: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Unusable(BAD_TESTS, f"{name} is {value!r:.60}, expected a list of texts")
    statements = [item.strip() for item in value if item.strip()]
    for statement in statements:
        _parsed(statement, name)
    return statements


def _parsed(source: str, name: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unusable(BAD_TESTS, f"{name} is no Python code: {error}") from error


def _check_tests(source: str, fn_name: str) -> Tests:
    """One case per assert of `check`, the function by its name; the whole source where it does more."""
    tree = _parsed(source, "test")
    check = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == _CHECK)
    body = [node for node in check.body if not isinstance(node, ast.Pass)]
    beside = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    runs_only_check = all(node is check or node in beside or _calls_check(node) for node in tree.body)
    if not (body and runs_only_check and all(isinstance(node, ast.Assert) for node in body)):
        return assert_tests([source if _calls(tree) else f"{source}\n\ncheck({fn_name})\n"], fn_name)
    candidate = check.args.args[0].arg if check.args.args else ""
    cases = [ast.unparse(_Renamed(candidate, fn_name).visit(node)) for node in body]
    return assert_tests(cases, fn_name, "\n".join(map(ast.unparse, beside)))


class _Renamed(ast.NodeTransformer):
    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.new, node.ctx) if node.id == self.old else node


def _calls_check(node: ast.stmt) -> bool:
    """`def test_check(): check(f)` or a call without arguments that matter: `test_check()`, `check(f)`."""
    inner = node.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test") else [node]
    return all(isinstance(n, ast.Expr) and isinstance(n.value, ast.Call) for n in inner)


def _calls(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) for node in tree.body)


def _tested_function(case: str, code: str | None) -> str | None:
    """The function that an assert calls: one that `code` defines, else the first that is no built-in."""
    calls = (node for node in ast.walk(_parsed(case, "test_list")) if isinstance(node, ast.Call))
    called = [call.func.id for call in calls if isinstance(call.func, ast.Name)]
    try:
        defined = {n.name for n in ast.walk(ast.parse(code or "")) if isinstance(n, ast.FunctionDef)}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        defined = set()
    free = [name for name in called if not hasattr(builtins, name)]
    return next((name for name in called if name in defined), None) or next(iter(free), None)


def _beside(prompt: str, fn_name: str) -> str:
    """What a prompt defines beside the function: it ends within that function, which is cut away."""
    lines = prompt.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith((f"def {fn_name}(", f"def {fn_name} ("))]
    return "\n".join(lines[: starts[-1]]).strip() if starts else ""
