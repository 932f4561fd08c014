"""The peer of the update benchmark: a bare torch loop over the same micro-batches.

The same precision as ours: bf16 with AdamW on an fp32 master copy, or all in fp32. Unlike ours it lets
gradients add up in bf16, checks nothing for being finite and measures nothing: it is what a person would
write by hand who only wants it to be fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.benchmarks.peer import serve


def prepare(arguments: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Arguments: `checkpoint`, `dtype`, `threads`, `learning_rate`; a request has `partition`, a file."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(arguments["threads"])
    model: Any = AutoModelForCausalLM.from_pretrained(
        arguments["checkpoint"], dtype=getattr(torch, arguments["dtype"]), attn_implementation="sdpa"
    )
    model.train()
    weights = list(model.parameters())
    copied = arguments["dtype"] != "float32"
    master = [weight.detach().float() for weight in weights] if copied else weights
    optimizer = torch.optim.AdamW(master, lr=arguments["learning_rate"], weight_decay=0.01, fused=True)

    def step(request: dict[str, Any]) -> dict[str, Any]:
        batches = _batches(request["partition"])
        tokens = sum(batch.num_tokens for batch in batches)
        for batch in batches:
            hidden = model.model(input_ids=batch.token_ids, use_cache=False).last_hidden_state
            logits = model.lm_head(hidden.flatten(0, 1)[batch.positions]).float()
            logprobs = -cross_entropy(logits / batch.temperatures[:, None], batch.targets, reduction="none")
            loss = -(batch.advantages * logprobs).sum() / tokens
            loss.backward()
        for parameter, weight in zip(master, weights, strict=True) if copied else ():
            parameter.grad = weight.grad.float()
            weight.grad = None
        torch.nn.utils.clip_grad_norm_(master, 1.0, foreach=True)
        optimizer.step()
        if copied:
            with torch.no_grad():
                torch._foreach_copy_(weights, master)
        for parameter in master:
            parameter.grad = None
        return {"forward_tokens": sum(batch.num_forward_tokens for batch in batches)}

    return step


def _batches(path: str) -> list[Any]:
    """The micro-batches of the partition's one optimizer step, a padded row each."""
    import pyarrow.parquet as pq

    from stages.training.network.packing import split

    (batches,) = split(pq.read_table(path), packed=False).values()
    return batches


if __name__ == "__main__":
    serve(prepare)
