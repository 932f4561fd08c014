"""The sizes of a transformer, read from its `config.json`: what formulas of memory are made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stages.weights.checkpoints import read_json


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Sizes of a decoder. All are counts of numbers, but for `layers`, `heads` and `key_heads`."""

    layers: int
    width: int  # of a hidden state
    heads: int  # of queries
    key_heads: int  # of keys and values
    head_size: int
    feed_forward: int  # inner width; of a mixture, of all experts that one token goes through
    vocabulary: int


def dimensions_of(folder: str) -> Dimensions | None:
    """The sizes of the model in a folder; None where its configuration does not say them.

    Raises:
        UsageError: there is no configuration, or it can't be read.
    """
    config = read_json(Path(folder) / "config.json", what="a model folder needs it")
    config = {**config, **(config.get("text_config") or {})}

    def first(*names: str) -> int:
        return int(next((config[name] for name in names if config.get(name)), 0))

    layers, width, heads = (
        first("num_hidden_layers", "n_layer"),
        first("hidden_size", "n_embd"),
        first("num_attention_heads", "n_head"),
    )
    vocabulary = first("vocab_size")
    if not (layers and width and heads and vocabulary):
        return None
    inner = first("intermediate_size", "n_inner") or 4 * width
    if experts := first("num_experts_per_tok"):
        inner = experts * (first("moe_intermediate_size") or inner)
    return Dimensions(
        layers=layers,
        width=width,
        heads=heads,
        key_heads=first("num_key_value_heads") or heads,
        head_size=first("head_dim") or width // heads,
        feed_forward=inner,
        vocabulary=vocabulary,
    )
