"""The policy as the trainer runs it: logprobs of response tokens, and no other logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from workflows.errors import UsageError


class Policy(nn.Module):
    """A causal LM whose output head sees only the positions that predict a response token.

    The gather sits in front of the model's own head, inside the model's own forward pass, so what a
    model does to its logits after the head (scaling, soft caps) is kept.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self._positions: Tensor | None = None
        model.get_output_embeddings().register_forward_pre_hook(self._gather)

    def forward(self, token_ids: Tensor, positions: Tensor, targets: Tensor, temperatures: Tensor) -> Tensor:
        """Log-probabilities of `targets` (N,) at the sampler's temperatures, float32.

        `token_ids` is (B, L), padded on the right; `positions` (N,) index the flattened (B·L).
        """
        self._positions = positions
        try:
            # No mask and no position ids: causal attention over right-padded rows needs neither, and
            # passing them costs the fast attention kernel.
            logits = self.model(input_ids=token_ids, use_cache=False).logits[0]
        finally:
            self._positions = None
        logits = logits.float() / temperatures[:, None]
        return -nn.functional.cross_entropy(logits, targets, reduction="none")

    def _gather(self, head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (hidden,) = inputs  # (B, L, width)
        assert self._positions is not None, "the head runs inside forward() only"
        return (hidden.flatten(0, 1)[self._positions][None],)


def load_policy(
    checkpoint: str, precision: str, activation_checkpointing: bool
) -> tuple[Policy, torch.dtype]:
    """The policy in the compute precision, and the dtype that its checkpoint has.

    Dropout is off: the logprobs of the sampler, of before the step and of the step must be of one policy.

    Raises:
        UsageError: the folder holds no causal language model.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    compute = torch.bfloat16 if precision == "bf16" else torch.float32
    try:
        config = AutoConfig.from_pretrained(checkpoint)
        for name in list(vars(config)):
            if name.endswith(("dropout", "pdrop", "drop_rate")) and isinstance(getattr(config, name), float):
                setattr(config, name, 0.0)
        stored = config.dtype or torch.float32
        model = AutoModelForCausalLM.from_pretrained(
            checkpoint, config=config, dtype=compute, attn_implementation="sdpa"
        )
    except (OSError, ValueError) as error:
        raise UsageError(f"can't train the model at {checkpoint!r}: {error}") from error
    model.train()
    if activation_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return Policy(model), stored
