"""What is checked on a GPU machine, and what is not built and so not checked."""

from __future__ import annotations

from typing import Final

from tests.gpu.outcome import Check

TURNS: Final = (  # an engine and a trainer take turns on one device
    "models.team.num_gpus=0.4",
    "models.team.gpu_memory_fraction=0.3",
    "models.team.trainer.num_gpus=0.6",
)
APART: Final = (
    "models.team.num_gpus=1",
    "models.team.gpu_memory_fraction=0.8",
    "models.team.trainer.num_gpus=1",
)
RUNS: Final = {
    "torch engine": (*TURNS, 'models.team.engine="torch"'),
    "adapters": (*TURNS, 'sharing.regime="adapters"', "models.team.adapter={rank=8}"),
    "apart": APART,
    "two ranks": (*TURNS, "models.team.trainer.ranks=2", "models.team.trainer.zero_stage=2"),
    "replicas": (
        *TURNS,
        "models.team.num_gpus=0.6",
        "models.team.trainer.num_gpus=0.4",
        "models.team.replicas=2",
    ),
}
"""Settings of one iteration of the team that ships, by name."""

_LOOP: Final = "exit code 0, new weights of every model, a gap of sampler and trainer below 0.1 nats"

CHECKS: Final = (
    Check("devices", "a CUDA build of torch that sees every GPU, each with bfloat16", "machine:devices"),
    Check(
        "flex attention",
        "compiled, forward and backward, within 2 % of the definition in float32",
        "kernels:flex_attention",
        seconds=120,
    ),
    Check(
        "trainer in bf16",
        "one update whose gradient norm is within 5 % of plain torch in float32 on CPU",
        "kernels:trainer",
        seconds=120,
        arguments={"precision": "bf16"},
    ),
    Check(
        "vLLM sleeps and wakes",
        "less than a fifth of its memory is held asleep; awake it answers as before",
        "engines:sleep_and_wake",
        seconds=150,
        arguments={"kind": "vllm"},
    ),
    Check("train, evaluate, go on: colocated", f"{_LOOP}, twice", "runs:train", 1, 240),
    Check("iteration, apart", _LOOP, "runs:iteration", 2, 200, {"name": "apart"}),
    Check("iteration, two ranks, ZeRO 2", _LOOP, "runs:iteration", 2, 200, {"name": "two ranks"}),
    Check("iteration, two replicas", _LOOP, "runs:iteration", 2, 240, {"name": "replicas"}),
    Check("iteration, adapters", _LOOP, "runs:iteration", 1, 200, {"name": "adapters"}),
    Check(
        "memory of a 0.5 B trainer",
        "its peak within 25 % of the plan's",
        "memory:trainer",
        arguments={"size": "0.5b"},
        seconds=90,
    ),
    Check(
        "memory of the largest trainer up to 7 B",
        "its peak within 25 % of the plan's, which says that it fits",
        "memory:largest",
        seconds=180,
    ),
    Check("tensor parallel", "an engine on two GPUs answers", "engines:answers", 2, 150, {"num_gpus": 2}),
    Check("iteration, torch engine", _LOOP, "runs:iteration", 1, 200, {"name": "torch engine"}),
    Check(
        "torch engine sleeps and wakes",
        "less than a fifth of its memory is held asleep; awake it answers as before",
        "engines:sleep_and_wake",
        arguments={"kind": "torch"},
    ),
)

NOT_BUILT: Final = {
    "ZeRO 3": "zero_stage takes 0, 1 and 2",
    "offload of optimizer or weights": "models.<id>.trainer has no `offload`",
    "device weight sync": "weights reach engines as files",
    "resume with other ranks, stage or precision": "a checkpoint is refused by a trainer of another cut",
}
"""Features that today's code does not have, and how one sees it."""
