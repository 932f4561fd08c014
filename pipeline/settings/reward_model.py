"""`[reward_model]`: how a model of which play is better is trained (`reward-model train`)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.settings.adapter import AdapterSection
from pipeline.settings.section import Amount, Count, Positive, Section
from pipeline.settings.training import TrainerSection


class RewardModelSection(Section):
    """Which pairs of stored plays `reward-model train` learns from, and how."""

    value: str | None = None
    """What a play earned: the name of a reward (its mean over turns); without it, the mean return."""
    margin: Amount = 0.1
    """Two plays of a task are a pair where what they earned differs by at least this."""
    pairs_per_task: Positive = 32
    """Most pairs of one task, drawn by run.seed."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of the tasks whose pairs train nothing and measure the model."""
    context: Annotated[int, Field(ge=16)] = 1024
    """Most tokens of a play's text; of a longer one the middle is left out."""
    head_only: bool = False
    """Train the value head alone, on the network as it is."""
    adapter: AdapterSection | None = None
    """Train an adapter and the head, and not the whole network."""
    passes: Positive = 1
    """Passes over the pairs."""
    pairs_per_step: Positive = 64
    """Pairs of one optimizer step, in whole tasks: a step ends with the task that reaches it."""
    micro_batch_tokens: Positive = 4096
    """Tokens of one forward pass, what texts begin with alike counted once."""
    learning_rate: Amount = 1e-5
    """Learning rate of the network or its adapter."""
    head_learning_rate: Amount = 1e-3
    """Learning rate of the value head."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How both learning rates fall to 0 over all optimizer steps."""
    warmup_steps: Count = 0
    """Optimizer steps in which the learning rates rise."""
    weight_decay: Amount = 0.0
    """Weight decay of the network or its adapter."""
    gradient_clip: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the gradient, of the network and of the head each."""
    centring: Amount = 0.0
    """Weight of the square of the sum of a pair's scores, which keeps scores around 0 (TRL's
    center_rewards_coefficient)."""
    save_steps: Positive = 100
    """Optimizer steps from one checkpoint to the next: what a stop loses at most."""
    trainer: TrainerSection = TrainerSection()
    """How the model is trained."""
