"""Batched decoding with a key-value cache: the arithmetic of the torch engine, without queues or Ray.

Shapes: B rows, L cached positions (left-padded), V tokens of the vocabulary, H heads, D head size.
Imports torch, so only the engine's own process imports it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers.cache_utils import Cache, DynamicLayer

from workflows.engine import Sampling

_ROOM = 64  # positions by which a full cache grows


@dataclass(slots=True, eq=False)
class Row:
    """One request while it is served. `rng` is its own, so its tokens don't depend on its neighbours."""

    prompt: list[int]
    sampling: Sampling
    rng: random.Random
    stop_in: Callable[[list[int]], bool] | None  # whether the sampled ids end with a stop string
    model_id: str = ""  # whose adapter answers, where the model has several
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    num_cached_tokens: int = 0
    finish_reason: Literal["stop", "length", "abort"] | None = None
    started_at: float = 0.0  # monotonic
    first_token_at: float = 0.0

    @property
    def most_tokens(self) -> int:
        return len(self.prompt) + self.sampling.max_tokens


class RoomyLayer(DynamicLayer):
    """A cache layer with spare positions: a step writes one column instead of copying all of them.

    `keys` and `values` [B, H, L, D] are views of the buffers' first L positions.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_buffer: torch.Tensor
    value_buffer: torch.Tensor

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.set(key_states, value_states)
            return key_states, value_states
        start, end = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        if end > self.key_buffer.shape[-2]:
            self.key_buffer = _with_room(self.keys, end + _ROOM)
            self.value_buffer = _with_room(self.values, end + _ROOM)
        self.key_buffer[..., start:end, :] = key_states
        self.value_buffer[..., start:end, :] = value_states
        self.keys = self.key_buffer[..., :end, :]
        self.values = self.value_buffer[..., :end, :]
        return self.keys, self.values

    def set(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Hold other rows or positions from now on."""
        self.keys, self.values = keys, values
        self.key_buffer, self.value_buffer = keys, values


def _with_room(states: torch.Tensor, length: int) -> torch.Tensor:
    roomy = states.new_empty(*states.shape[:-2], length, states.shape[-1])
    roomy[..., : states.shape[-2], :] = states
    return roomy


