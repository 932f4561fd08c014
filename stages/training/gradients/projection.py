"""A fixed random projection of gradients, which keeps their inner products: the estimator.

Each coordinate gets a sign and goes to one of `SIZE` sums (AMS, Alon et al. 1996; as a count sketch,
Charikar et al. 2002, with the position as its hash). Inner products of projections are right on average;
their error is about ‖x‖‖y‖/√SIZE: 0.008 of a cosine, 0.6 % of a norm. A projection is linear, so parts add
up to the projection of the whole, and one pass over a gradient makes it.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

SIZE: Final = 16381  # a prime: coordinates of one hidden unit spread over all sums, whatever the width
_ROWS: Final = 64  # of a block, which fits a processor's cache beside its signs


class Projection:
    """The projection of parameters of these sizes. The same seed and sizes give the same projection.

    The signs of a block begin at a random place of one bank, so that no two blocks have the same ones next
    to each other, and the bank stays in the cache. Its sums begin at a random one, too: a hidden unit whose
    gradient is large in every layer, as some are, would else always meet itself.
    """

    def __init__(self, sizes: list[int], seed: int, device: torch.device) -> None:
        block = SIZE * _ROWS
        generator = torch.Generator().manual_seed(seed % 2**63)
        signs = torch.randint(0, 2, (2 * block,), generator=generator, dtype=torch.int8)
        self._bank = (2 * signs - 1).to(device, torch.float32)
        counts = [-(-size // block) for size in sizes]
        signs_at = torch.randint(0, block, (sum(counts),), generator=generator).tolist()
        sums_at = torch.randint(0, SIZE, (sum(counts),), generator=generator).tolist()
        starts = iter(zip(signs_at, sums_at, strict=True))
        self._starts = [[next(starts) for _ in range(count)] for count in counts]

    def add(self, to: Tensor, gradient: Tensor, index: int) -> None:
        """Add the projection of parameter `index`'s gradient to `to`, (SIZE,) float32."""
        flat = gradient.reshape(-1)
        block = SIZE * _ROWS
        for number, (start, first) in enumerate(self._starts[index]):
            piece = flat[number * block : (number + 1) * block]
            # converted first: a product of two dtypes takes forty times as long on a CPU
            signed = self._bank[start : start + len(piece)] * piece.float()
            whole = len(piece) // SIZE * SIZE
            sums = signed[:whole].view(-1, SIZE).sum(0)
            sums[: len(piece) - whole] += signed[whole:]
            to[first:] += sums[: SIZE - first]
            to[:first] += sums[SIZE - first :]
