"""Rows of a `PARTITION` table as the tensors of one forward pass, in one of two layouts.

*Packed*: all rows of a micro-batch in one row, without padding, and what several of them begin with held
once (`stages.training.network.layout`): the instructions of a role, a prompt, the earlier turns of a
conversation, the first words of a reply. *Padded*: one row each, padded on the right;
causal attention needs no mask then, and any model can run it.

What is trained is said by positions, never by comparing ids with a pad id, so an end token that doubles
as padding is trained like any other.

Legend: B rows of the tensor, L their length, N response tokens of all rows of the table together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from stages.training.network.layout import Layout, Segment, layout_of
from workflows.trajectory import TURN_KEYS

# What an update reads of a partition.
COLUMNS: Final = (
    *TURN_KEYS,
    "model_id",
    "role",
    "policy_version",
    "rank",
    "mini_batch",
    "micro_batch",
    "prompt_token_ids",
    "response_token_ids",
    "behaviour_logprobs",
    "temperature",
    "advantage",
    "branch",
    "reward",
)
# What it may read besides, from `token_advantages` and `scores`: a list for each row, or null.
ADVANTAGE_COLUMNS: Final = ("advantages", "returns", "importance_weights")
SCORE_COLUMNS: Final = ("old_logprobs", "reference_logprobs", "values")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward pass. Only `token_ids` can be padded; other tensors are flat over response tokens."""

    token_ids: Tensor  # (B, L) int64; the last response token is left out, it predicts nothing
    positions: Tensor  # (N,) int64, into the flattened (B·L): where a response token is predicted from
    targets: Tensor  # (N,) int64: the response token that is predicted there
    mask: Tensor  # (N,) bool: False only for the filler of an empty micro-batch
    row: Tensor  # (N,) int64: which of `roles` and `keys` the token belongs to
    advantages: Tensor  # (N,) float32
    behaviour_logprobs: Tensor  # (N,) float32
    temperatures: Tensor  # (N,) float32
    roles: tuple[str | None, ...]  # of the rows
    keys: tuple[tuple[str, int], ...]  # (episode_id, turn_index) of the rows; none for the filler
    branches: tuple[str, ...]  # of the rows; empty where a row is of none
    rewards: tuple[float | None, ...]  # of the rows
    num_forward_tokens: int  # prompt and response tokens, what is shared counted for every row
    position_ids: Tensor | None = None  # (1, L) int64, of a packed row
    layout: Layout | None = None  # of a packed row; None is padded
    returns: Tensor | None = None  # these are (N,) float32, where the plan has them
    importance_weights: Tensor | None = None
    old_logprobs: Tensor | None = None
    reference_logprobs: Tensor | None = None
    values: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        return int(self.mask.sum())

    def to(self, device: torch.device | str) -> MicroBatch:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return MicroBatch(**{k: v.to(device) if isinstance(v, Tensor) else v for k, v in values.items()})


def empty_micro_batch(packed: bool) -> MicroBatch:
    """One filler token that is not trained: a rank without rows still runs forward and backward."""
    zero = torch.zeros(1)
    return MicroBatch(
        token_ids=torch.zeros((1, 1), dtype=torch.int64),
        positions=torch.zeros(1, dtype=torch.int64),
        targets=torch.zeros(1, dtype=torch.int64),
        mask=torch.zeros(1, dtype=torch.bool),
        row=torch.zeros(1, dtype=torch.int64),
        advantages=zero,
        behaviour_logprobs=zero,
        temperatures=torch.ones(1),
        roles=(None,),
        keys=(),
        branches=(),
        rewards=(),
        num_forward_tokens=0,
        position_ids=torch.zeros((1, 1), dtype=torch.int64) if packed else None,
        layout=layout_of([Segment(0, 1, 1)]) if packed else None,
        **dict.fromkeys(("returns", "importance_weights", *SCORE_COLUMNS), zero),
    )


