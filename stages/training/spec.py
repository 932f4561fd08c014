"""What a trainer is made from, and what an update reports. No torch here: settings import this."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from stages.tables.parquet import TableRef
from stages.training.gradients.spec import MeasureSpec, ShapingSpec
from stages.training.loss.spec import CriticSpec, LossSpec, ReferenceSpec, ScheduleSpec
from stages.training.trust.spec import TrustSpec, TrustState
from stages.weights.adapters import AdapterSpec, adapter_parameters
from workflows.errors import UsageError


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """One trainable unit: its weights, its ranks and its optimizer.

    Raises:
        UsageError: a value that no update can run with.
    """

    model_id: str
    base_id: str
    checkpoint: str  # resolved: the local folder of the initial weights, in Hugging Face layout
    adapter: AdapterSpec | None = None  # on these weights, which are then frozen; None: they are trained
    ranks: int = 1  # data-parallel worker processes
    zero_stage: int = 1  # DeepSpeed ZeRO: 0 nothing, 1 optimizer state, 2 gradients too, spread over ranks
    precision: Literal["bf16", "fp32"] = "bf16"  # of compute; master weights and moments are always fp32
    learning_rate: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    gradient_clip: float = 1.0  # global norm; 0 is off
    loss: LossSpec = field(default_factory=LossSpec)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)  # of the learning rates, by version
    critic: CriticSpec | None = None
    reference: ReferenceSpec | None = None
    epochs: int = 1  # passes over the partition in one update
    shared_prefix: bool = True  # compute a prompt that rows of a micro-batch share once, and pad nothing
    activation_checkpointing: bool = False
    compile: bool = False  # torch.compile for normalisations and feed-forward layers
    num_threads: int = 0  # per rank; 0 is the machine's cores divided by the ranks
    num_gpus: float = 0.0  # per rank; 0 trains on CPU with gloo
    seed: int = 0
    measure: MeasureSpec = field(default_factory=MeasureSpec)  # of gradients by role
    shaping: ShapingSpec = field(default_factory=ShapingSpec)  # of the gradient, before it is clipped
    trust: TrustSpec | None = None  # how far one update may go; None sets no bound
    begins: int = 0  # the version of the initial weights: above 0 where they took another model's place
    init_timeout_seconds: float = 300.0
    update_timeout_seconds: float = 3600.0  # of one update or save; a rank that hangs longer ends the run

    def __post_init__(self) -> None:
        problems = {
            "ranks must be 1 or more": self.ranks < 1,
            "zero_stage must be 0, 1 or 2 (stage 3, which spreads weights, is not supported)": (
                self.zero_stage not in (0, 1, 2)
            ),
            "precision must be 'bf16' or 'fp32'": self.precision not in ("bf16", "fp32"),
            "learning_rate must be 0 or more": self.learning_rate < 0,
            "gradient_clip must be 0 (off) or more": self.gradient_clip < 0,
            "epochs must be 1 or more": self.epochs < 1,
            "compile must be false for an adapter: compiled layers would not see it": (
                self.compile and self.adapter is not None
            ),
            "num_gpus must be 1 or less (a rank computes on one device; raise ranks instead)": (
                self.num_gpus > 1
            ),
            "num_gpus must be above 0.5 with more ranks than one (NCCL refuses two ranks on one device)": (
                0 < self.num_gpus <= 0.5 and self.ranks > 1
            ),
            'shaping by role (max_role_share, damp_copies) needs measure.gradients = "exact"': (
                self.shaping.by_part and self.measure.gradients != "exact"
            ),
        }
        for problem, is_so in problems.items():
            if is_so:
                name = problem.split()[0]
                raise UsageError(
                    f"trainer of model {self.model_id!r}: {problem}; got {getattr(self, name)!r}"
                )


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What one update did. `steps` and `summary` are rows of the `UPDATES` table.

    `update_id` says which update it was: see `update_id_of`. Reports of checkpoints that were written before
    there were blocks have none.
    """

    model_id: str
    iteration: int
    version_before: int
    version_after: int  # equal to `version_before` where the update was skipped or rejected
    num_rows: int
    num_tokens: int  # response tokens in the loss, over all ranks
    num_forward_tokens: int  # prompt and response tokens, a shared prompt counted for every row
    seconds: float
    skipped: str | None = None  # why no optimizer step was made
    excluded: dict[str, int] = field(default_factory=dict)  # rows of the partition not trained on, by reason
    steps: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    block: int = 0
    update_id: str = ""
    measures: dict[str, float] = field(default_factory=dict)  # what has no column: MEASURES of stages.update
    roles: list[dict[str, Any]] = field(default_factory=list)  # rows of `ROLE_UPDATES`, where measured
    pairs: list[dict[str, Any]] = field(default_factory=list)  # rows of `ROLE_PAIRS`
    trust: dict[str, Any] | None = None  # the row of `TRUST`, where the model has a trust region
    ratios: list[dict[str, Any]] = field(default_factory=list)  # rows of `RATIOS`, where all are measured
    on_trial: bool = False  # whether the candidate may still be taken back: see `TrainerGroup.settle`

    def rows(self) -> list[dict[str, Any]]:
        """Rows for the `UPDATES` table: one per optimizer step, the summary last."""
        return [*self.steps, self.summary]


