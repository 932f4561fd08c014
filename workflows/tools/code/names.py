"""Names that a piece of Python uses without binding them, and the imports that give the common ones.

Starter code of programming sites is written for a file that begins with many star imports
(`List[int]`, `deque`, `heapq`). Importing all of them takes as long as several starts of an
interpreter, so only what a program uses and does not have is imported before it runs.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import warnings
from collections.abc import Iterable
from typing import Final

_MODULES: Final = (
    *(
        "math",
        "re",
        "sys",
        "os",
        "random",
        "string",
        "itertools",
        "functools",
        "collections",
        "heapq",
        "bisect",
    ),
    *(
        "operator",
        "copy",
        "json",
        "time",
        "datetime",
        "statistics",
        "fractions",
        "decimal",
        "typing",
        "cmath",
    ),
    *("hashlib", "queue", "array", "io"),
)
_FROM: Final = {
    "typing": "List Dict Set Tuple FrozenSet Optional Union Any Callable Iterable Iterator Sequence Mapping "
    "Generator Deque DefaultDict NamedTuple TypeVar",
    "collections": "deque defaultdict Counter OrderedDict namedtuple ChainMap",
    "functools": "lru_cache cache reduce cmp_to_key partial total_ordering",
    "itertools": "accumulate chain combinations combinations_with_replacement count cycle groupby islice "
    "pairwise permutations product repeat starmap takewhile dropwhile zip_longest",
    "heapq": "heappush heappop heapify heapreplace heappushpop nlargest nsmallest",
    "bisect": "bisect_left bisect_right insort insort_left insort_right",
    "math": "gcd lcm sqrt ceil floor log log2 log10 factorial comb perm isqrt inf pi prod hypot",
    "string": "ascii_lowercase ascii_uppercase ascii_letters digits",
    "fractions": "Fraction",
    "decimal": "Decimal",
    "dataclasses": "dataclass",
    "copy": "deepcopy",
    "random": "randint",
    "queue": "PriorityQueue",
}
_SOURCE: Final = {
    **{name: f"import {name}" for name in _MODULES},
    **{name: f"from {module} import {name}" for module, names in _FROM.items() for name in names.split()},
}


# The star imports that harnesses put before a program, in their order: of one name the last counts.
_STARS: Final = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "typing"),
)


def missing_imports(code: str, besides: Iterable[str] = (), *, all_names: bool = False) -> str:
    """Import lines for the well-known names that `code` uses and lacks, but for those in `besides`.

    With `all_names` for every name that the harnesses of the benchmarks import by star: for programs, whose
    `dist` is that of math. A test's `sub` may be the program's own function, and not that of re.
    """
    sources = {**_star_sources(), **_SOURCE} if all_names else _SOURCE
    names = sorted((unbound_names(code) & sources.keys()) - set(besides))
    return "\n".join(sources[name] for name in names)


@functools.cache
def _star_sources() -> dict[str, str]:
    sources = {}
    for module in _STARS:
        loaded = importlib.import_module(module)
        names = getattr(loaded, "__all__", None) or [name for name in dir(loaded) if not name.startswith("_")]
        sources.update({name: f"from {module} import {name}" for name in names})
    return sources


def defined_names(code: str) -> set[str]:
    """Functions and classes that `code` defines at its top level; none if it does not parse."""
    tree = parse_python(code)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in tree.body if isinstance(node, kinds)} if tree else set()


def unbound_names(code: str) -> set[str]:
    """Names that `code` reads somewhere and binds nowhere, builtins aside; none if it does not parse."""
    tree = parse_python(code)
    if tree is None:
        return set()
    read: set[str] = set()
    bound: set[str] = set(dir(builtins))
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name):
                bound.add(name)
            case ast.ImportFrom(module=module, names=[ast.alias(name="*")]):
                bound.update(_FROM.get(str(module), "").split())
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                bound.update((alias.asname or alias.name).partition(".")[0] for alias in aliases)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case (
                ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name))
            ):
                bound.add(name)
            case _:
                pass
    return read - bound


def parse_python(code: str) -> ast.Module | None:
    """The syntax tree, None for what is no Python, or too deeply nested to tell."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