def problem_with(
    rows: pa.Table,
    *,
    model_id: str,
    version: int | None,
    vocabulary: int,
    ranks: int,
    window: int | None = None,
) -> str | None:
    """Why these rows can't be trained on, as half a sentence that names the first such row; else None.

    `version` is that of the weights which must have sampled them; None takes rows of any. `window` is what
    the model's sliding attention sees, where rows are packed, which knows no window.
    """
    lists = [c for c in (*ADVANTAGE_COLUMNS, *SCORE_COLUMNS) if c in rows.column_names]
    for row in rows.to_pylist():
        where = f"row ({row['episode_id']}, {row['turn_index']})"
        prompt, response = row["prompt_token_ids"] or [], row["response_token_ids"] or []
        logprobs = row["behaviour_logprobs"] or []
        if row["model_id"] != model_id:
            return f"{where} is of model {row['model_id']!r}, not {model_id!r}"
        if version is not None and row["policy_version"] != version:
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
        if "advantages" not in lists and (row["advantage"] is None or not np.isfinite(row["advantage"])):
            return f"{where} has advantage {row['advantage']}; exclude rows without a number"
        if row["temperature"] is None or not row["temperature"] > 0:
            return f"{where} was sampled at temperature {row['temperature']}; training needs more than 0"
        if not all(0 <= i < vocabulary for i in (*prompt, *response)):
            return f"{where} holds a token id outside the model's vocabulary of {vocabulary}"
        if window is not None and len(prompt) + len(response) > window:
            return (
                f"{where} has {len(prompt) + len(response)} tokens, more than the {window} of the model's "
                "sliding window; set shared_prefix = false in its trainer settings"
            )
        for name in lists:
            values = row[name]
            if values is None and response:
                return f"{where} has no {name}, where other rows have them"
            if len(values or []) != len(response):
                return f"{where} has {len(response)} response tokens but {len(values or [])} {name}"
            if not np.isfinite(np.asarray(values or [], dtype=np.float64)).all():
                return f"{where} has {name} that are not finite"
    return None


