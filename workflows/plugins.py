"""Plug-ins by import path: `package.module:name`, or the short name of a built-in, which stands for one.

There is no registry: every process that needs a plug-in imports it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

from workflows.errors import UsageError, describe, did_you_mean

# Modules that settings of version 0.1 may name, and where they are now.
MOVED: Final[Mapping[str, str]] = {
    **{
        f"workflows.{name}": f"workflows.teams.{name}"
        for name in (
            *("code", "debate", "mask", "math", "qa_rewrite", "qa_select", "qa_summarise"),
            *("signal", "single"),
        )
    },
    "workflows.qa": "workflows.teams.qa_decompose",
    "rewards.scoring": "rewards.scoring.score",
    "stages.engines.openai": "stages.engines.openai.engine",
    "stages.engines.torch": "stages.engines.torch.server",
    "stages.engines.vllm": "stages.engines.vllm.server",
}


def load_object(path: str) -> Any:
    """What `package.module:name` names. The working directory is searched last.

    Raises:
        UsageError: not such a path, no such module or name, or the module fails when it is imported.
    """
    module_name, colon, name = path.partition(":")
    if not (colon and module_name and name) or not all(map(str.isidentifier, module_name.split("."))):
        raise UsageError(f"{path!r} is not an import path; write it as package.module:name")
    module = _import(_where_now(module_name), path)
    named = module
    for part in name.split("."):
        if not hasattr(named, part):
            raise UsageError(
                f"{path!r}: there is no {part!r} in {module_name} ({module.__file__})"
                f"{did_you_mean(part, dir(named))}"
            )
        named = getattr(named, part)
    return named


def load_plugin(use: str, options: Mapping[str, Any], builtins: Mapping[str, str], kind: str) -> Any:
    """Call what `use` names with `options`: a class, or a function that builds one.

    Args:
        builtins: short names and the import paths that they stand for.
        kind: what it should be, for messages: "workflow", "reward".

    Raises:
        UsageError: it can't be found or called, or does not take these options.
    """
    if ":" not in use and use not in builtins:
        raise UsageError(
            f"there is no built-in {kind} {use!r}{did_you_mean(use, builtins)}; built in: "
            f"{', '.join(builtins)}; your own is named by its import path, as in my_package.my_module:name"
        )
    make = load_object(builtins.get(use, use))
    if not callable(make):
        raise UsageError(
            f"{kind} {use!r} is a {type(make).__name__}, not a class or function that can be called"
        )
    _check_options(make, options, f"{kind} {use!r}")
    try:
        return make(**options)
    except UsageError as error:
        message = str(error)
        raise UsageError(message if message.startswith(kind) else f"{kind} {use!r}: {message}") from error
    except Exception as error:
        raise UsageError(
            f"{kind} {use!r} can't be built with options {dict(options)}: {describe(error)}"
        ) from error


def load_function(path: str, kind: str) -> Callable[..., Any]:
    """What `package.module:name` names, to be called: a function, a partial, a bound method, an instance
    with `__call__`, or a class with one, which is built without arguments.

    Raises:
        UsageError: as `load_object`, or it can't be called.
    """
    named = load_object(path)
    if inspect.isclass(named) and "__call__" in {name for base in named.__mro__[:-1] for name in vars(base)}:
        _check_options(named, {}, f"{kind} {path!r}")
        named = named()
    if not callable(named):
        raise UsageError(
            f"{kind} {path!r} is {_a(type(named).__name__)}, which can't be called; name a function, or an "
            "object with __call__"
        )
    function: Callable[..., Any] = named
    return function


def name_of(function: object) -> str:
    """The name of a callable in its module, the same in every process: of a partial or a bound method the
    function's, of an instance its class's."""
    code = _code_of(function)
    return str(getattr(code, "__qualname__", type(code).__qualname__)).split(".<locals>.")[-1]


def module_of(function: object) -> str:
    """The module of the function or class that `name_of` names."""
    return str(getattr(_code_of(function), "__module__", None) or "function")


def first_parameter(function: Callable[..., Any]) -> str | None:
    """The name of the first parameter that a caller fills by position; None where there is none."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # built in C without a signature
        return None
    positional = (p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    return next(positional, None)


def _code_of(named: object) -> Any:
    """The function or class whose source says what a plug-in does."""
    while True:
        if isinstance(named, functools.partial):
            named = named.func
        elif inspect.ismethod(named):
            named = named.__func__
        elif callable(named) and hasattr(named, "__wrapped__"):
            named = named.__wrapped__
        else:
            break
    if inspect.isroutine(named) or inspect.isclass(named):
        return named
    return type(named)


def _a(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def _where_now(module_name: str) -> str:
    """The module's place of today, with a note where settings name one of version 0.1."""
    if (now := MOVED.get(module_name)) is None:
        return module_name
    note = f"the module {module_name} is now {now}; settings that name it still work until version 0.3"
    warnings.warn(note, stacklevel=2)
    return now


def _import(module_name: str, path: str) -> Any:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # last, so that a folder of the user's can't shadow an installed package
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UsageError(
                f"{path!r}: there is no module {error.name!r}; searched {here} and the installed packages"
            ) from None
        raise UsageError(f"{path!r}: importing {module_name} failed: {error}") from error
    except Exception as error:
        raise UsageError(f"{path!r}: importing {module_name} failed: {describe(error)}") from error


def _check_options(make: Callable[..., Any], options: Mapping[str, Any], what: str) -> None:
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):  # built in C without a signature: let the call speak
        return
    named = {name: p for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in options:
        if name not in named and not takes_any:
            raise UsageError(
                f"{what} has no option {name!r}{did_you_mean(name, named)}; it has: "
                f"{', '.join(named) or 'none'}"
            )
    if missing := [n for n, p in named.items() if p.default is p.empty and n not in options]:
        raise UsageError(f"{what} needs option {missing[0]!r}; its options are: {', '.join(named)}")


def source_hash(use: str) -> str | None:
    """Hash of a plug-in's source file, or None for a built-in (the package version covers it).

    What is neither a function nor a class was made somewhere, with values of its own: the file of the module
    that `use` names counts too.
    """
    if ":" not in use:
        return None
    named = load_object(use)
    files = [_file_of(_code_of(named))]
    if not (inspect.isfunction(named) or inspect.isclass(named)):
        files.append(_file_of(sys.modules[_where_now(use.partition(":")[0])]))
    contents = []
    for file in dict.fromkeys(name for name in files if name is not None):
        with open(file, "rb") as source:
            contents.append(source.read())
    return content_hash(b"".join(contents)) if contents else None


def _file_of(code: Any) -> str | None:
    try:
        return inspect.getsourcefile(code)
    except TypeError:
        return None


def content_hash(content: bytes) -> str:
    """Sixteen bytes of BLAKE2b in hex, as fingerprints hold them."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
