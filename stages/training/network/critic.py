"""The critic: a value for the state in which each response token was chosen.

A linear layer in float32 reads the last hidden state at the position that predicts the token: of the
policy itself (kind "head"), or of a network of its own (kind "model"). It has one output, or one for each
role: roles whose returns differ need not share a scale. It starts at zero, so that the first values are zero
and not noise. The layer has its own optimizer in every rank; its gradients are
added over ranks, so that all ranks hold the same one.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stages.training.network.deepspeed import Network, set_adamw
from stages.training.network.packing import MicroBatch
from stages.training.network.policy import Trunk, load_network
from stages.training.spec import TrainerSpec
from workflows.errors import RunFailed

_LAYER_DECAY: Final = 0.0  # of the layer: it starts at zero, and values have a scale of their own


class Critic:
    """Values, and how they are learned."""

    def __init__(self, spec: TrainerSpec, width: int, device: torch.device, network: Network | None) -> None:
        assert spec.critic is not None
        self.spec = spec.critic
        self.network = network  # None: the layer sits on the policy
        self.layer = nn.Linear(width, max(1, len(self.spec.roles)), device=device)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.optimizer = torch.optim.AdamW(
            self.layer.parameters(),
            lr=self.spec.learning_rate,
            betas=spec.betas,
            eps=spec.eps,
            weight_decay=_LAYER_DECAY,
        )
        self._trainer = spec
        self._ranks, self._clip, self._share = spec.ranks, spec.gradient_clip, spec.schedule.share

    def values(self, batch: MicroBatch, hidden: Tensor, *, train: bool = False) -> Tensor:
        """Values (N,) in float32. `hidden` (N, width) are the policy's states, for kind "head".

        Raises:
            RunFailed: a row of a role that has no head.
        """
        if self.network is not None:
            hidden = self.network(batch) if train else self.network.module(batch)
        out: Tensor = self.layer(hidden.float())  # [N, heads]
        if not self.spec.roles:
            return out[:, 0]
        return out.gather(1, self._heads(batch)[:, None])[:, 0]

    def _heads(self, batch: MicroBatch) -> Tensor:
        """Which head each token's value is of, (N,): that of its row's role; the first for filler."""
        places = {role: place for place, role in enumerate(self.spec.roles)}
        if batch.keys and (unknown := set(batch.roles) - places.keys()):
            raise RunFailed(
                f"model {self._trainer.model_id!r}: a row of role {sorted(map(str, unknown))[0]!r} has no "
                f"value head; there are heads for {', '.join(places)}"
            )
        heads = torch.tensor([places.get(role or "", 0) for role in batch.roles], device=batch.row.device)
        return heads[batch.row]

    def step(self, version: int) -> float:
        """Clip and step, the network's own part too; the gradient norm. Collective."""
        rate = self.spec.learning_rate * self._share(version)
        norm = self.network.step(rate) if self.network is not None else 0.0
        gradients = [p.grad for p in self.layer.parameters() if p.grad is not None]
        for gradient in gradients:
            if self._ranks > 1:
                dist.all_reduce(gradient)
            gradient.div_(self._ranks)  # the loss is multiplied by the ranks, for DeepSpeed averages
        layer_norm = float(torch.nn.utils.get_total_norm(gradients))
        if math.isfinite(layer_norm) and math.isfinite(norm):
            if self._clip:
                torch.nn.utils.clip_grads_with_norm_(
                    self.layer.parameters(), self._clip, torch.tensor(layer_norm)
                )
            set_adamw(self.optimizer, self._trainer, rate, _LAYER_DECAY)
            self.optimizer.step()
        self.optimizer.zero_grad()
        return math.hypot(layer_norm, norm)

    def state(self) -> dict[str, Any]:
        """Of the layer and its optimizer; a network's own state is DeepSpeed's to save."""
        return {"layer": self.layer.state_dict(), "optimizer": self.optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        self.layer.load_state_dict(state["layer"])
        self.optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:
        if self.network is not None:
            self.network.close()


def load_critic(spec: TrainerSpec, width: int, device: torch.device) -> Critic:
    """The critic of a spec that has one; `width` is of the policy's hidden states.

    Raises:
        UsageError: its checkpoint holds no model that can be used.
    """
    assert spec.critic is not None
    if spec.critic.kind == "head":
        return Critic(spec, width, device, None)
    loaded = load_network(
        spec.critic.checkpoint or spec.checkpoint,
        precision=spec.precision,
        packed=spec.shared_prefix,
        head=False,
        activation_checkpointing=spec.activation_checkpointing,
        compile=spec.compile,
    )
    trunk = Trunk(loaded.model).to(device)
    of_critic = dataclasses.replace(spec, learning_rate=spec.critic.learning_rate)
    width = int(loaded.model.config.get_text_config().hidden_size)
    return Critic(spec, width, device, Network(of_critic, trunk, trunk.parameters()))
