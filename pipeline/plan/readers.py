"""The processes that compute scores of reward models, as the plan of a machine counts them."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.plan.resolve import Resolved
from pipeline.plan.rewards import model_folder, reads_model
from stages.reward_model.model import read_model
from stages.weights.checkpoints import describe_checkpoint

_PROCESS_GIB = 0.8  # of a process with torch, beside its weights


@dataclass(frozen=True, slots=True)
class ReaderNeed:
    """What one process of a reward model takes: GPUs, or a part of one, and GiB of weights."""

    name: str
    setting: str
    gpus: float
    weights_gib: float

    @property
    def host_gib(self) -> float:
        """GiB of main memory."""
        return _PROCESS_GIB + (0.0 if self.gpus else self.weights_gib)


def readers_of(resolved: Resolved) -> list[ReaderNeed]:
    """One entry for each process; rewards and evaluations that pay alike share theirs.

    Raises:
        UsageError: there is no such reward model.
    """
    needs: dict[tuple[object, ...], list[ReaderNeed]] = {}
    for section in (*resolved.rewards, *resolved.evaluate.rewards):
        if not reads_model(section.use) or "model" not in section.options:
            continue
        model = read_model(model_folder(str(section.options["model"]), resolved.run.root))
        gpus, workers = section.options.get("device_gpus", 0.0), section.options.get("workers", 1)
        bytes_each = 2 if model.info["precision"] == "bf16" else 4
        gib = describe_checkpoint(model.weights(whole=False)).parameters * bytes_each / 2**30
        setting = f"rewards.{section.label}.options.device_gpus"
        need = ReaderNeed(f"reward model {section.label}", setting, float(gpus), gib)
        needs.setdefault((model.hash, gpus, workers), [need] * workers)
    return [need for processes in needs.values() for need in processes]
