"""One trainable unit in one rank: its network under DeepSpeed, its optimizer, critic, version and report.

`TrainWorker` is the process, a unit is what a model id stands for. Everything that an update, a score
pass or a checkpoint touches hangs on the unit.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor

from stages.training.gradients.held import CoherenceDamping
from stages.training.gradients.parts import PartGradients
from stages.training.loss.spec import LossSpec
from stages.training.network.adapted import AdaptedPolicy, Base, adapted_policy
from stages.training.network.critic import Critic, load_critic
from stages.training.network.deepspeed import Network
from stages.training.network.packing import MicroBatch
from stages.training.network.policy import Outputs, Policy, load_network
from stages.training.spec import TrainerSpec, UpdateReport
from workflows.errors import RunFailed


class Unit:
    """Made by `TrainWorker.start`; `load` of a checkpoint fills in what it resumes from.

    The policy is a whole network, or an adapter on one of `bases`, which the process keeps.
    """

    def __init__(
        self, spec: TrainerSpec, rank: int, device: torch.device, version: int, bases: dict[str, Base]
    ) -> None:
        self.spec, self.rank, self.device, self.version = spec, rank, device, version
        self.last_report: UpdateReport | None = None
        self.kl_scale = 1.0  # of the update that is made now
        self.trust: Any = None  # the `TrustRegion` of the update that is made now, where there is one
        self.held: Any = None  # the `Snapshot` from before the last update, while its candidate is on trial
        self.trained = (0, 0)  # rows and tokens that went through since the start: for progress
        self.policy: Policy | AdaptedPolicy
        if spec.adapter is not None:
            self.policy = adapted_policy(spec, device, bases)
            model, self.window = self.policy.base.model, self.policy.base.window
        else:
            loaded = load_network(
                spec.checkpoint,
                precision=spec.precision,
                packed=spec.shared_prefix,
                activation_checkpointing=spec.activation_checkpointing,
                compile=spec.compile,
            )
            model, self.window = loaded.model, loaded.window
            self.stored_dtype = loaded.stored_dtype
            self.policy = Policy(model).to(device)
        self.vocabulary = int(model.get_input_embeddings().num_embeddings)
        self.network = Network(spec, self.policy, self.policy.parameters())
        self.parts: PartGradients | None = None
        if spec.measure.is_on:
            self.parts = PartGradients(
                self.policy.parameters(), spec.measure, seed=spec.seed, ranks=spec.ranks
            )
        self.damping: CoherenceDamping | None = None
        if spec.shaping.coherence_damping:
            self.damping = CoherenceDamping(spec.shaping.coherence_damping, spec.shaping.coherence_window)
        self.critic: Critic | None = None
        if spec.critic is not None:
            self.critic = load_critic(spec, self.policy.width, device)
        self._reference: Policy | None = None

    @property
    def engine(self) -> Any:
        return self.network.engine

    @property
    def learning_rate(self) -> float:
        """Of the update that starts from this version."""
        return self.spec.learning_rate * self.spec.schedule.share(self.version)

    @property
    def loss(self) -> LossSpec:
        """What the update that is made now minimises: the loss with its KL coefficients as they are now."""
        return self.spec.loss.with_kl_scale(self.kl_scale)

    @property
    def warms_up(self) -> bool:
        """Whether only the critic learns now."""
        return self.spec.critic is not None and self.version < self.spec.critic.warmup_updates

    def reference(self, batch: MicroBatch) -> Tensor:
        """Logprobs (N,) of the frozen reference, which is loaded when it is first asked for.

        Raises:
            RunFailed: the trainer has none.
        """
        if self._reference is None:
            where = self.spec.reference.checkpoint if self.spec.reference else None
            if isinstance(self.policy, AdaptedPolicy) and where == "initial":
                return self.policy.base.logprobs(batch)
            self._reference = self._load_reference()
        outputs: Outputs = self._reference(batch)
        return outputs[0]

    def count(self, batch: MicroBatch) -> None:
        """Tell progress that a micro-batch is through."""
        rows, tokens = self.trained
        self.trained = (rows + len(batch.keys), tokens + batch.num_forward_tokens)

    def gradient_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of gradients: running means; {} where the unit has none."""
        parts = {"parts": self.parts.state()} if self.parts is not None else {}
        return parts | ({"damping": self.damping.state()} if self.damping is not None else {})

    def restore_gradients(self, state: dict[str, Any]) -> None:
        """Go on with the running means of a checkpoint, as far as it has those that the unit has."""
        if self.parts is not None and "parts" in state:
            self.parts.restore(state["parts"])
        if self.damping is not None and "damping" in state:
            self.damping.restore(state["damping"], self.device)

    def close(self) -> None:
        if self.parts is not None:
            self.parts.close()
        self.network.close()
        if self.critic is not None:
            self.critic.close()
        self._reference = None
        gc.collect()

    def _load_reference(self) -> Policy:
        spec = self.spec
        if spec.reference is None:
            raise RunFailed(f"the trainer of model {spec.model_id!r} has no reference to score with")
        where = spec.reference.checkpoint
        loaded = load_network(
            spec.checkpoint if where == "initial" else where,
            precision=spec.precision,
            packed=spec.shared_prefix,
        )
        return Policy(loaded.model.requires_grad_(False)).to(self.device)
