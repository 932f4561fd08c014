"""An adapter and its base as one model, for whoever has no use for adapters."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path


def merge_adapter(base: str, adapter: str, target: str) -> None:
    """Write a Hugging Face folder of the base with the adapter in its weights, tokenizer included.

    They are added up in float32 and rounded once, to the base's dtype or, where it has more digits, that of
    the adapter, which is what both were computed in. Where the adapter has embeddings of
    its own, the output layer of a tied base becomes a matrix of the same values.

    Args:
        base: the local folder of the base.
        adapter: a local folder in PEFT's layout.
        target: the new folder.
    """
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    own = {tensor.dtype for tensor in load_file(Path(adapter) / "adapter_model.safetensors").values()}
    stored = AutoConfig.from_pretrained(base).dtype or torch.float32
    for dtype in own:
        stored = torch.promote_types(stored, dtype)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*tie")  # known, see above
        merged = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    merged.to(stored).save_pretrained(target)
    for file in Path(base).iterdir():
        if file.is_file() and not (Path(target) / file.name).exists() and _is_text(file):
            shutil.copyfile(file, Path(target) / file.name)


def _is_text(file: Path) -> bool:
    """Tokenizer and chat template, and nothing of the weights."""
    return file.suffix in (".json", ".jinja", ".txt", ".model") and not file.name.endswith(".index.json")
