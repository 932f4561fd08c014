"""Tests as files: pytest functions and unittest classes as one piece of Python that runs by itself.

A data set's test file is written for a runner, imports the program as a module and asks for packages. Here it
becomes a case: its tests are called one after the other, names from the program's module are the program's,
and pytest is a stand-in (`box_pytest.py`). What no sandbox can do is refused when the tests are read.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from workflows.errors import DataError
from workflows.tools.code.names import parse_python

PROGRAM_MODULES: Final = ("solution", "submission", "program", "main", "your_module", "my_module")
PYTEST_NAMES: Final = frozenset({"raises", "approx", "mark", "param", "fail", "skip", "main"})
_RUN_FUNCTIONS: Final = "_run_functions(globals())"
_RUN_CLASSES: Final = "_run_classes(globals())"


@lru_cache(maxsize=1024)
def runnable(code: str) -> str:
    """A test's text with all that a runner would add; unchanged if it runs by itself.

    Raises:
        DataError: it needs what a sandbox can't give: fixtures, patches inside the program, unknown parts of
            pytest.
    """
    tree = parse_python(code)
    if tree is None or not _is_for_a_runner(tree):
        return code
    _refuse_what_can_not_run(tree)
    changed = _WithoutModules(_program_modules(tree)).visit(tree)
    changed.body = [node for node in changed.body if not _starts_a_runner(node)]
    ends = []
    if not _runs_by_itself(tree):
        ends += [_RUN_FUNCTIONS] if _has_functions(changed) else []
        ends += [_RUN_CLASSES] if _has_classes(changed) else []
    return "\n".join([_stand_in(), ast.unparse(changed), *ends, ""])


def missing_packages(packages: Iterable[str], folders: Iterable[str]) -> list[str]:
    """Those of `packages` that none of the folders holds."""
    paths = [Path(folder) for folder in folders]
    return [
        name
        for name in packages
        if not any((path / name).is_dir() or any(path.glob(f"{name}.*")) for path in paths)
    ]


def program_names(code: str) -> frozenset[str]:
    """The names that a test imports from the program's module."""
    tree = parse_python(code)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)] if tree else []
    names = {alias.name for node in imports if node.module in PROGRAM_MODULES for alias in node.names}
    return frozenset(names - {"*"})


def function_name(name: str | None) -> str | None:
    """The name by which a program's function is called; of `Solution().twoSum` its last part."""
    method = re.fullmatch(r"\s*[A-Za-z_]\w*(?:\(\))?\.([A-Za-z_]\w*)\s*", name or "")
    return method[1] if method else name


def _is_solution(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Solution"
        and not node.args
    )


@lru_cache(maxsize=1024)
def packages_of(code: str) -> tuple[str, ...]:
    """The modules that a test can't do without and that neither Python nor the program has."""
    tree = parse_python(code)
    own = {*PROGRAM_MODULES, "pytest"}
    names = {name.partition(".")[0] for name in _imports(tree)} if tree else set()
    return tuple(sorted(names - own - sys.stdlib_module_names))


def _imports(tree: ast.AST) -> Iterator[str]:
    """Modules that are imported, but for those whose absence the code itself handles."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module and not node.level:
                yield node.module
        elif not isinstance(node, ast.Try):
            yield from _imports(node)


def _is_for_a_runner(tree: ast.Module) -> bool:
    imports = {name.partition(".")[0] for name in _imports(tree)}
    if imports & {"pytest", *PROGRAM_MODULES} or any(map(_is_solution, ast.walk(tree))):
        return True
    return (_has_functions(tree) or _has_classes(tree)) and not _runs_by_itself(tree)


def _runs_by_itself(tree: ast.Module) -> bool:
    """Whether a statement of the file itself asserts or calls a function of the file."""
    definitions = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
    names = {node.name for node in tree.body if isinstance(node, definitions)}
    statements = [
        node for node in tree.body if not isinstance(node, definitions) and not _starts_a_runner(node)
    ]
    return any(
        isinstance(part, ast.Assert)
        or (isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in names)
        for node in statements
        for part in ast.walk(node)
    )


def _has_functions(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name.startswith("test") for node in tree.body)


def _has_classes(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.ClassDef)
        and any(isinstance(part, ast.FunctionDef) and part.name.startswith("test") for part in node.body)
        for node in tree.body
    )


def _starts_a_runner(node: ast.stmt) -> bool:
    """`unittest.main()`, `pytest.main([…])`, also under `if __name__ == "__main__"`."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Compare) and ast.unparse(node.test.left) == "__name__"
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func) in (
        "unittest.main",
        "pytest.main",
        "sys.exit",
    )


def _refuse_what_can_not_run(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            _refuse_mocks(node)
        for name in _pytest_names(node):
            if name not in PYTEST_NAMES:
                raise DataError(
                    f"a test uses pytest.{name}; there are raises, approx, mark, param, fail and skip"
                )
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            _refuse_fixtures(node, 0)
        elif isinstance(node, ast.ClassDef) and not any("TestCase" in ast.unparse(b) for b in node.bases):
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name.startswith("test"):
                    _refuse_fixtures(part, 1)


def _pytest_names(node: ast.AST) -> list[str]:
    """What a node takes from pytest."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pytest":
        return [node.attr]
    if isinstance(node, ast.ImportFrom) and node.module == "pytest":
        return [alias.name for alias in node.names]
    return []


def _refuse_mocks(node: ast.Import | ast.ImportFrom) -> None:
    of = [f"{node.module}."] if isinstance(node, ast.ImportFrom) else [""]
    if any(f"{of[0]}{alias.name}".startswith("unittest.mock") for alias in node.names):
        raise DataError(
            "a test patches what the program uses (unittest.mock); the program runs in a process of its own, "
            "which no test reaches"
        )


def _refuse_fixtures(function: ast.FunctionDef, own: int) -> None:
    wanted = [argument.arg for argument in function.args.args[own:]]
    if wanted and not any("parametrize" in ast.unparse(decorator) for decorator in function.decorator_list):
        raise DataError(
            f"test {function.name} asks for the fixture {wanted[0]!r}; a sandbox has no fixtures of pytest"
        )


def _program_modules(tree: ast.Module) -> frozenset[str]:
    return frozenset(name for name in _imports(tree) if name in PROGRAM_MODULES)


class _WithoutModules(ast.NodeTransformer):
    """Names of the program instead of those of its module, and no import of it or of pytest."""

    def __init__(self, modules: frozenset[str]) -> None:
        self._modules = modules
        self._aliases = set(modules)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | list[ast.stmt]:
        if node.module not in self._modules and node.module != "pytest":
            return node
        source = "pytest." if node.module == "pytest" else ""
        renamed = [
            ast.parse(f"{alias.asname or alias.name} = {source}{alias.name}").body[0]
            for alias in node.names
            if alias.name != "*" and (source or alias.asname not in (None, alias.name))
        ]
        return renamed or ast.Pass()

    def visit_Import(self, node: ast.Import) -> ast.AST:
        self._aliases |= {a.asname for a in node.names if a.name in self._modules and a.asname}
        kept = [alias for alias in node.names if alias.name not in self._modules and alias.name != "pytest"]
        return ast.Import(kept) if kept else ast.Pass()

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        owner = node.value
        if (isinstance(owner, ast.Name) and owner.id in self._aliases) or _is_solution(owner):
            return ast.Name(node.attr, node.ctx)
        return self.generic_visit(node)


@lru_cache(maxsize=1)
def _stand_in() -> str:
    return (
        Path(__file__)
        .with_name("box_pytest.py")
        .read_text("utf-8")
        .partition("# --- here it begins ---\n")[2]
    )
