"""Plug-ins by import path: `package.module:name`, or the short name of a built-in, which stands for one.

There is no registry: every process that needs a plug-in imports it.
"""

from __future__ import annotations

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
    """Hash of a plug-in's source file, or None for a built-in (the package version covers it)."""
    if ":" not in use:
        return None
    try:
        file = inspect.getsourcefile(inspect.unwrap(load_object(use)))
    except TypeError:
        return None
    if file is None:
        return None
    with open(file, "rb") as source:
        return content_hash(source.read())


def content_hash(content: bytes) -> str:
    """Sixteen bytes of BLAKE2b in hex, as fingerprints hold them."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
