"""How likely given continuations are: one padded forward pass over them, without a cache.

Shapes: B sequences (a prompt with one of its options), L their length, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Options:
    """One request: the continuations of a prompt, at a temperature above 0."""

    model_id: str
    prompt: list[int]
    options: list[list[int]]
    temperature: float


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
