"""The engine protocol on the serving side: what runs inside a Ray actor that owns a model.

`workflows.engine.Engine` is what a player sees; `stages.engines.client.EngineClient` joins the two:
it renders with a local tokenizer and sends ids to the actor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stages.weights.adapters import AdapterSpec, adapter_parameters
from stages.weights.checkpoints import CheckpointInfo, describe_checkpoint
from workflows.engine import Completion, Sampling, Weighed
from workflows.errors import InfraError, RunFailed, UsageError


class EngineGone(InfraError):
    """The engine died under a call: it answers nothing any more, and another replica may."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights as they travel: never a bare local path."""

    model_id: str
    uri: str  # a folder in Hugging Face layout, or PEFT's for an adapter, on any fsspec filesystem
    version: int
    hash: str


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How to start one engine. `kind` is vllm, torch, scripted, demonstrations, or an import path
    `package.module:Class`.

    With `adapters` the weights in `checkpoint` stay as they are: each of these models is an adapter on them,
    and is the base itself (version 0) until its first `reload`.

    `openai` is not started: it says where the API is, in `options`; `checkpoint` is its tokenizer or empty.
    """

    base_id: str
    kind: str
    checkpoint: str  # resolved: a local folder (scripted engines need none)
    max_model_len: int = 2048
    dtype: str = "auto"
    max_batch_size: int = 64  # requests decoded together
    kv_cache_gib: float = 1.0
    gpu_memory_fraction: float = 0.4
    num_gpus: float = 0.0
    num_threads: int = 0  # 0: all cores of the machine
    seed: int = 0
    policy_version: int = 0  # of the weights in `checkpoint`
    replicas: int = 1  # engines like this one, which share the calls
    restarts: int = 3  # in a row, of each replica that dies
    options: Mapping[str, Any] = field(default_factory=dict)
    template_options: Mapping[str, Any] = field(default_factory=dict)  # variables of the chat template
    adapters: Mapping[str, AdapterSpec] = field(default_factory=dict)  # by model id


class EngineServer(Protocol):
    """Lives in a Ray actor. Requests are served in any order, many at a time."""

    def describe(self) -> dict[str, Any]:
        """`max_model_len`, `logprobs_mode`, `policy_version`, `device`, `kind`, `parameters`."""
        ...

    async def generate(
        self, model_id: str, prompt_token_ids: Sequence[int], sampling: Sampling
    ) -> Completion:
        """Sample one completion; `policy_version` is that of the weights when the request arrived."""
        ...

    async def weigh(
        self,
        model_id: str,
        prompt_token_ids: Sequence[int],
        options: Sequence[Sequence[int]],
        temperature: float,
    ) -> Weighed:
        """How likely each of several continuations is. Needed by roles that choose among options only."""
        ...

    async def reload(self, weights: Weights) -> None:
        """Swap a model's weights in place, and forget cached prefixes. Refuses while requests run."""
        ...

    async def sleep(self) -> None:
        """Give device memory back where the back end can; a no-op elsewhere."""
        ...

    async def wake(self) -> None: ...

    async def stats(self) -> dict[str, float]:
        """Counters since the start: requests, prompt_tokens, cached_tokens, response_tokens, seconds_busy."""
        ...

    async def close(self) -> None: ...


def check_request(
    prompt_token_ids: Sequence[int], sampling: Sampling, *, max_model_len: int, vocab_size: int
) -> None:
    """Refuse a request that no retry can serve; its neighbours in the batch never see it.

    Raises:
        UsageError: the prompt is empty, leaves no room for an answer or holds an unknown id, or a
            sampling parameter is out of range.
    """
    length = len(prompt_token_ids)
    if not 0 < length < max_model_len:
        raise UsageError(
            f"the prompt has {length} tokens; the engine accepts 1 to {max_model_len - 1} (max_model_len "
            "minus one token for the answer); shorten the prompt or raise the engine's max_model_len"
        )
    if not 0 <= min(prompt_token_ids) <= max(prompt_token_ids) < vocab_size:
        raise UsageError(
            f"prompt ids run from {min(prompt_token_ids)} to {max(prompt_token_ids)}, but the model knows "
            f"0 to {vocab_size - 1}; the prompt was rendered with another model's tokenizer"
        )
    for name, valid, expected in (
        ("max_tokens", sampling.max_tokens >= 1, "at least 1"),
        ("temperature", 0 <= sampling.temperature < float("inf"), "0 (greedy) or more"),
        ("top_p", 0 < sampling.top_p <= 1, "above 0, at most 1"),
        ("top_k", sampling.top_k >= 0, "0 (off) or more"),
        ("min_p", 0 <= sampling.min_p < 1, "0 (off) or more, below 1"),
    ):
        if not valid:
            raise UsageError(f"sampling {name} = {getattr(sampling, name)!r}; expected {expected}")


def check_options(
    prompt_token_ids: Sequence[int],
    options: Sequence[Sequence[int]],
    temperature: float,
    *,
    max_model_len: int,
    vocab_size: int,
) -> None:
    """Refuse continuations that can't be weighed.

    Raises:
        UsageError: fewer than two, an empty or a repeated one, or as `check_request`.
    """
    longest = max((len(option) for option in options), default=0)
    if len(options) < 2 or len({tuple(option) for option in options}) < len(options) or not all(options):
        raise UsageError(
            f"options have the ids {[list(option) for option in options]}; weighing takes two or more "
            "different ones with a token each: choose words that the tokenizer tells apart"
        )
    sampling = Sampling(longest, temperature)
    for option in options:
        check_request(
            [*prompt_token_ids, *option], sampling, max_model_len=max_model_len + 1, vocab_size=vocab_size
        )


def check_length(spec: EngineSpec) -> CheckpointInfo:
    """Refuse more tokens than the checkpoint has positions for; what the checkpoint holds.

    Raises:
        UsageError: it has fewer, or the folder is not a usable checkpoint.
    """
    info = describe_checkpoint(spec.checkpoint)
    if info.max_positions and spec.max_model_len > info.max_positions:
        raise UsageError(
            f"engine of {spec.base_id!r}: max_model_len = {spec.max_model_len}, but the model in "
            f"{spec.checkpoint} knows {info.max_positions} positions; lower max_model_len"
        )
    return info


def adapters_gib(spec: EngineSpec) -> float:
    """GiB of an engine's adapters, each twice (the new one is read beside the old), in 4 bytes a number."""
    numbers = sum(
        adapter_parameters(adapter, spec.checkpoint, f"models.{model_id}.adapter.targets")
        for model_id, adapter in spec.adapters.items()
    )
    return 8 * numbers / 2**30


def require_adapter(spec: EngineSpec, model_id: str) -> None:
    """Refuse new weights for what an engine of adapters does not have, its frozen base included.

    Raises:
        RunFailed: naming its adapters.
    """
    if spec.adapters and model_id not in spec.adapters:
        raise RunFailed(
            f"the engine of {spec.base_id!r} takes new weights for its adapters only, which are "
            f"{', '.join(spec.adapters)}; got weights of {model_id!r}"
        )


def logprobs_mode_of(sampling: Sampling) -> str:
    """What the logprobs of this request are, in vLLM's words.

    `processed_logprobs`: of the distribution that was sampled, after temperature, min_p, top_k and top_p.
    Greedy decoding samples from a point mass, where that would be 0 always and tell nothing: there
    every engine gives `raw_logprobs`, of the model's own distribution at temperature 1.
    """
    return "raw_logprobs" if sampling.temperature == 0 else "processed_logprobs"
