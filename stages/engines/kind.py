"""What an engine's class says of itself before anything starts: class attributes and hooks with defaults.

Plans, checks and fingerprints ask these questions of the class, so that none of them compares an engine with
a name. They are asked without a cluster and without the engine's heavy packages: a class imports torch, vLLM
and the like where they are used, in its constructor or its methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from stages.engines.base import EngineSpec
from stages.process.devices import DeviceNeed
from stages.weights.chat import ChatRenderer, Renderer
from workflows.engine import AnyEngine

NOTHING: Mapping[str, str] = {}


class EngineKind:
    """Base of engine classes; every default is what an engine of one's own mostly wants.

    A class that does not inherit from this one gets the defaults of what it lacks
    (`stages.engines.kinds.engine_class`).
    """

    has_weights: ClassVar[bool] = False
    """Whether answers are computed from the checkpoint's weights in the spec's `dtype`, so that rounding
    them matters to training."""

    needs_checkpoint: ClassVar[bool] = True
    """Whether the engine reads the checkpoint's folder: its weights, or its tokenizer alone."""

    trainable: bool = True
    """Whether a model that answers through this engine can be trained, and so have an adapter."""

    is_sampled: ClassVar[bool] = True
    """Whether the policy itself samples the answers; if not, they can only be imitated."""

    is_remote: ClassVar[bool] = False
    """Whether the model is elsewhere: then no actor is started, and players hold what `for_player` makes."""

    packages: ClassVar[Mapping[str, str]] = NOTHING
    """Packages that must be installed for it to start, and the command that installs each."""

    pace_options: ClassVar[frozenset[str]] = frozenset()
    """Names of `engine_options` that change how fast answers come and never what they are: a run goes on
    when they change."""

    @classmethod
    def check_spec(cls, spec: EngineSpec) -> None:
        """Refuse an engine that can't start, before anything is started. Reads headers only.

        The default calls `check`, the name of this hook in version 0.1, where a class has it.

        Raises:
            UsageError: no usable checkpoint, or options, lengths and sizes that do not fit.
        """
        if check := getattr(cls, "check", None):
            check(spec)

    @classmethod
    def check_here(cls, spec: EngineSpec) -> None:
        """Refuse what this machine lacks at the moment, such as the key of an API.

        Raises:
            UsageError: naming what is missing.
        """

    @classmethod
    def check_answers(cls, spec: EngineSpec) -> None:
        """Refuse a remote model whose server does not answer now. Called by `check` alone, from this machine.

        Raises:
            UsageError: naming the address.
        """

    @classmethod
    def tokenizer_folder(cls, options: Mapping[str, Any], who: str) -> str:
        """The folder that stands for the checkpoint where `needs_checkpoint` is False; "" for none."""
        return ""

    @classmethod
    def renderer(cls, spec: EngineSpec) -> Renderer:
        """How chats become ids and ids text: by the checkpoint's tokenizer and chat template."""
        return ChatRenderer(spec.checkpoint, spec.template_options)

    @classmethod
    def memory_estimate(cls, spec: EngineSpec) -> float:
        """GiB of this machine's main memory that the engine needs at its peak; 0 where nobody knows."""
        return 0.0

    @classmethod
    def device_need(cls, spec: EngineSpec, device_gib: float) -> DeviceNeed:
        """What the engine needs of each of its devices of so many GiB, and of main memory; asked only where
        `spec.num_gpus` is set. The default takes the share that `gpu_memory_fraction` names, for good."""
        return DeviceNeed({"engine": spec.gpu_memory_fraction * device_gib}, {}, cls.memory_estimate(spec))

    @classmethod
    def said_by(cls, options: Mapping[str, Any]) -> str | None:
        """A hash of what speaks instead of weights, such as a script or a file; None where weights do."""
        return None

    @classmethod
    def weights_name(cls, options: Mapping[str, Any]) -> str | None:
        """What names the model in a run's identity instead of its checkpoint; None: the checkpoint does."""
        return None

    @classmethod
    def described(cls, spec: EngineSpec) -> str | None:
        """One line for `check` about a model that has no checkpoint here; None: the checkpoint is named."""
        return None

    @classmethod
    def for_player(cls, spec: EngineSpec, *, model_id: str, players: int) -> AnyEngine:
        """What each of so many players holds to ask a remote model; it pickles. Only where `is_remote`."""
        raise NotImplementedError(f"{cls.__name__}.is_remote is True, so it needs for_player(spec, ...)")
