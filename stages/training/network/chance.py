"""Chance in a network: switched off, and looked for where a name did not give it away.

Logprobs of the sampler, of the score pass and of an update's steps must be of one policy, so no network
here draws at random: no dropout, no layer that is left out, no noise in a router. Modules stay in
evaluation mode, which is the mode of the sampler, and gradients flow in it as in the other.
"""

from __future__ import annotations

import random
from typing import Any, Final

import torch

from workflows.errors import UsageError

_NAMES: Final = ("dropout", "drop_prob", "pdrop", "drop_rate", "layerdrop", "drop_path")
_PASSES: Final = 12  # over one row, where a pass draws at all: a layer is left out in one of ten, say


def switch_off(config: Any) -> None:
    """Set every rate of dropping in a model's config, and in the configs within it, to 0.

    Noise of another kind is left as it is: that a number is noise in one model and a constant of the
    function itself in another (`router_jitter_noise` of PhiMoE) can't be told from its name.
    """
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            switch_off(value)
        elif isinstance(value, float) and any(word in name for word in _NAMES):
            setattr(config, name, 0.0)


def train_checkpointed(model: Any) -> None:
    """Training mode for the modules alone that keep no activations: they look at their own mode for that."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    for module in layers or [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]:
        module.training = True


def check_none(model: Any, checkpoint: str, trial: tuple[list[int], list[list[int]]]) -> None:
    """Refuse a model whose passes over one row differ, in the mode that it is trained in.

    Raises:
        UsageError: naming the model, and how far apart its passes are.
    """
    prompt, responses = trial
    row = torch.tensor([prompt + responses[0]])
    before = _states_of_chance()
    first = _pass(model, row)
    drawn = _states_of_chance() != before
    apart = 0.0
    for _ in range(_PASSES if drawn else 1):
        apart = max(apart, float((_pass(model, row) - first).abs().max()))
    limit = (1e-2 if first.dtype == torch.bfloat16 else 1e-5) * max(1.0, float(first.abs().max()))
    if not apart <= limit:
        raise UsageError(
            f"the model at {checkpoint!r} draws at random while it is trained: two passes over one row "
            f"differ by {apart:.1e}, so its sampler and its updates would be of different policies; set the "
            "noise in its config.json to 0, or use another model"
        )


def _pass(model: Any, row: torch.Tensor) -> torch.Tensor:
    """What comes out last: logits, or the states of a trunk."""
    with torch.no_grad():
        out: torch.Tensor = model(input_ids=row, use_cache=False)[0]
    return out


def _states_of_chance() -> tuple[bytes, object]:
    """Of the generators that a pass may draw from."""
    return torch.get_rng_state().numpy().tobytes(), random.getstate()
