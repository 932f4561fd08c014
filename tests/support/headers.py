"""Checkpoints of real sizes without their weights: a configuration, the tiny model's tokenizer, and a
safetensors file whose header speaks of tensors that are holes on the disk."""

from __future__ import annotations

import json
import shutil
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO


@dataclass(frozen=True, slots=True)
class Size:
    """Layers, widths and heads of a decoder with a gated feed-forward."""

    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    vocabulary: int
    tied: bool


ONE = b"\x80\x3f" * 1024  # in bfloat16
_NUMBERS = struct.pack("<65521H", *(0x3C00 + (7919 * i) % 512 for i in range(65521)))  # 0.008 to 0.12

# as their authors published them
SIZES = {
    "0.5b": Size(24, 896, 4864, 14, 2, 151936, True),
    "1.5b": Size(28, 1536, 8960, 12, 2, 151936, True),
    "3b": Size(36, 2048, 11008, 16, 2, 151936, True),
    "7b": Size(28, 3584, 18944, 28, 4, 152064, False),
    # of no author: for tests that compute
    "small": Size(2, 64, 128, 4, 2, 512, False),
    "14b": Size(48, 5120, 13824, 40, 8, 152064, False),
}


def checkpoint_of(size: Size, folder: Path, tokenizer: Path, *, filled: bool = False) -> Path:
    """Write the folder of a model of this size in bfloat16; it takes some KiB of the disk.

    Args:
        tokenizer: a model's folder, whose tokenizer it gets.
        filled: write embeddings and norms, so that its states are numbers that differ; all else is zeros.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in tokenizer.iterdir():
        if file.is_file() and file.suffix != ".safetensors" and file.name != "config.json":
            shutil.copy(file, folder)
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": size.width,
        "intermediate_size": size.inner,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.key_heads,
        "vocab_size": size.vocabulary,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": size.tied,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, shape in tensors_of(size).items():
        end = at + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    data = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(data)) + data)
        file.truncate(8 + len(data) + at)
        for name, entry in header.items() if filled else ():
            if "norm" in name or "embed" in name:
                begin, end = entry["data_offsets"]
                file.seek(8 + len(data) + begin)
                _write(file, end - begin, ONE if "norm" in name else _NUMBERS)
    return folder


def _write(file: BinaryIO, size: int, block: bytes) -> None:
    """So many bytes of a block that is repeated."""
    while size:
        size -= file.write(block[:size])


def tensors_of(size: Size) -> dict[str, tuple[int, ...]]:
    """The tensors' shapes by name."""
    head = size.width // size.heads
    keys = size.key_heads * head
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (size.vocabulary, size.width)}
    for layer in range(size.layers):
        at = f"model.layers.{layer}"
        tensors |= {
            f"{at}.self_attn.q_proj.weight": (size.width, size.width),
            f"{at}.self_attn.k_proj.weight": (keys, size.width),
            f"{at}.self_attn.v_proj.weight": (keys, size.width),
            f"{at}.self_attn.q_proj.bias": (size.width,),
            f"{at}.self_attn.k_proj.bias": (keys,),
            f"{at}.self_attn.v_proj.bias": (keys,),
            f"{at}.self_attn.o_proj.weight": (size.width, size.width),
            f"{at}.mlp.gate_proj.weight": (size.inner, size.width),
            f"{at}.mlp.up_proj.weight": (size.inner, size.width),
            f"{at}.mlp.down_proj.weight": (size.width, size.inner),
            f"{at}.input_layernorm.weight": (size.width,),
            f"{at}.post_attention_layernorm.weight": (size.width,),
        }
    tensors["model.norm.weight"] = (size.width,)
    if not size.tied:
        tensors["lm_head.weight"] = (size.vocabulary, size.width)
    return tensors
