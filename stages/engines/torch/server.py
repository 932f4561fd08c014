"""An engine on transformers alone, for machines without vLLM and for runs that repeat bit for bit.

Continuous batching: requests join and leave between two steps. Left out compared with vLLM: a
prefix cache over time (only prompts that join together share their prefill), paged memory, fused
kernels.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

from stages.engines.base import (
    EngineSpec,
    Weights,
    adapters_gib,
    check_length,
    check_options,
    check_request,
    logprobs_mode_of,
    require_adapter,
)
from stages.engines.kind import EngineKind
from stages.process.devices import CONTEXT_GIB, CUDA_PROCESS_GIB, DeviceNeed
from stages.process.imports import import_transformers
from stages.weights.chat import ChatRenderer
from stages.weights.checkpoints import (
    describe_checkpoint,
    require_hash,
    require_same_tensors,
    shapes_of,
    stored_dtype,
)
from stages.weights.precision import engine_dtype, weights_gib
from stages.weights.resolve import fetched
from workflows.engine import Completion, Sampling, Weighed
from workflows.errors import InfraError, RunFailed, UsageError

if TYPE_CHECKING:
    from stages.engines.torch.decoding import Row
    from stages.weights.lora import Adaptable, Adapter

_PREFILL_TOKENS = 8192  # padded tokens of one prefill: bounds its memory and how long decoding waits


class TorchServer(EngineKind):
    """`EngineServer` over a transformers model on one device.

    A request with a seed gets the same tokens in whatever batch it lands, up to float error: its
    uniform numbers are its own. `logprobs` are those of `stages.engines.base.logprobs_mode_of`.
    """

    has_weights = True
    packages: ClassVar = {"transformers": "pip install transformers"}

    def __init__(self, spec: EngineSpec) -> None:
        import torch

        import_transformers()
        from transformers import AutoModelForCausalLM, GenerationConfig

        from stages.engines.torch.decoding import Batch
        from stages.engines.torch.weighing import Weigher

        self.spec = spec
        self.version = spec.policy_version  # of the weights that all models share, or of the base
        self.versions = dict.fromkeys(spec.adapters, 0)
        self.shapes = shapes_of(spec.checkpoint)  # now: the folder may be gone when new weights come
        self.chat = ChatRenderer(spec.checkpoint)
        self.device = torch.device("cuda" if spec.num_gpus and torch.cuda.is_available() else "cpu")
        if self.device.type == "cpu" and spec.num_threads:
            torch.set_num_threads(spec.num_threads)
        chosen = engine_dtype(spec.dtype, spec.num_gpus, stored_dtype(spec.checkpoint))
        dtype = chosen if chosen == "auto" else getattr(torch, chosen)
        self.model = AutoModelForCausalLM.from_pretrained(spec.checkpoint, dtype=dtype).to(self.device).eval()
        self.vocab_size = int(self.model.get_input_embeddings().num_embeddings)
        self.end_ids = _end_ids(self.model.config, GenerationConfig, spec.checkpoint)
        self.adapters: dict[str, Adapter] = {}  # of the models that have left version 0
        self.base: Adaptable | None = None
        if spec.adapters:
            from stages.weights.lora import Adaptable

            self.base = Adaptable(self.model)
        self.batch = Batch(self.model, self.end_ids, spec.max_model_len, self._put_in_charge)
        self.cache_tokens = int(spec.kv_cache_gib * 2**30 / _cache_bytes_per_token(self.model))
        self.waiting: deque[Row] = deque()
        self.answers: dict[int, asyncio.Future[None]] = {}  # by id(row), until the row is done
        self.counts = dict.fromkeys(
            ("requests", "prompt_tokens", "cached_tokens", "response_tokens", "seconds_busy"), 0.0
        )
        self._thread = ThreadPoolExecutor(1, "decode")  # the event loop stays free while a step runs
        self._serving: asyncio.Task[None] | None = None
        self.weigher = Weigher(self.model, self._thread, _PREFILL_TOKENS, self._put_in_charge)
        self._reloading = False

    @classmethod
    def check_spec(cls, spec: EngineSpec) -> None:
        if spec.options:
            raise UsageError(
                f"engine of {spec.base_id!r}: the torch engine has no options, got "
                f"{', '.join(spec.options)}; remove engine_options"
            )
        check_length(spec)

    @classmethod
    def memory_estimate(cls, spec: EngineSpec) -> float:
        """GiB: the process with torch, the weights twice (a reload reads the new ones first), the cache twice
        (rows that join or leave copy it)."""
        weights = weights_gib(describe_checkpoint(spec.checkpoint), spec.dtype, spec.num_gpus)
        return 0.9 + 2 * weights + adapters_gib(spec) + 2 * spec.kv_cache_gib

    @classmethod
    def device_need(cls, spec: EngineSpec, device_gib: float) -> DeviceNeed:
        """Weights and, twice, the cache, which rows that join or leave copy; asleep, weights are in main
        memory, where a reload reads the new ones too."""
        weights = weights_gib(describe_checkpoint(spec.checkpoint), spec.dtype, spec.num_gpus)
        problem = None
        if spec.num_gpus > 1:
            problem = (
                f"models.{spec.base_id}.num_gpus = {spec.num_gpus:g}, but the torch engine computes on one "
                'device; set it to 1, or use engine = "vllm"'
            )
        working = {"weights": weights + adapters_gib(spec), "cache": 2 * spec.kv_cache_gib}
        return DeviceNeed({"CUDA context": CONTEXT_GIB}, working, CUDA_PROCESS_GIB + 2 * weights, problem)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "torch",
            "max_model_len": self.spec.max_model_len,
            "logprobs_mode": "processed_logprobs",
            "policy_version": self.version,
            "device": str(self.device),
            "parameters": self.model.num_parameters(),
        }

    async def generate(
        self, model_id: str, prompt_token_ids: Sequence[int], sampling: Sampling
    ) -> Completion:
        check_request(
            prompt_token_ids, sampling, max_model_len=self.spec.max_model_len, vocab_size=self.vocab_size
        )
        if self._reloading:
            raise InfraError("the engine is taking new weights; ask again")
        version, arrived = self.versions.get(model_id, self.version), time.monotonic()
        row = self._row(model_id, prompt_token_ids, sampling)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answers[id(row)] = answer
        self.waiting.append(row)
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        try:
            await answer
        except asyncio.CancelledError:
            row.finish_reason = "abort"  # leaves the batch at the next step
            raise
        finally:
            self.answers.pop(id(row), None)
        assert row.finish_reason is not None
        self._count(row)
        return Completion(
            token_ids=row.token_ids,
            logprobs=row.logprobs,
            text="",
            finish_reason=row.finish_reason,
            policy_version=version,
            logprobs_mode=logprobs_mode_of(sampling),
            num_cached_tokens=row.num_cached_tokens,
            started_after=row.started_at - arrived,
            first_token_after=row.first_token_at - arrived,
        )

    async def weigh(
        self,
        model_id: str,
        prompt_token_ids: Sequence[int],
        options: Sequence[Sequence[int]],
        temperature: float,
    ) -> Weighed:
        """One forward pass over all options of all requests that wait; steps of decoding may come between."""
        check_options(
            prompt_token_ids,
            options,
            temperature,
            max_model_len=self.spec.max_model_len,
            vocab_size=self.vocab_size,
        )
        if self._reloading:
            raise InfraError("the engine is taking new weights; ask again")
        from stages.engines.torch.weighing import Options

        version, arrived = self.versions.get(model_id, self.version), time.monotonic()
        request = Options(model_id, list(prompt_token_ids), [list(o) for o in options], temperature or 1.0)
        logprobs = await self.weigher.ask(request)
        self.counts["requests"] += 1
        self.counts["prompt_tokens"] += len(prompt_token_ids)
        mode = logprobs_mode_of(Sampling(1, temperature))
        return Weighed(logprobs, version, mode, 0, time.monotonic() - arrived)

    async def reload(self, weights: Weights) -> None:
        """Copy other weights into the model where it lies, after they were read and compared as a whole.

        Of an engine with adapters, the one of that model is exchanged.

        Raises:
            RunFailed: requests are running, the weights are not those that were announced, or their
                names or shapes are other ones. The engine then keeps what it has.
        """
        require_adapter(self.spec, weights.model_id)
        running = len(self.answers) + self.weigher.running
        if running or self._reloading:
            raise RunFailed(f"new weights while {running} requests run; wait for them first")
        self._reloading = True
        try:
            take = self._copy_weights if self.base is None else self._take_adapter
            await asyncio.get_running_loop().run_in_executor(self._thread, take, weights)
            if self.base is None:
                self.version = weights.version
            else:
                self.versions[weights.model_id] = weights.version
        finally:
            self._reloading = False

    async def sleep(self) -> None:
        if self.device.type == "cuda":
            self._move("cpu")

    async def wake(self) -> None:
        if self.device.type == "cuda":
            self._move(self.device)

    async def stats(self) -> dict[str, float]:
        return dict(self.counts)

    async def close(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
        self.weigher.close()
        for answer in self.answers.values():
            if not answer.done():
                answer.set_exception(InfraError("the engine was closed"))
        self._thread.shutdown(wait=True, cancel_futures=True)

    # Serving --------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Step until nobody waits. An error of a step fails the rows in it, which may be asked again."""
        loop = asyncio.get_running_loop()
        while self.waiting or self.batch.rows:
            joining = self._admit()
            started = time.monotonic()
            try:
                finished = await loop.run_in_executor(self._thread, self.batch.step, joining)
            except Exception as error:
                failed = [*self.batch.rows, *joining]
                self.batch.clear()
                self._answer(failed, InfraError(f"decoding failed: {type(error).__name__}: {error}"))
            else:
                self._answer(finished, None)
            self.counts["seconds_busy"] += time.monotonic() - started

    def _admit(self) -> list[Row]:
        """Rows that may join now, in order of arrival: as many as batch, cache and one prefill hold."""
        joining: list[Row] = []
        longest = max((row.most_tokens for row in self.batch.rows), default=0)
        prompt = 0
        while self.waiting:
            row = self.waiting[0]
            if row.finish_reason:  # its caller left while it waited
                self.waiting.popleft()
                continue
            rows = len(self.batch.rows) + len(joining) + 1
            longest, prompt = max(longest, row.most_tokens), max(prompt, len(row.prompt))
            fits = (
                rows <= self.spec.max_batch_size
                and rows * longest <= self.cache_tokens
                and (len(joining) + 1) * prompt <= _PREFILL_TOKENS
            )
            if not fits and rows > 1:
                break
            joining.append(self.waiting.popleft())
        return joining

    def _answer(self, rows: Sequence[Row], error: Exception | None) -> None:
        for row in rows:
            answer = self.answers.get(id(row))
            if answer is None or answer.done():
                continue
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

    def _row(self, model_id: str, prompt_token_ids: Sequence[int], sampling: Sampling) -> Row:
        from stages.engines.torch.decoding import Row

        # Without a seed of its own a request gets one from the engine's seed and its number.
        own = sampling.seed is not None
        seed = str(sampling.seed) if own else f"{self.spec.seed}/{self.counts['requests']:.0f}"
        self.counts["requests"] += 1
        stop = self._stop_check(sampling)
        return Row(list(prompt_token_ids), sampling, random.Random(seed), stop, model_id)

    def _stop_check(self, sampling: Sampling) -> Callable[[list[int]], bool] | None:
        if not sampling.stop:
            return None
        decode = self.chat.decode
        return lambda token_ids: any(stop in decode(token_ids) for stop in sampling.stop)

    def _count(self, row: Row) -> None:
        self.counts["prompt_tokens"] += len(row.prompt)
        self.counts["cached_tokens"] += row.num_cached_tokens
        self.counts["response_tokens"] += len(row.token_ids)

    def _put_in_charge(self, model_ids: Sequence[str]) -> None:
        """Tell the layers whose adapter the rows of the next forward pass go through."""
        if self.base is None or not self.adapters:
            return
        import torch

        from stages.weights.lora import Share

        if len(set(model_ids)) == 1:
            self.base.use(Share(self.adapters.get(model_ids[0])))
            return
        self.base.use(
            *(
                Share(adapter, torch.tensor(rows, device=self.device))
                for model_id, adapter in self.adapters.items()
                if (rows := [i for i, mine in enumerate(model_ids) if mine == model_id])
            )
        )

    def _take_adapter(self, weights: Weights) -> None:
        assert self.base is not None
        with fetched(weights.uri) as folder:
            require_hash(folder, weights.hash)
            adapter = self.base.read(self.spec.adapters[weights.model_id], folder)
        self.adapters[weights.model_id] = adapter.requires_grad_(False)

    def _copy_weights(self, weights: Weights) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        with fetched(weights.uri) as folder:
            require_hash(folder, weights.hash)
            require_same_tensors(folder, self.shapes, self.spec.checkpoint)
            # Read by transformers, which knows how files and parameters of each model are named.
            new = AutoModelForCausalLM.from_pretrained(folder, dtype=self.model.dtype).state_dict()
            with torch.no_grad():
                for name, tensor in self.model.state_dict().items():
                    tensor.copy_(new[name])

    def _move(self, device: Any) -> None:
        import torch

        for module in (self.model, *self.adapters.values()):
            module.to(device)
        torch.cuda.empty_cache()


def _end_ids(config: Any, generation_config: Any, folder: str) -> frozenset[int]:
    """The end tokens of a model: of its config and, where it has one, of its generation config."""
    found: set[int] = set()
    sources = [config]
    with contextlib.suppress(OSError):  # the file is optional
        sources.append(generation_config.from_pretrained(folder))
    for source in sources:
        ids = source.eos_token_id
        found.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
    return frozenset(found)


def _cache_bytes_per_token(model: Any) -> int:
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * size * model.dtype.itemsize)
