"""How likely given continuations are: padded forward passes over them, without a cache.

Shapes: B sequences (a prompt with one of its options), L their length, V tokens of the vocabulary.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from workflows.errors import InfraError


@dataclass(frozen=True, slots=True)
class Options:
    """One request: the continuations of a prompt, at a temperature above 0."""

    model_id: str
    prompt: list[int]
    options: list[list[int]]
    temperature: float


class Weigher:
    """Requests that wait for a forward pass. Those that wait together share one, of at most `most_tokens`
    padded tokens; it runs on the thread that decodes, between two of its steps.

    `put_in_charge` is told, before each pass, the model id of each row in it.
    """

    def __init__(
        self,
        model: Any,
        thread: ThreadPoolExecutor,
        most_tokens: int,
        put_in_charge: Callable[[Sequence[str]], None],
    ) -> None:
        self.model, self.thread, self.most_tokens = model, thread, most_tokens
        self.put_in_charge = put_in_charge
        self._waiting: deque[tuple[Options, asyncio.Future[list[list[float]]]]] = deque()
        self._in_pass = 0
        self._serving: asyncio.Task[None] | None = None

    @property
    def running(self) -> int:
        """Requests that are not answered yet."""
        return self._in_pass + len(self._waiting)

    async def ask(self, request: Options) -> list[list[float]]:
        """By option the log-probability of each of its tokens.

        Raises:
            InfraError: the forward pass failed, or the engine was closed.
        """
        answer: asyncio.Future[list[list[float]]] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        return await answer

    def close(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
        for _, answer in self._waiting:
            if not answer.done():
                answer.set_exception(InfraError("the engine was closed"))

    async def _serve(self) -> None:
        """Forward passes until nobody waits. An error of a pass fails the requests in it."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            taken = self._admit()
            self._in_pass = len(taken)
            try:
                found = await loop.run_in_executor(self.thread, self._pass, [request for request, _ in taken])
            except Exception as error:
                failure = InfraError(f"weighing options failed: {type(error).__name__}: {error}")
                for _, answer in taken:
                    if not answer.done():
                        answer.set_exception(failure)
            else:
                for (_, answer), logprobs in zip(taken, found, strict=True):
                    if not answer.done():
                        answer.set_result(logprobs)
            self._in_pass = 0

    def _admit(self) -> list[tuple[Options, asyncio.Future[list[list[float]]]]]:
        """As many requests as one pass takes, in the order of arrival; at least one."""
        taken: list[tuple[Options, asyncio.Future[list[list[float]]]]] = []
        rows = longest = 0
        while self._waiting:
            request, answer = self._waiting[0]
            rows += len(request.options)
            longest = max(longest, len(request.prompt) + max(map(len, request.options)))
            if taken and rows * longest > self.most_tokens:
                break
            self._waiting.popleft()
            if not answer.done():  # else its caller has left
                taken.append((request, answer))
        return taken

    def _pass(self, requests: Sequence[Options]) -> list[list[list[float]]]:
        if not requests:
            return []
        self.put_in_charge([request.model_id for request in requests for _ in request.options])
        return option_logprobs(self.model, requests)


@torch.inference_mode()
def option_logprobs(model: Any, requests: Sequence[Options]) -> list[list[list[float]]]:
    """By request and option the log-probability of each of its tokens, after those before it.

    All sequences are padded on the left, so that options end where the sequence does.
    """
    sequences = [(r, option) for r in requests for option in r.options]
    longest = max(len(r.prompt) + len(option) for r, option in sequences)
    tail = max(len(option) for _, option in sequences)
    ids, mask = [], []
    for request, option in sequences:
        tokens = [*request.prompt, *option]
        padding = longest - len(tokens)
        ids.append([0] * padding + tokens)
        mask.append([0] * padding + [1] * len(tokens))
    device = model.device
    attention = torch.tensor(mask, device=device)
    logits = model(
        input_ids=torch.tensor(ids, device=device),
        attention_mask=attention,
        position_ids=(attention.cumsum(-1) - 1).clamp(min=0),
        use_cache=False,
        logits_to_keep=tail + 1,
    ).logits.float()  # [B, tail + 1, V]: the position before each token of an option, and the last one
    found = []
    for row, (request, option) in enumerate(sequences):
        before = logits[row, tail - len(option) : tail] / request.temperature  # [tokens, V]
        targets = torch.tensor(option, device=device)[:, None]
        found.append(before.log_softmax(-1).gather(-1, targets)[:, 0].tolist())
    by_request, start = [], 0
    for request in requests:
        by_request.append(found[start : start + len(request.options)])
        start += len(request.options)
    return by_request
