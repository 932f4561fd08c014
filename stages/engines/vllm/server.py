"""The vLLM engine: AsyncLLM inside the engine's Ray actor, on CPU or CUDA.

vLLM gets ids and gives ids and the sampler's own logprobs; it decodes text only where a stop string
has to be found. Written against vLLM 0.32.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from stages.engines.base import (
    EngineGone,
    EngineSpec,
    Weights,
    adapters_gib,
    check_options,
    check_request,
    logprobs_mode_of,
    require_adapter,
)
from stages.engines.kind import EngineKind
from stages.engines.vllm.arguments import check_arguments, engine_arguments
from stages.engines.vllm.device_memory import vllm_need
from stages.engines.vllm.worker import ADAPTERS, OWNER
from stages.process.devices import DeviceNeed
from stages.process.imports import import_transformers
from stages.weights.checkpoints import describe_checkpoint, require_hash, require_same_tensors, shapes_of
from stages.weights.precision import weights_gib
from stages.weights.resolve import fetched
from workflows.engine import Completion, Sampling, Weighed
from workflows.errors import InfraError, RunFailed, UsageError, did_you_mean


class VllmServer(EngineKind):
    """`EngineServer` over one vLLM engine; the constructor starts it (about 20 s on two cores).

    Logprobs are those of `stages.engines.base.logprobs_mode_of`. A reload that fails halfway leaves
    the engine refusing requests: half of its weights may be new.
    """

    has_weights = True
    packages: ClassVar = {"vllm": "pip install 'cadre-rl[gpu]'"}

    def __init__(self, spec: EngineSpec) -> None:
        self.on_cuda = spec.num_gpus > 0
        # The engine core, a child process, runs its worker inside itself: one process less.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ[OWNER] = str(os.getpid())
        os.environ[ADAPTERS] = "1" if spec.adapters and not self.on_cuda else "0"
        if not self.on_cuda:
            # vLLM compiles one small function even when told to run eagerly: 18 s at the first request.
            os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        import_transformers()  # first and without what vLLM's import of it would bring along
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.spec = spec
        self.version = spec.policy_version  # of the weights that all models share, or of the base
        self.versions = dict.fromkeys(spec.adapters, 0)
        self.adapters: dict[str, Any] = {}  # vLLM's LoRARequest of the models that have left version 0
        self.info = describe_checkpoint(spec.checkpoint)
        self.shapes = shapes_of(spec.checkpoint)  # now: the folder may be gone when new weights come
        arguments = engine_arguments(spec, self.info.dtype)
        known = AsyncEngineArgs.__dataclass_fields__
        if unknown := set(arguments) - set(known):
            name = sorted(unknown)[0]
            raise UsageError(f"vLLM has no engine option {name!r}{did_you_mean(name, known)}")
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        self.running = 0
        self.refusal: str | None = None  # why no request is taken now
        self.counts = dict.fromkeys(
            ("requests", "prompt_tokens", "cached_tokens", "response_tokens", "seconds_busy"), 0.0
        )
        self._request_ids = itertools.count()
        self._busy_since = 0.0

    @classmethod
    def check_spec(cls, spec: EngineSpec) -> None:
        check_arguments(spec)

    @classmethod
    def memory_estimate(cls, spec: EngineSpec) -> float:
        """GiB of main memory: two processes with torch and vLLM, the weights, the cache where it is on CPU.

        Measured with SmolLM2-135M in bf16 (0.25 GiB): 2.1 GiB with a cache of 0.5, 2.6 GiB with one of 1.
        """
        weights = weights_gib(describe_checkpoint(spec.checkpoint), spec.dtype, spec.num_gpus)
        return 1.5 + weights + adapters_gib(spec) + (1.0 if spec.num_gpus else spec.kv_cache_gib)

    @classmethod
    def device_need(cls, spec: EngineSpec, device_gib: float) -> DeviceNeed:
        return vllm_need(spec, device_gib)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "vllm",
            "max_model_len": self.spec.max_model_len,
            "logprobs_mode": "processed_logprobs",
            "policy_version": self.version,
            "device": "cuda" if self.on_cuda else "cpu",
            "parameters": self.info.parameters,
        }

    async def generate(
        self, model_id: str, prompt_token_ids: Sequence[int], sampling: Sampling
    ) -> Completion:
        check_request(
            prompt_token_ids, sampling, max_model_len=self.spec.max_model_len, vocab_size=self.info.vocab_size
        )
        with self._request():
            # the weights that are asked, not those at the end
            version, arrived = self.versions.get(model_id, self.version), time.monotonic()
            parameters = _parameters(sampling)
            outputs, first_token_after = await self._sample(model_id, prompt_token_ids, parameters, arrived)
        token_ids = [token for output in outputs for token in output.outputs[0].token_ids]
        entries = [entry for output in outputs for entry in output.outputs[0].logprobs or ()]
        assert len(entries) == len(token_ids)
        last = outputs[-1]
        self._count(len(prompt_token_ids), last.num_cached_tokens or 0, len(token_ids))
        return Completion(
            token_ids=token_ids,
            logprobs=[entry[token].logprob for token, entry in zip(token_ids, entries, strict=True)],
            text="",
            finish_reason=_finish_reason(last.outputs[0].finish_reason),
            policy_version=version,
            logprobs_mode=logprobs_mode_of(sampling),
            num_cached_tokens=last.num_cached_tokens,
            first_token_after=first_token_after,
        )

    async def weigh(
        self,
        model_id: str,
        prompt_token_ids: Sequence[int],
        options: Sequence[Sequence[int]],
        temperature: float,
    ) -> Weighed:
        """One request for each different beginning of options: what may come next is looked up there.

        The prompt is in the prefix cache after the first of them.
        """
        check_options(
            prompt_token_ids,
            options,
            temperature,
            max_model_len=self.spec.max_model_len,
            vocab_size=self.info.vocab_size,
        )
        following: dict[tuple[int, ...], set[int]] = {}
        for option in options:
            for place, token in enumerate(option):
                following.setdefault(tuple(option[:place]), set()).add(token)
        with self._request():
            version, arrived = self.versions.get(model_id, self.version), time.monotonic()
            looked_up: dict[tuple[int, ...], dict[int, float]] = {}
            cached = None
            for beginning, tokens in following.items():
                parameters = _looks_up(sorted(tokens), temperature or 1.0)
                prompt = [*prompt_token_ids, *beginning]
                outputs, _ = await self._sample(model_id, prompt, parameters, arrived)
                (entry,) = outputs[0].outputs[0].logprobs
                looked_up[beginning] = {token: entry[token].logprob for token in tokens}
                cached = outputs[-1].num_cached_tokens if cached is None else cached
        self._count(len(prompt_token_ids), cached or 0, 0)
        return Weighed(
            [[looked_up[tuple(o[:place])][token] for place, token in enumerate(o)] for o in options],
            version,
            logprobs_mode_of(Sampling(1, temperature)),
            cached,
        )

    @contextlib.contextmanager
    def _request(self) -> Iterator[None]:
        """A request that is served: none begins while the engine refuses them, and weights wait for its end.

        Raises:
            InfraError: the engine refuses requests.
        """
        if self.refusal:
            raise InfraError(f"the engine of {self.spec.base_id!r} {self.refusal}")
        if self.running == 0:
            self._busy_since = time.monotonic()
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            if self.running == 0:
                self.counts["seconds_busy"] += time.monotonic() - self._busy_since

    async def reload(self, weights: Weights) -> None:
        """Swap weights in place and forget every cached prefix (0.3 s for SmolLM2 on CPU).

        Of an engine with adapters, the one of that model is exchanged.

        Raises:
            RunFailed: requests are running, the weights are not those that were announced or not of
                this model (the engine keeps what it has), or vLLM fails to load them (it then refuses
                every request).
        """
        require_adapter(self.spec, weights.model_id)
        if self.running or self.refusal:
            raise RunFailed(
                f"no new weights while the engine {self.refusal or f'serves {self.running} requests'}"
            )
        self.refusal = "is taking new weights; ask again"
        with contextlib.ExitStack() as held:
            try:
                folder = await asyncio.to_thread(held.enter_context, fetched(weights.uri))
                await asyncio.to_thread(self._check_weights, folder, weights)
            except BaseException:
                self.refusal = None
                raise
            try:
                if self.spec.adapters:
                    await self._take_adapter(weights.model_id, folder)
                else:
                    await self.engine.collective_rpc("swap_weights", args=(folder,))
                await self._forget_prefixes()
            except Exception as error:
                self.refusal = f"holds broken weights since version {weights.version} failed to load"
                raise RunFailed(
                    f"vLLM failed to load {weights.uri}: {type(error).__name__}: {error}"
                ) from error
        if self.spec.adapters:
            self.versions[weights.model_id] = weights.version
        else:
            self.version = weights.version
        self.refusal = None

    async def sleep(self) -> None:
        """On CUDA: weights move to main memory, the cache is dropped. On CPU nothing is given back."""
        if self.on_cuda:
            if self.running:
                raise RunFailed(f"the engine can't sleep while it serves {self.running} requests")
            self.refusal = "is asleep"
            await self.engine.sleep(level=1)

    async def wake(self) -> None:
        if self.on_cuda:
            await self.engine.wake_up()
            self.refusal = None

    async def stats(self) -> dict[str, float]:
        return dict(self.counts)

    async def close(self) -> None:
        self.refusal = "is closed"
        self.engine.shutdown()

    async def _sample(
        self, model_id: str, prompt_token_ids: Sequence[int], parameters: Any, arrived: float
    ) -> tuple[list[Any], float | None]:
        """vLLM's outputs (the first token, then the rest) and seconds to the first of them."""
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        outputs: list[Any] = []
        first_token_after = None
        prompt = tokens_input(list(prompt_token_ids))  # rendered already: no tokenizer thread on the way
        try:
            request_id, adapter = str(next(self._request_ids)), self.adapters.get(model_id)
            async for output in self.engine.generate(prompt, parameters, request_id, lora_request=adapter):
                if not outputs:
                    first_token_after = time.monotonic() - arrived
                outputs.append(output)
        except EngineDeadError as error:
            raise EngineGone(f"vLLM failed: {error.__cause__ or error}") from error
        except EngineGenerateError as error:
            raise InfraError(f"vLLM failed: {error.__cause__ or error or type(error).__name__}") from error
        except VLLMClientError as error:
            raise UsageError(f"vLLM refuses the request: {error}") from error
        return outputs, first_token_after

    def _check_weights(self, folder: str, weights: Weights) -> None:
        require_hash(folder, weights.hash)
        if not self.spec.adapters:
            # vLLM only warns of tensors that it misses, and would go on with the old ones.
            require_same_tensors(folder, self.shapes, self.spec.checkpoint)

    async def _take_adapter(self, model_id: str, folder: str) -> None:
        """vLLM reads the folder now and never again: it has room for all adapters."""
        from vllm.lora.request import LoRARequest

        number = 1 + list(self.spec.adapters).index(model_id)
        if not await self.engine.add_lora(LoRARequest(model_id, number, folder, load_inplace=True)):
            raise RunFailed(f"vLLM did not take the adapter in {folder}")
        self.adapters[model_id] = LoRARequest(model_id, number, folder)

    async def _forget_prefixes(self) -> None:
        """Old weights' cache would serve new requests. Aborted requests may hold blocks for a few steps."""
        for _ in range(100):
            if await self.engine.reset_prefix_cache():
                return
            await asyncio.sleep(0.05)
        raise RunFailed("the prefix cache is still in use after 5 s")

    def _count(self, prompt_tokens: int, cached_tokens: int, response_tokens: int) -> None:
        self.counts["requests"] += 1
        self.counts["prompt_tokens"] += prompt_tokens
        self.counts["cached_tokens"] += cached_tokens
        self.counts["response_tokens"] += response_tokens


def _parameters(sampling: Sampling) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        stop=list(sampling.stop) or None,
        detokenize=bool(sampling.stop),
        logprobs=0,  # the sampled token's only
        # Two outputs per request: its first token, whose time is a metric, and all the others.
        output_kind=RequestOutputKind.DELTA,
        stream_interval=2**30,
        skip_clone=True,
    )


def _looks_up(tokens: list[int], temperature: float) -> Any:
    """What the next token may be and how likely: the one that is sampled is thrown away."""
    from vllm import SamplingParams

    return SamplingParams(
        max_tokens=1,
        temperature=temperature,
        logprob_token_ids=tokens,
        detokenize=False,
        seed=0,
        skip_clone=True,
    )


def _finish_reason(reason: str | None) -> Any:
    if reason in ("stop", "length", "abort"):
        return reason
    raise InfraError(f"vLLM ended a request with {reason!r}")
