"""Low-rank adapters on a model that is loaded once: for the trainer and for the torch engine.

`Adaptable` makes a model's layers ask, at each forward pass, which adapter is in charge of which rows, so
that many adapters share one base and one batch. Nothing is wrapped or renamed: the base keeps its names,
and the folders are those of PEFT (adapter_config.json, adapter_model.safetensors).

Left out compared with PEFT, whose one adapter in charge of a whole model did not fit here: dropout, which
would make sampler and trainer two policies; biases; convolutions; initialisations other than the paper's.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stages.weights.adapters import ALL_LINEAR, AdapterSpec, no_such_target
from workflows.errors import RunFailed

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."


class Adapter(nn.Module):
    """The parameters of one adapter, by the name of the layer that they belong to.

    `down` (rank, in), `up` (out, rank); `full` whole matrices of the embedding and the output layer. The
    names' dots are slashes here, since torch takes dots in names for levels.
    """

    def __init__(
        self, spec: AdapterSpec, down: dict[str, Tensor], up: dict[str, Tensor], full: dict[str, Tensor]
    ) -> None:
        super().__init__()
        self.spec = spec
        self.down, self.up, self.full = _parameters(down), _parameters(up), _parameters(full)

    def tensors(self) -> dict[str, Tensor]:
        """What PEFT would save: names with its prefix, detached."""
        parts = ((self.down, ".lora_A.weight"), (self.up, ".lora_B.weight"), (self.full, ".weight"))
        return {
            f"{_PREFIX}{name.replace('/', '.')}{ending}": parameter.detach()
            for part, ending in parts
            for name, parameter in part.items()
        }


def _parameters(tensors: dict[str, Tensor]) -> nn.ParameterDict:
    return nn.ParameterDict({name.replace(".", "/"): nn.Parameter(tensors[name]) for name in sorted(tensors)})


class Share(NamedTuple):
    """An adapter, or the base alone, and the rows of the batch that it is in charge of; None: all of them."""

    adapter: Adapter | None
    rows: Tensor | None = None


class Adaptable:
    """A model whose layers obey `use`. Until the first call, and after `use()`, it is the base alone.

    What is in charge stays so until the next `use`, since activation checkpointing runs layers again
    during the backward pass.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        self.tied = embedding.weight is head.weight
        names = {module: name for name, module in model.named_modules()}
        self._tables = {names[embedding]: embedding, names[head]: head}
        self._embedding = names[embedding]
        self._layers = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and module is not head
        }
        self._watched: set[str] = set()
        self._shares: tuple[Share, ...] = ()

    def use(self, *shares: Share) -> None:
        """Say who is in charge from now on; rows that no share names are the base's."""
        self._shares = shares

    def fresh(self, spec: AdapterSpec, seed: str) -> Adapter:
        """Version 0: `down` uniform as in PEFT, `up` zero, whole matrices as in the base. The seed is all
        that it depends on.

        Raises:
            UsageError: a target is not a linear layer of the base.
        """
        layers = self._targets(spec)
        number = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=7).digest(), "big")
        generator = torch.Generator().manual_seed(number)
        down, up = {}, {}
        for name, layer in layers.items():
            bound = 1 / math.sqrt(layer.in_features)
            values = torch.empty(spec.rank, layer.in_features).uniform_(-bound, bound, generator=generator)
            down[name] = values.to(layer.weight)
            up[name] = torch.zeros(layer.out_features, spec.rank).to(layer.weight)
        full = {name: self._tables[name].weight.detach().clone() for name in self._full(spec)}
        return self._watch(Adapter(spec, down, up, full))

    def read(self, spec: AdapterSpec, folder: str) -> Adapter:
        """The adapter that `save` wrote, in the base's dtype and on its device.

        Raises:
            RunFailed: the folder's tensors are not those of such an adapter on this base.
        """
        from safetensors.torch import load_file

        found = load_file(str(Path(folder) / WEIGHTS))
        adapter = self.fresh(spec, "")
        tensors = adapter.tensors()
        alike = {name: tensor for name, tensor in found.items() if name in self._names_in_file(tensors)}
        for name, tensor in tensors.items():
            have = tuple(alike[name].shape) if name in alike else "no such tensor"
            if have != tuple(tensor.shape):
                raise RunFailed(
                    f"the adapter in {folder} is not of the kind that was announced: {name} should have "
                    f"shape {tuple(tensor.shape)}, found {have}"
                )
            tensor.copy_(alike[name])
        if len(alike) != len(found):
            alien = sorted(set(found) - set(alike))[0]
            raise RunFailed(f"the adapter in {folder} has {alien}, which this adapter does not have")
        for name, of in self._names_in_file(tensors).items():
            if name in alike and not torch.equal(alike[name], alike[of]):
                raise RunFailed(
                    f"the adapter in {folder} has two matrices, {of} and {name}, where its base has one"
                )
        return adapter

    def save(self, adapter: Adapter, folder: Path, base: str) -> None:
        """Write the adapter as PEFT does; `base` is where its base lies."""
        from peft import LoraConfig
        from safetensors.torch import save_file

        tensors = adapter.tensors()
        # PEFT trains copies of tied matrices apart from each other; ours is one, written twice
        tensors |= {to: tensors[of].clone() for to, of in self._names_in_file(tensors).items() if to != of}
        folder.mkdir(parents=True, exist_ok=True)
        save_file({k: v.cpu().contiguous() for k, v in tensors.items()}, folder / WEIGHTS, {"format": "pt"})
        LoraConfig(
            r=adapter.spec.rank,
            lora_alpha=adapter.spec.alpha,
            target_modules=sorted({name.rsplit("/", 1)[-1] for name in adapter.down}),
            modules_to_save=sorted(n.rsplit(".", 1)[-1] for n in self._tables) if adapter.full else None,
            task_type="CAUSAL_LM",
            base_model_name_or_path=base,
            inference_mode=True,
        ).save_pretrained(str(folder))

    def _targets(self, spec: AdapterSpec) -> dict[str, nn.Linear]:
        found = {name: layer for name, layer in self._layers.items() if spec.wants(name)}
        wanted = () if spec.targets == ALL_LINEAR else spec.targets
        for target in wanted:
            if not any(name.rsplit(".", 1)[-1] == target for name in found):
                raise no_such_target(target, self._layers, "adapter.targets")
        return found

    def _full(self, spec: AdapterSpec) -> Sequence[str]:
        if not spec.train_embeddings:
            return []
        return [self._embedding] if self.tied else list(self._tables)

    def _names_in_file(self, tensors: dict[str, Tensor]) -> dict[str, str]:
        """Names in a file, and of which tensor of the adapter each is."""
        names = {name: name for name in tensors}
        first = f"{_PREFIX}{self._embedding}.weight"
        if self.tied and first in tensors:
            names |= {f"{_PREFIX}{table}.weight": first for table in self._tables}
        return names

    # In the forward pass ------------------------------------------------------------------------

    def _watch(self, adapter: Adapter) -> Adapter:
        """Let the layers that this adapter changes ask who is in charge."""
        for name in (key.replace("/", ".") for key in adapter.down):
            if name not in self._watched:
                self._watched.add(name)
                layer = self._layers[name]
                layer.forward = _LinearLayer(self, name.replace(".", "/"), layer.forward)
        for name, table in self._tables.items() if adapter.full else ():
            if name not in self._watched:
                self._watched.add(name)
                key = (self._embedding if self.tied else name).replace(".", "/")
                table.forward = _Table(self, key, table, table.forward)
        return adapter

    def shares(self, inputs: Tensor) -> tuple[Share, ...]:
        """Who is in charge of a layer's inputs, whose first dimension is the batch's."""
        rows = sum(len(s.rows) for s in self._shares if s.rows is not None)
        if rows > inputs.shape[0]:
            raise RunFailed(
                "a layer of this model sees the rows of a batch merged, so several adapters can't share the "
                "batch; give each role a model of its own"
            )
        return self._shares