@dataclass(frozen=True, slots=True)
class DistillSpec:
    """How a newcomer is taught what its predecessor said: see `stages.training.distill`.

    Raises:
        UsageError: a number that teaches nothing.
    """

    teacher: str | None  # folder of the predecessor's weights; None: the responses themselves are imitated
    bound: float = 0.01  # nats per token: KL(predecessor ‖ target)
    passes: int = 3
    learning_rate: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("bound", "passes", "learning_rate"):
            if not getattr(self, name) > 0:
                raise UsageError(f"distillation: {name} is {getattr(self, name)}; use a number above 0")


@dataclass(slots=True)
class DistillReport:
    """What a newcomer was taught. Means are over tokens, in nats."""

    tokens: int  # response tokens of one pass, over all ranks
    steps: list[dict[str, Any]] = field(
        default_factory=list
    )  # one per optimizer step: pass, loss, gradient_norm
    target_kl: float = 0.0  # KL(predecessor ‖ target)
    exponent: float = 0.0  # of the target: 0 is the predecessor, 1 the newcomer

    def weigh(self, tokens: int, target_kl: float, exponent: float) -> None:
        """Add the means of one optimizer step of the first pass."""
        self.target_kl += target_kl * tokens / self.tokens
        self.exponent += exponent * tokens / self.tokens


@dataclass(frozen=True, slots=True)
class RankingSpec:
    """How a reward model learns from pairs of plays: see `stages.training.ranking`."""

    trunk: bool = True  # train the network, or the adapter on it, with the head; else the head alone
    centring: float = 0.0  # weight of what keeps scores around 0
    seed: int = 0  # of the order of optimizer steps, pass by pass


@dataclass(slots=True)
class RankingReport:
    """What a reward model did in some optimizer steps."""

    steps_a_pass: int
    steps: list[dict[str, Any]] = field(default_factory=list)  # one each, see `ranking._step`


def update_id_of(
    model_id: str, version: int, tables: Iterable[TableRef | None], trust: TrustState | None = None
) -> str:
    """What makes an update the one that it is: the model, the version that it starts from, the content of the
    tables that it reads, and what its trust region begins with."""
    hashes = ["-" if table is None else table.hash for table in tables]
    text = "\0".join([model_id, str(version), *hashes, *([] if trust is None else [trust.identity])])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# Bytes per parameter: fp32 master, two fp32 moments and fp32 gradients, beside the compute weights and
# their gradients.
_STATE_BYTES = 12
_FP32_GRADIENT_BYTES = 4


def memory_estimate(spec: TrainerSpec, parameters: int, roles: int = 1) -> float:
    """GiB that all ranks of a trainer hold together while it waits, measured high rather than low.

    An adapter's base and processes are left out: `base_estimate` has them, once for all its adapters.

    The optimizer state (12 bytes a parameter) is spread over ranks from ZeRO stage 1 on; a process
    costs 0.8 GiB by itself. A critic of its own costs what the policy does, a reference one more copy
    of the compute weights in every rank; both are taken to be of the policy's size. Gradients of `roles` that
    are measured exactly cost two in float32 for each, and damping costs two. What an update needs on top is
    `activation_estimate`.
    """
    compute = 2 if spec.precision == "bf16" else 4
    copies = 1 if spec.zero_stage else spec.ranks
    each = _STATE_BYTES * copies + (2 * compute + _FP32_GRADIENT_BYTES) * spec.ranks
    frozen = parameters * compute * spec.ranks if spec.reference is not None else 0
    process = 0.8 * spec.ranks
    trained = parameters
    if spec.adapter is not None:
        trained = adapter_parameters(spec.adapter, spec.checkpoint, f"models.{spec.model_id}.adapter.targets")
        process = 0.0
        if spec.reference is not None and spec.reference.checkpoint == "initial":
            frozen = 0  # the base without the adapter
    kept = 2 * roles * (spec.measure.gradients == "exact") + 2 * bool(spec.shaping.coherence_damping)
    measured = trained * _FP32_GRADIENT_BYTES * kept * spec.ranks
    if spec.trust is not None and spec.trust.judges:  # weights and moments of before, and the candidate
        measured += trained * (_STATE_BYTES + 4) * copies
    if spec.critic is not None and spec.critic.kind == "model":
        trained += parameters
    return (trained * each + frozen + measured) / 2**30 + process


def base_estimate(spec: TrainerSpec, parameters: int) -> float:
    """GiB of the frozen base that adapters share in all ranks of a trainer, and of the ranks' processes."""
    compute = 2 if spec.precision == "bf16" else 4
    return parameters * compute * spec.ranks / 2**30 + 0.8 * spec.ranks


def activation_estimate(spec: TrainerSpec, parameters: int, micro_batch_tokens: int) -> float:
    """GiB that all ranks need on top while they train; one trainer does at a time, and gives it back.

    1,100 KiB per token of a micro-batch per 100 million parameters: measured 1.6 GiB for 135 million
    parameters in bf16 with 1152 tokens, without activation checkpointing. `micro_batch_tokens` counts a
    shared prompt once where the trainer does. Policy and critic train one after the other; a value head
    adds nothing to speak of.
    """
    activations = micro_batch_tokens * spec.ranks * 1100 * 1024 * (parameters / 1e8)
    return activations / (4 if spec.activation_checkpointing else 1) / 2**30
