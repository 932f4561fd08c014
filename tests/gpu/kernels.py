"""Attention and the trainer on a device, compared with plain torch."""

from __future__ import annotations

import tempfile

from tests.gpu.outcome import Unmet


def flex_attention(device: str = "cuda", limit: float = 0.02) -> str:
    """Gradients of packed rows by flex attention, compiled, against the definition; on a CPU, which flex
    attention has no gradients for, by the kernels that take its place there."""
    import torch

    from stages.training.network.attention import packed_attention
    from stages.training.network.layout import Segment, layout_of

    parts = [Segment(0, 40, 100), Segment(40, 70, 70), Segment(70, 100, 100), Segment(100, 164, 164)]
    layout = layout_of(parts)
    generator = torch.Generator().manual_seed(0)
    states = [
        torch.randn(1, heads, 164, 64, generator=generator).to(device).requires_grad_() for heads in (4, 2, 2)
    ]
    plain = [state.detach().clone().requires_grad_() for state in states]
    weights = torch.randn(1, 4, 164, 64, generator=generator).to(device)
    out, _ = packed_attention(None, *states, None, scaling=0.125, layout=layout)  # [1, T, H, d]
    (out.transpose(1, 2) * weights).sum().backward()
    # the definition: a token sees its own segment up to itself, and all that this segment continues
    ends = layout.ends.to(device)
    at = torch.arange(164, device=device)
    seen = (at[None] <= at[:, None]) & (at[:, None] < ends[None])
    query, key, value = plain[0], *(state.repeat_interleave(2, 1) for state in plain[1:])
    scores = (query @ key.transpose(-1, -2) * 0.125).masked_fill(~seen, -torch.inf)
    ((scores.softmax(-1) @ value) * weights).sum().backward()
    gaps = [
        float((a.grad - b.grad).norm() / b.grad.norm())  # type: ignore[operator, union-attr]
        for a, b in zip(states, plain, strict=True)
    ]
    words = "gradients of queries, keys and values differ by " + ", ".join(f"{gap:.1e}" for gap in gaps)
    if not max(gaps) < limit:
        raise Unmet(words)
    return words


def trainer(precision: str = "bf16", num_gpus: float = 1.0, limit: float = 0.05) -> str:
    """One update of the tiny model by DeepSpeed, against plain torch in float32."""
    from stages.training.spec import TrainerSpec
    from stages.training.worker import TrainWorker
    from stages.weights.resolve import resolve_checkpoint
    from tests.support.tiny_training import SMOOTH, bare_torch_step, partition

    tiny = resolve_checkpoint("tiny")
    with tempfile.TemporaryDirectory() as folder:
        ref = partition(f"{folder}/p")
        settings = {**SMOOTH, "precision": precision, "num_gpus": num_gpus}
        worker = TrainWorker(TrainerSpec("m", "m", tiny, **settings), 0)
        described = worker.start(worker.listen(), 0, None)
        report = worker.update(ref, 0)
        expected, _ = bare_torch_step(tiny, ref)
        worker.close()
    found = float(report.steps[0]["gradient_norm"])
    words = f"{found:.4g} on {described['device']} in {precision}, {expected:.4g} by plain torch"
    if not abs(found / expected - 1) < limit:
        raise Unmet(words)
    return words
