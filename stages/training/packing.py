"""Rows of a `PARTITION` table as the tensors of one forward pass.

Rows are padded on the right and attend causally, so no real token ever sees padding and no
attention mask is needed: that is the fastest exact layout on a CPU (`docs/design.md`). What is
trained is said by positions, never by comparing ids with a pad id, so an end token that doubles as
padding is trained like any other.

Legend: B rows, L tokens of the longest, N response tokens of all rows together.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from workflows.trajectory import TURN_KEYS

# What an update reads of a partition.
COLUMNS = (
    *TURN_KEYS,
    "model_id",
    "policy_version",
    "rank",
    "mini_batch",
    "micro_batch",
    "prompt_token_ids",
    "response_token_ids",
    "behaviour_logprobs",
    "temperature",
    "advantage",
)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward pass. Only `token_ids` is padded; all other tensors are flat over response tokens."""

    token_ids: Tensor  # (B, L) int64; the last response token is left out, it predicts nothing
    positions: Tensor  # (N,) int64, into the flattened (B·L): where a response token is predicted from
    targets: Tensor  # (N,) int64: the response token that is predicted there
    mask: Tensor  # (N,) bool: False only for the filler of an empty micro-batch
    advantages: Tensor  # (N,) float32
    behaviour_logprobs: Tensor  # (N,) float32
    temperatures: Tensor  # (N,) float32
    keys: tuple[tuple[str, int], ...]  # (episode_id, turn_index) of the B rows
    num_forward_tokens: int  # prompt and response tokens, without padding

    @property
    def num_tokens(self) -> int:
        return int(self.mask.sum())

    def to(self, device: torch.device | str) -> MicroBatch:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return MicroBatch(**{k: v.to(device) if isinstance(v, Tensor) else v for k, v in values.items()})


def empty_micro_batch() -> MicroBatch:
    """One filler token that is not trained: a rank without rows still runs forward and backward."""
    return MicroBatch(
        token_ids=torch.zeros((1, 1), dtype=torch.int64),
        positions=torch.zeros(1, dtype=torch.int64),
        targets=torch.zeros(1, dtype=torch.int64),
        mask=torch.zeros(1, dtype=torch.bool),
        advantages=torch.zeros(1),
        behaviour_logprobs=torch.zeros(1),
        temperatures=torch.ones(1),
        keys=(),
        num_forward_tokens=0,
    )


def problem_with(rows: pa.Table, *, model_id: str, version: int, vocabulary: int, ranks: int) -> str | None:
    """Why these rows can't be trained on, as half a sentence that names the first such row; else None."""
    for row in rows.to_pylist():
        where = f"row ({row['episode_id']}, {row['turn_index']})"
        prompt, response = row["prompt_token_ids"] or [], row["response_token_ids"] or []
        logprobs = row["behaviour_logprobs"] or []
        if row["model_id"] != model_id:
            return f"{where} is of model {row['model_id']!r}, not {model_id!r}"
        if row["policy_version"] != version:
            return (
                f"{where} was sampled from version {row['policy_version']}, but the trainer is at "
                f"version {version}; exclude such rows before the partition"
            )
        if not 0 <= row["rank"] < ranks:
            return f"{where} is planned for rank {row['rank']}, but the trainer has {ranks}"
        if len(logprobs) != len(response):
            return f"{where} has {len(response)} response tokens but {len(logprobs)} behaviour logprobs"
        if response and not prompt:
            return f"{where} has no prompt token to predict its first response token from"
        if not np.isfinite(np.asarray(logprobs, dtype=np.float64)).all():
            return f"{where} has a behaviour logprob that is not finite"
        if row["advantage"] is None or not np.isfinite(row["advantage"]):
            return f"{where} has advantage {row['advantage']}; exclude rows without a number"
        if row["temperature"] is None or not row["temperature"] > 0:
            return f"{where} was sampled at temperature {row['temperature']}; training needs more than 0"
        if not all(0 <= i < vocabulary for i in (*prompt, *response)):
            return f"{where} holds a token id outside the model's vocabulary of {vocabulary}"
    return None


def pack(rows: pa.Table) -> MicroBatch:
    """One micro-batch, in key order whatever the order of `rows`. Rows without a response are left out.

    `rows` must have passed `problem_with`.
    """
    rows = rows.select(COLUMNS).sort_by([(key, "ascending") for key in TURN_KEYS])
    kept = [row for row in rows.to_pylist() if row["response_token_ids"]]
    if not kept:
        return empty_micro_batch()
    length = max(len(row["prompt_token_ids"]) + len(row["response_token_ids"]) - 1 for row in kept)
    token_ids = np.zeros((len(kept), length), dtype=np.int64)
    positions, targets = [], []
    for index, row in enumerate(kept):
        prompt, response = row["prompt_token_ids"], row["response_token_ids"]
        token_ids[index, : len(prompt) + len(response) - 1] = prompt + response[:-1]
        # the token at position p predicts the one at p + 1: the first response token comes from the
        # last prompt token
        first = index * length + len(prompt) - 1
        positions.append(np.arange(first, first + len(response)))
        targets.append(response)
    counts = torch.tensor([len(t) for t in targets])

    def per_token(column: str) -> Tensor:
        return torch.tensor([row[column] for row in kept], dtype=torch.float32).repeat_interleave(counts)

    return MicroBatch(
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(np.concatenate(positions)),
        targets=torch.tensor(np.concatenate(targets), dtype=torch.int64),
        mask=torch.ones(int(counts.sum()), dtype=torch.bool),
        advantages=per_token("advantage"),
        behaviour_logprobs=torch.tensor(
            np.concatenate([row["behaviour_logprobs"] for row in kept]), dtype=torch.float32
        ),
        temperatures=per_token("temperature"),
        keys=tuple((row["episode_id"], row["turn_index"]) for row in kept),
        num_forward_tokens=sum(len(r["prompt_token_ids"]) + len(r["response_token_ids"]) for r in kept),
    )


def split(rows: pa.Table) -> dict[int, list[MicroBatch]]:
    """The micro-batches of one rank, by mini-batch, in the order of the plan."""
    plan: dict[int, dict[int, list[int]]] = {}
    mini, micro = rows["mini_batch"].to_pylist(), rows["micro_batch"].to_pylist()
    for index, (m, k) in enumerate(zip(mini, micro, strict=True)):
        plan.setdefault(m, {}).setdefault(k, []).append(index)
    return {m: [pack(rows.take(parts[k])) for k in sorted(parts)] for m, parts in sorted(plan.items())}