class Batch:
    """The rows that decode together. Rows join after their own prefill and leave when they finish.

    `put_in_charge` is told, before each forward pass, the model id of each row in it.
    """

    def __init__(
        self,
        model: Any,
        end_ids: frozenset[int],
        max_model_len: int,
        put_in_charge: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        self.model = model
        self.put_in_charge = put_in_charge or (lambda model_ids: None)
        self.end_ids = end_ids
        self.max_model_len = max_model_len
        self.clear()

    def clear(self) -> None:
        self.rows: list[Row] = []
        self.cache = Cache(layer_class_to_replicate=RoomyLayer)
        self.mask = torch.zeros(0, 0, dtype=torch.long)  # [B, L], 1 where a position holds a token

    @torch.inference_mode()
    def step(self, joining: Sequence[Row]) -> list[Row]:
        """Prefill `joining`, decode one token for every row, and return the rows that finished.

        Rows that finished for another reason (aborted by their caller) leave too.
        """
        done = [row for row in self.rows if row.finish_reason]
        self._keep([i for i, row in enumerate(self.rows) if not row.finish_reason])
        if self.rows:
            self._decode()
        if joining:
            self._join(joining)
        finished = [row for row in self.rows if row.finish_reason]
        self._keep([i for i, row in enumerate(self.rows) if not row.finish_reason])
        return done + finished

    def _decode(self) -> None:
        self.mask = torch.nn.functional.pad(self.mask, (0, 1), value=1)
        self.put_in_charge([row.model_id for row in self.rows])
        output = self.model(
            input_ids=self._ids([[row.token_ids[-1]] for row in self.rows]),
            attention_mask=self.mask,
            position_ids=self.mask.sum(-1, keepdim=True) - 1,
            past_key_values=self.cache,
            use_cache=True,
        )
        self._sample(self.rows, output.logits[:, -1])

    def _join(self, joining: Sequence[Row]) -> None:
        """Prefill each model's different prompts once, left-padded: a row's last position is its newest."""
        started = time.monotonic()
        keys = [(row.model_id, tuple(row.prompt)) for row in joining]
        place = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        prompts = [prompt for _, prompt in place]
        longest = max(map(len, prompts))
        # Padding is masked by position, never by token id: the pad id may be the end id.
        mask = self._ids([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        cache = Cache(layer_class_to_replicate=RoomyLayer)
        self.put_in_charge([model_id for model_id, _ in place])
        output = self.model(
            input_ids=self._ids([[0] * (longest - len(p)) + list(p) for p in prompts]),
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        index = torch.tensor([place[key] for key in keys], device=mask.device)
        seen: set[tuple[str, tuple[int, ...]]] = set()
        for row, key in zip(joining, keys, strict=True):
            row.started_at = started
            row.num_cached_tokens = len(row.prompt) if key in seen else 0
            seen.add(key)
        self._sample(joining, output.logits[:, -1].index_select(0, index))
        for layer in cache.layers:
            layer.set(layer.keys.index_select(0, index), layer.values.index_select(0, index))
        self._merge(joining, cache, mask.index_select(0, index))

    def _merge(self, joining: Sequence[Row], cache: Cache, mask: torch.Tensor) -> None:
        if not self.rows:
            self.rows, self.cache, self.mask = list(joining), cache, mask
            return
        length = max(self.mask.shape[1], mask.shape[1])
        for ours, theirs in zip(self.cache.layers, cache.layers, strict=True):
            ours.set(
                torch.cat([_pad_left(ours.keys, length, -2), _pad_left(theirs.keys, length, -2)]),
                torch.cat([_pad_left(ours.values, length, -2), _pad_left(theirs.values, length, -2)]),
            )
        self.mask = torch.cat([_pad_left(self.mask, length, -1), _pad_left(mask, length, -1)])
        self.rows += joining

    def _keep(self, kept: list[int]) -> None:
        """Drop all other rows, and the leading positions that are padding in every row that stays."""
        if len(kept) == len(self.rows):
            return
        if not kept:
            self.clear()
            return
        index = torch.tensor(kept, device=self.mask.device)
        mask = self.mask.index_select(0, index)
        first = int(mask.argmax(-1).min())
        for layer in self.cache.layers:
            layer.set(
                layer.keys[:, :, first:].index_select(0, index),
                layer.values[:, :, first:].index_select(0, index),
            )
        self.mask = mask[:, first:]
        self.rows = [self.rows[i] for i in kept]

    def _sample(self, rows: Sequence[Row], logits: torch.Tensor) -> None:
        """Append one sampled token and its logprob to each row. `logits` [B, V]."""
        logprobs = processed_logprobs(logits, [row.sampling for row in rows])
        uniform = [row.rng.random() for row in rows]
        tokens = choose(logprobs, uniform, [row.sampling.temperature == 0 for row in rows])
        chosen = logprobs.gather(-1, tokens[:, None])[:, 0].tolist()
        now = time.monotonic()
        for row, token, logprob in zip(rows, tokens.tolist(), chosen, strict=True):
            row.first_token_at = row.first_token_at or now
            row.token_ids.append(token)
            row.logprobs.append(logprob)
            if token in self.end_ids or (row.stop_in is not None and row.stop_in(row.token_ids)):
                row.finish_reason = "stop"
            elif (
                len(row.token_ids) >= row.sampling.max_tokens
                or len(row.prompt) + len(row.token_ids) >= self.max_model_len
            ):
                row.finish_reason = "length"

    def _ids(self, rows: list[list[int]]) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.long, device=self.model.device)


def _pad_left(states: torch.Tensor, length: int, axis: int) -> torch.Tensor:
    missing = length - states.shape[axis]
    padding = (missing, 0) if axis == -1 else (0, 0, missing, 0)
    return torch.nn.functional.pad(states, padding)


def processed_logprobs(logits: torch.Tensor, sampling: Sequence[Sampling]) -> torch.Tensor:
    """Logprobs [B, V] in float32 of the distribution that each row is sampled from.

    After temperature, then min_p, then top_k, then top_p: the order of vLLM's `processed_logprobs`. A greedy
    row (temperature 0) keeps the model's own distribution, at temperature 1 and unfiltered.
    """
    logits = logits.float()
    greedy = [s.temperature == 0 for s in sampling]

    def column(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits.device)[:, None]

    logits = logits / column([1.0 if g else s.temperature for s, g in zip(sampling, greedy, strict=True)])
    top_k = [0 if g else s.top_k for s, g in zip(sampling, greedy, strict=True)]
    top_p = [1.0 if g else s.top_p for s, g in zip(sampling, greedy, strict=True)]
    min_p = [0.0 if g else s.min_p for s, g in zip(sampling, greedy, strict=True)]
    if any(min_p):  # relative to the likeliest token
        least = logits.amax(-1, keepdim=True) + column(min_p).log()
        logits = logits.masked_fill(logits < least, float("-inf"))
    if any(top_k) or min(top_p) < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        rank = torch.arange(logits.shape[-1], device=logits.device)
        cut = rank[None] >= column([k or logits.shape[-1] for k in top_k])
        ordered = ordered.masked_fill(cut, float("-inf"))
        # A token stays while the mass before it is below top_p: the first one always does.
        before = ordered.softmax(-1).cumsum(-1).roll(1, -1)
        before[:, 0] = 0
        limits = column(top_p)
        ordered = ordered.masked_fill((before >= limits) & (limits < 1), float("-inf"))
        logits = torch.empty_like(logits).scatter_(-1, order, ordered)
    return logits.log_softmax(-1)


def choose(logprobs: torch.Tensor, uniform: Sequence[float], greedy: Sequence[bool]) -> torch.Tensor:
    """Token ids [B]: the likeliest for greedy rows, else the inverse distribution function at `uniform`.

    One uniform number for each token is all that a row's generator gives, so a row's draws are the
    same in any batch. In float64, where 49 152 summands don't shift the steps.
    """
    cumulative = logprobs.double().exp().cumsum(-1)
    total = cumulative[:, -1]
    draw = torch.tensor(uniform, dtype=torch.float64, device=logprobs.device) * total
    draw = torch.minimum(draw, torch.nextafter(total, torch.zeros_like(total)))
    # right=True: the first token whose cumulative mass is above the draw, so never one of mass zero
    sampled = torch.searchsorted(cumulative, draw[:, None], right=True)[:, 0]
    return torch.where(torch.tensor(greedy, device=logprobs.device), logprobs.argmax(-1), sampled)
