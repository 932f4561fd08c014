"""A network and its optimizer as they were at the start of an update: put back, or gone towards in part.

DeepSpeed steps master weights, which are the parameters of its inner optimizer: this rank's flat float32
slice of all of them, or in plain fp32 the weights themselves. Copies are in main
memory, and of no other rank's slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from stages.training.network.deepspeed import Network
from stages.training.unit import Unit


class NetworkState:
    """Master weights, moments and step counts of one network."""

    def __init__(self, network: Network) -> None:
        self._outer = network.engine.optimizer
        self._inner = getattr(self._outer, "optimizer", self._outer)
        self._start = _copies(self._masters)
        self._computed = _copies([p for group in self._rounded for p in group])
        self._moments = [_copied(self._inner.state.get(p, {})) for p in self._masters]
        self._candidate: list[Tensor] | None = None

    @property
    def _masters(self) -> list[Tensor]:
        return [p for group in self._inner.param_groups for p in group["params"]]

    @property
    def _rounded(self) -> list[list[Tensor]]:
        """By group of parameters, what DeepSpeed rounds master weights to where each rank has all of them in
        bf16 (ZeRO stage 0); elsewhere it does so itself, or computes with the master weights."""
        spread = hasattr(self._outer, "update_lp_params")
        return [] if spread or self._outer is self._inner else list(self._outer.fp16_groups)

    def keep(self, share: float) -> None:
        """Set the weights to start + share · (candidate - start); the optimizer's moments stay. Collective.

        The candidate is what the weights are at the first call.
        """
        if self._candidate is None:
            self._candidate = _copies(self._masters)
        pairs = zip(self._line_start(), self._candidate, strict=True)
        self._set([new if share == 1 else torch.lerp(old, new, share) for old, new in pairs])

    def restore(self) -> None:
        """Put back weights and moments, bit for bit. Collective."""
        self._set(self._start)
        for tensor, value in zip((p for g in self._rounded for p in g), self._computed, strict=True):
            _put(tensor, value)
        for parameter, before in zip(self._masters, self._moments, strict=True):
            for name, value in self._inner.state.get(parameter, {}).items():
                if name in before:
                    _put(value, before[name])
                else:  # the optimizer had not stepped: it begins with zeros, at step 0
                    value.zero_()

    def _set(self, weights: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self._masters, weights, strict=True):
                _put(parameter, value)
        if hasattr(self._outer, "update_lp_params"):  # spread over ranks
            self._outer.update_lp_params()
        for group, computed in zip(self._inner.param_groups, self._rounded, strict=False):
            _unflatten(group["params"], computed)

    def _line_start(self) -> list[Tensor]:
        """Where the line to the candidate begins: at the weights that sampled.

        DeepSpeed decays master weights once while it starts (ZeRO stage 0 in bf16), and not what is computed
        with: there, the latter counts where the former do not round to it.
        """
        if not self._computed or len(self._computed) != len(self._start):
            return self._start
        pairs = zip(self._start, self._computed, strict=True)
        return [torch.where(master.to(low.dtype) == low, master, low.float()) for master, low in pairs]


class Snapshot:
    """All that an update changes of a unit: policy, critic and running means of gradients."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self.policy = NetworkState(unit.network)
        critic = unit.critic
        self._critic = None if critic is None else deepcopy(critic.state())
        self._critic_network = (
            NetworkState(critic.network) if critic is not None and critic.network is not None else None
        )
        self._gradients = deepcopy(unit.gradient_state())

    def restore(self) -> None:
        """Put all of it back. Collective."""
        self.policy.restore()
        if self._critic_network is not None:
            self._critic_network.restore()
        if self._critic is not None and self._unit.critic is not None:
            self._unit.critic.restore(deepcopy(self._critic))
        self._unit.restore_gradients(deepcopy(self._gradients))


def _unflatten(masters: Sequence[Tensor], computed: Sequence[Tensor]) -> None:
    """Round master weights, which may be one flat tensor, to those that are computed with."""
    flat = torch.cat([master.detach().view(-1) for master in masters])
    for tensor, piece in zip(computed, flat.split([each.numel() for each in computed]), strict=True):
        _put(tensor, piece.view_as(tensor))


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().to("cpu", copy=True) for tensor in tensors]


def _copied(state: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}


def _put(target: Tensor, value: Tensor) -> None:
    target.data.copy_(value)
