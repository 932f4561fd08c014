"""Adapters in the trainer: one frozen base in a process, and a policy for each adapter on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stages.training.network.packing import MicroBatch
from stages.training.network.policy import Outputs, Policy, load_network
from stages.training.spec import TrainerSpec
from stages.weights.lora import Adaptable, Adapter, Share


class Base:
    """A network in the compute precision that nobody trains; it is loaded once for all its adapters."""

    def __init__(self, spec: TrainerSpec, device: torch.device) -> None:
        loaded = load_network(
            spec.checkpoint,
            precision=spec.precision,
            packed=spec.shared_prefix,
            activation_checkpointing=spec.activation_checkpointing,
        )
        self.window = loaded.window
        self.model: Any = loaded.model.requires_grad_(False)
        self.policy = Policy(self.model).to(device)
        self.adaptable = Adaptable(self.model)

    def logprobs(self, batch: MicroBatch) -> Tensor:
        """Logprobs (N,) without any adapter: version 0 of all of them."""
        self.adaptable.use()
        outputs: Outputs = self.policy(batch)
        return outputs[0]


class AdaptedPolicy(nn.Module):
    """The policy of one adapter. Its parameters are the adapter's alone, so that DeepSpeed, the optimizer
    and checkpoints see nothing of the base."""

    def __init__(self, base: Base, adapter: Adapter) -> None:
        super().__init__()
        self.base = base  # no module itself, so its parameters stay out of ours
        self.adapter = adapter

    @property
    def width(self) -> int:
        """Size of a hidden state."""
        return self.base.policy.width

    def forward(self, batch: MicroBatch, entropies: bool = False, whole: bool = False) -> Any:
        """As `Policy.forward`. The adapter stays in charge until another forward pass, for the backward pass
        that runs layers again."""
        self.base.adaptable.use(Share(self.adapter))
        return self.base.policy(batch, entropies, whole)

    def distributions(self, batch: MicroBatch) -> Tensor:
        """As `Policy.distributions`, with the adapter in charge."""
        self.base.adaptable.use(Share(self.adapter))
        return self.base.policy.distributions(batch)


def adapted_policy(spec: TrainerSpec, device: torch.device, bases: dict[str, Base]) -> AdaptedPolicy:
    """The policy of an adapter at version 0, on the base that `bases` has or gets."""
    assert spec.adapter is not None
    if spec.base_id not in bases:
        bases[spec.base_id] = Base(spec, device)
    base = bases[spec.base_id]
    # a seed for each model: an adapter starts the same whichever of its neighbours start before it
    return AdaptedPolicy(base, base.adaptable.fresh(spec.adapter, f"{spec.seed}/{spec.model_id}"))
