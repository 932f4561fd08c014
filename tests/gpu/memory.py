"""What a trainer takes of a device, against the plan: models of real sizes whose weights are zeros."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from stages.training.spec import TrainerSpec
from stages.weights.adapters import AdapterSpec
from tests.gpu.outcome import Unmet

TOLERANCE = 0.25


def trainer(size: str, adapter_rank: int = 0, num_gpus: float = 1.0) -> str:
    """One update of a model of this size, and the most memory that it took."""
    import torch

    from stages.process.devices import CONTEXT_GIB
    from stages.training.device_memory import device_need
    from stages.training.worker import TrainWorker
    from stages.weights.checkpoints import describe_checkpoint
    from tests.support.tiny_training import NUM_TOKENS, partition

    with tempfile.TemporaryDirectory() as folder:
        spec = replace(spec_of(size, Path(folder), adapter_rank, filled=True), num_gpus=num_gpus)
        worker = TrainWorker(spec, 0)
        worker.start(worker.listen(), 0, None)
        report = worker.update(partition(f"{folder}/p"), 0)
        if report.num_tokens != NUM_TOKENS:
            raise Unmet(f"{report.num_tokens} of {NUM_TOKENS} tokens were trained on")
        if not num_gpus:  # a processor's memory is another matter
            worker.close()
            return f"{report.num_tokens} tokens trained on"
        peak = torch.cuda.max_memory_reserved(0) / 2**30
        need = device_need(spec, describe_checkpoint(spec.checkpoint).parameters, NUM_TOKENS)
        worker.close()
    planned = need.kept_gib + need.working_gib - CONTEXT_GIB  # which torch does not count
    words = f"{peak:.2f} GiB at its peak, {planned:.2f} planned, {size}"
    words += f" with an adapter of rank {adapter_rank}" if adapter_rank else ""
    if not abs(peak / planned - 1) < TOLERANCE:
        raise Unmet(words)
    return words


def largest() -> str:
    """`trainer` of the largest model that the plan says fits on the first device, whole or as an adapter."""
    from stages.process.devices import device_memory_here

    size, rank = largest_for(device_memory_here()[0])
    return trainer(size, rank)


def largest_for(device_gib: float) -> tuple[str, int]:
    """The largest size up to 7 B whose trainer fits, and the rank of its adapter; 0 for all weights."""
    from stages.training.device_memory import device_need
    from stages.weights.checkpoints import describe_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        for size in ("7b", "3b", "1.5b", "0.5b"):
            for rank in (0, 16):
                spec = spec_of(size, Path(folder), rank)
                need = device_need(spec, describe_checkpoint(spec.checkpoint).parameters, 64)
                if need.kept_gib + need.working_gib < device_gib:
                    return size, rank
    raise Unmet(f"no trainer of 0.5 B or more fits on a device of {device_gib:.1f} GiB")


def spec_of(size: str, folder: Path, adapter_rank: int, *, filled: bool = False) -> TrainerSpec:
    """A trainer of one rank in bf16 on a GPU."""
    from stages.weights.resolve import resolve_checkpoint
    from tests.support.headers import SIZES, checkpoint_of

    tokenizer = Path(resolve_checkpoint("tiny"))
    checkpoint = checkpoint_of(SIZES[size], folder / size, tokenizer, filled=filled)
    adapter = AdapterSpec(adapter_rank) if adapter_rank else None
    return TrainerSpec("m", "m", str(checkpoint), adapter, precision="bf16", num_gpus=1.0)