def pack(rows: pa.Table, packed: bool) -> MicroBatch:
    """One micro-batch, in key order whatever the order of `rows`. Rows without a response are left out.

    `rows` must have passed `problem_with`.
    """
    rows = rows.sort_by([(key, "ascending") for key in TURN_KEYS])
    kept = [row for row in rows.to_pylist() if row["response_token_ids"]]
    if not kept:
        return empty_micro_batch(packed)
    counts = torch.tensor([len(row["response_token_ids"]) for row in kept])

    def per_token(column: str) -> Tensor:
        return torch.tensor([row[column] for row in kept], dtype=torch.float32).repeat_interleave(counts)

    def flat(column: str, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(np.concatenate([row[column] for row in kept]), dtype=dtype)

    optional = (*ADVANTAGE_COLUMNS[1:], *SCORE_COLUMNS)
    return MicroBatch(
        **(_packed(kept) if packed else _padded(kept)),
        targets=flat("response_token_ids", torch.int64),
        mask=torch.ones(int(counts.sum()), dtype=torch.bool),
        row=torch.arange(len(kept)).repeat_interleave(counts),
        advantages=flat("advantages") if "advantages" in rows.column_names else per_token("advantage"),
        behaviour_logprobs=flat("behaviour_logprobs"),
        temperatures=per_token("temperature"),
        roles=tuple(row["role"] for row in kept),
        keys=tuple((row["episode_id"], row["turn_index"]) for row in kept),
        branches=tuple(row.get("branch") or "" for row in kept),
        rewards=tuple(row.get("reward") for row in kept),
        num_forward_tokens=sum(len(r["prompt_token_ids"]) + len(r["response_token_ids"]) for r in kept),
        **{column: flat(column) for column in optional if column in rows.column_names},
    )


def _padded(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    length = max(len(row["prompt_token_ids"]) + len(row["response_token_ids"]) - 1 for row in rows)
    token_ids = np.zeros((len(rows), length), dtype=np.int64)
    positions = []
    for index, row in enumerate(rows):
        prompt, response = row["prompt_token_ids"], row["response_token_ids"]
        token_ids[index, : len(prompt) + len(response) - 1] = prompt + response[:-1]
        # the token at position p predicts the one at p + 1: the first response token comes from the
        # last prompt token
        first = index * length + len(prompt) - 1
        positions.append(np.arange(first, first + len(response)))
    return {
        "token_ids": torch.from_numpy(token_ids),
        "positions": torch.from_numpy(np.concatenate(positions)),
    }


def _packed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    sequences = [(row["prompt_token_ids"], row["response_token_ids"]) for row in rows]
    forest = forest_of([[*prompt, *response[:-1]] for prompt, response in sequences])
    positions = [
        # a response token is predicted from the token before it
        forest.places[index][len(prompt) - 1 :]
        for index, (prompt, _) in enumerate(sequences)
    ]
    return {
        "token_ids": torch.from_numpy(forest.token_ids)[None],
        "position_ids": torch.from_numpy(forest.position_ids)[None],
        "positions": torch.from_numpy(np.concatenate(positions)),
        "layout": layout_of(forest.segments),
    }


@dataclass(frozen=True, slots=True)
class Forest:
    """Sequences as trees, tokens in depth-first order: what several begin with is there once."""

    token_ids: np.ndarray  # (T,) int64
    position_ids: np.ndarray  # (T,) int64: the place of a token in every sequence that it is of
    places: list[np.ndarray]  # by sequence, as given: where each of its tokens is, int64
    segments: list[Segment]


def forest_of(sequences: Sequence[Sequence[int]]) -> Forest:
    """The prefix trees of token sequences, none of them empty.

    Sorted sequences follow each other as a depth-first walk does: each goes back to where it parts from
    the one before, and on from there.
    """
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    order = sorted(range(len(arrays)), key=lambda index: arrays[index].astype(">i8").tobytes())
    ids: list[np.ndarray] = []
    depths: list[np.ndarray] = []
    places: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * len(arrays)
    runs: list[tuple[int, int, int]] = []  # of the current path: first token, its depth, depth behind it
    segments: list[Segment] = []
    size, path, before = 0, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    for index in order:
        sequence = arrays[index]
        shared = _common(before, sequence)
        _part(runs, shared, size, segments)
        if shared < len(sequence):
            runs.append((size, shared, len(sequence)))
        path = np.concatenate([path[:shared], np.arange(size, size + len(sequence) - shared)])
        places[index] = path
        ids.append(sequence[shared:])
        depths.append(np.arange(shared, len(sequence)))
        size += len(sequence) - shared
        before = sequence
    _part(runs, 0, size, segments)
    segments.sort(key=lambda segment: segment.start)
    return Forest(np.concatenate(ids), np.concatenate(depths), places, segments)


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """How many tokens two sequences begin with alike."""
    most = min(len(one), len(other))
    differ = one[:most] != other[:most]
    return int(differ.argmax()) if differ.any() else most


def _part(runs: list[tuple[int, int, int]], depth: int, size: int, segments: list[Segment]) -> None:
    """The walk is back at `depth`: runs of tokens below it are whole segments, which end at `size`."""
    while runs and runs[-1][2] > depth:
        start, first, last = runs.pop()
        cut = max(first, depth)
        segments.append(Segment(start + cut - first, start + last - first, size))
        if cut > first:
            runs.append((start, first, cut))


def split(rows: pa.Table, packed: bool) -> dict[int, list[MicroBatch]]:
    """The micro-batches of one rank, by mini-batch, in the order of the plan."""
    plan: dict[int, dict[int, list[int]]] = {}
    mini, micro = rows["mini_batch"].to_pylist(), rows["micro_batch"].to_pylist()
    for index, (m, k) in enumerate(zip(mini, micro, strict=True)):
        plan.setdefault(m, {}).setdefault(k, []).append(index)
    return {
        m: [pack(rows.take(parts[k]), packed) for k in sorted(parts)] for m, parts in sorted(plan.items())
    }
