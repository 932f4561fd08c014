"""The limit of the update benchmark: the matrix products that an update can't do without, and nothing else.

For each micro-batch every linear layer's forward product and the two of its backward pass, in the precision
and with the threads of the trainer, each layer with weights and gradients of its own: no attention, no norms,
no losses, no optimizer. Attention's own products grow with the square of the length and are left out on both
sides, so that the limit is a little strict at short rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.benchmarks.peer import serve


def prepare(arguments: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Arguments: `dtype`, `threads`, `layers` [[in, out], …] that see every token, `head` [in, out].

    A request has `batches` [[tokens, tokens with logits], …]; the answer has `flop` and `seconds`.
    """
    import torch

    torch.set_num_threads(arguments["threads"])
    dtype = getattr(torch, arguments["dtype"])
    shapes = [*arguments["layers"], arguments["head"]]
    weights = [torch.randn(out, into, dtype=dtype) for into, out in shapes]
    gradients = [torch.zeros_like(weight) for weight in weights]

    def products(request: dict[str, Any]) -> dict[str, Any]:
        flop = 0
        sides = {
            (rows, size): torch.randn(rows, size, dtype=dtype)
            for tokens, of_head in request["batches"]
            for place, shape in enumerate(shapes)
            for rows in (of_head if place == len(shapes) - 1 else tokens,)
            for size in shape
        }
        started = time.perf_counter()
        for tokens, of_head in request["batches"]:
            for place, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
                rows = of_head if place == len(shapes) - 1 else tokens
                out, into = weight.shape
                x, dy = sides[rows, into], sides[rows, out]
                torch.mm(x, weight.t())
                torch.mm(dy, weight)
                torch.mm(dy.t(), x, out=gradient)
                flop += 6 * rows * out * into
        return {"flop": flop, "seconds": time.perf_counter() - started}

    return products


if __name__ == "__main__":
    serve(prepare)