class _LinearLayer:
    """Stands in for the `forward` of a linear layer: its own output and what adapters add to their rows."""

    def __init__(self, owner: Adaptable, key: str, forward: Any) -> None:
        self.owner, self.key, self.forward = owner, key, forward

    def __call__(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.forward(inputs)
        for adapter, rows in self.owner.shares(inputs):
            if adapter is None or self.key not in adapter.down:
                continue
            mine = inputs if rows is None else inputs.index_select(0, rows)
            low = F.linear(mine, adapter.down[self.key])
            added = F.linear(low, adapter.up[self.key]) * adapter.spec.scale
            out = out + added if rows is None else out.index_add(0, rows, added)
        return out


class _Table:
    """Stands in for the `forward` of the embedding or the output layer: each row goes through its matrix."""

    def __init__(self, owner: Adaptable, key: str, module: nn.Module, forward: Any) -> None:
        self.owner, self.key, self.module, self.forward = owner, key, module, forward

    def __call__(self, inputs: Tensor) -> Tensor:
        shares = self.owner.shares(inputs)
        if len(shares) == 1 and shares[0].rows is None:
            return self._through(shares[0].adapter, inputs)
        out = self._through(None, inputs)
        for adapter, rows in shares:
            if adapter is not None and self.key in adapter.full:
                out = out.index_copy(0, rows, self._through(adapter, inputs.index_select(0, rows)))
        return out

    def _through(self, adapter: Adapter | None, inputs: Tensor) -> Tensor:
        """The layer's own forward pass over another matrix: what else it does to its output stays."""
        if adapter is None or self.key not in adapter.full:
            return self.forward(inputs)
        own = self.module._parameters["weight"]
        self.module._parameters["weight"] = adapter.full[self.key]
        try:
            return self.forward(inputs)
        finally:
            self.module._parameters["weight"] = own
