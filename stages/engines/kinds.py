"""Engines by the name that settings give them, and the class that answers for each."""

from __future__ import annotations

import functools
import importlib.util
import types
from collections.abc import Mapping
from typing import Any, Final, cast

from stages.engines.base import EngineSpec
from stages.engines.kind import EngineKind
from stages.process.devices import DeviceNeed
from stages.weights.chat import Renderer
from workflows.errors import UsageError, did_you_mean
from workflows.plugins import load_object

KINDS: Final[Mapping[str, str]] = {
    "vllm": "stages.engines.vllm.server:VllmServer",
    "torch": "stages.engines.torch.server:TorchServer",
    "scripted": "stages.engines.scripted:ScriptedServer",
    "demonstrations": "stages.engines.demonstrations:DemonstrationServer",
    "openai": "stages.engines.openai.engine:OpenAIEngine",
}
AUTO: Final = ("vllm", "torch")  # the first of these whose packages are installed; the last if none is


def resolve_kind(kind: str) -> str:
    """The kind that `auto` stands for on this machine; any other kind as itself, if it can start here.

    Raises:
        UsageError: no such kind, or a package that it needs is not installed.
    """
    name = _named(kind)
    engine = engine_class(name)
    if missing := _missing(engine):
        raise UsageError(
            f'engine = "{kind}" needs the package {missing[0]}, which is not installed: '
            f'{engine.packages[missing[0]]}, or set engine = "auto"'
        )
    return name


def engine_class(kind: str) -> type[EngineKind]:
    """The class of an engine kind, to be asked what it can do; its packages need not be installed.

    Raises:
        UsageError: no such kind, or an import path that can't be imported.
    """
    name = _named(kind)
    return _with_defaults(load_object(KINDS.get(name, name)))


def check_spec(spec: EngineSpec) -> None:
    """Refuse an engine that can't start, before anything is started. Reads headers only.

    Raises:
        UsageError: no such kind, no usable checkpoint, or lengths and sizes that do not fit.
    """
    engine_class(resolve_kind(spec.kind)).check_spec(spec)


def renderer_of(spec: EngineSpec) -> Renderer:
    """How chats are rendered for the models of this engine."""
    return engine_class(spec.kind).renderer(spec)


def memory_estimate(spec: EngineSpec) -> float:
    """GiB of this machine's memory that an engine needs at its peak; device memory is not in it."""
    return float(engine_class(spec.kind).memory_estimate(spec))


def device_need(spec: EngineSpec, device_gib: float) -> DeviceNeed:
    """What an engine needs of each of its devices, of so many GiB, and of main memory."""
    return engine_class(spec.kind).device_need(spec, device_gib)


def installed_kinds() -> list[str]:
    """Names of the built-in engines that compute here, as far as their packages are installed."""
    engines = {name: engine_class(name) for name in KINDS}
    return [name for name, engine in engines.items() if engine.has_weights and not _missing(engine)]


def _named(kind: str) -> str:
    """The kind itself, or what `auto` stands for here."""
    if kind == "auto":
        return next((name for name in AUTO if not _missing(engine_class(name))), AUTO[-1])
    known = ["auto", *KINDS]
    if kind not in known and ":" not in kind:
        raise UsageError(
            f"there is no engine {kind!r}{did_you_mean(kind, known)}; known: {', '.join(known)}, or an "
            "import path 'package.module:Class'"
        )
    return kind


def _missing(engine: type[EngineKind]) -> list[str]:
    return [name for name in engine.packages if importlib.util.find_spec(name) is None]


@functools.cache
def _with_defaults(server: Any) -> type[EngineKind]:
    """An engine class as it is; one that is not an `EngineKind`, with the defaults of all that it lacks."""
    if not isinstance(server, type):  # a function that makes the server; its attributes are the hooks
        hooks = {name: staticmethod(hook) for name, hook in vars(server).items()}
        make = {"__new__": lambda cls, spec: server(spec)}
        return cast(type[EngineKind], type(server.__name__, (EngineKind,), {**hooks, **make}))
    if issubclass(server, EngineKind):
        return server
    return cast(type[EngineKind], types.new_class(server.__name__, (server, EngineKind), {}))
