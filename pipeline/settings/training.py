"""The sections about training: [ppo], [advantage], [critic], and what models and roles override."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pipeline.settings.section import Amount, Count, Positive, Section, Share


class TrainerSection(Section):
    ranks: Positive = 1
    zero_stage: Literal[0, 1, 2] = 1
    # of compute; auto: bf16 on a GPU and on a processor that has instructions for it, else fp32
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    shared_prefix: bool = True  # compute a prompt that rows of a micro-batch share once, and pad nothing
    activation_checkpointing: bool = False
    compile: bool = False  # torch.compile for normalisations and feed-forward layers
    num_threads: Count = 0  # per rank; 0: cores / ranks
    num_gpus: Amount = 0.0  # per rank


class PpoSection(Section):
    """The update of a model; [models.<id>.ppo] and [roles.<name>.ppo] override single keys."""

    learning_rate: Amount = 1e-6
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # of the learning rate, over updates
    warmup_updates: Count = 0
    total_updates: Positive | None = None  # where a falling schedule ends
    final_share: Share = 0.0  # of the learning rate, there
    loss: str = "ppo"  # gspo, cispo, policy_gradient, supervised, or package.module:function
    normalisation: Literal["token_mean", "sequence_mean", "fixed_length"] | None = None
    # None: token_mean, and sequence_mean for gspo
    fixed_length: Positive | None = None  # None: the longest answer that the model's roles may give
    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2  # 1: no lower bound
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    dual_clip: Amount = 3.0  # 0: off
    entropy_coefficient: Amount = 0.0
    kl_coefficient: Amount = 0.0  # to the model's reference
    kl_in: Literal["loss", "reward"] = "loss"
    kl_estimator: Literal["k1", "k2", "k3"] | None = None  # None: k3 in the loss, k1 in the reward
    importance: Literal["none", "truncated", "masked"] = "none"  # correction of sampler against trainer
    importance_level: Literal["token", "sequence"] = "token"
    importance_cap: Annotated[float, Field(gt=0)] = 2.0
    importance_floor: Amount = 0.0  # of "masked"
    epochs: Positive = 1
    mini_batches: Positive = 1  # optimizer steps per epoch
    micro_batch_tokens: Positive = (
        2048  # of one forward pass: sets the accumulation; shared prompts count once
    )
    gradient_clip: Annotated[float, Field(gt=0)] = 1.0
    weight_decay: Amount = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: Annotated[float, Field(gt=0)] = 1e-8


LOSS_TERMS = frozenset({"clip_low", "clip_high", "kl_coefficient", "entropy_coefficient"})
"""Keys of [ppo] that a role may have of its own where it shares its model; and `weight`."""


OPTIMIZER_KEYS = frozenset({"learning_rate", "betas", "eps", "weight_decay", "gradient_clip", "epochs"})
"""Keys of [ppo] that a trainer takes as they are."""


class AdvantageSection(Section):
    use: Literal["from_credit", "gae"] = "from_credit"
    gamma: Share = 1.0  # of gae: from token to token
    lam: Share = 1.0
    turn_gamma: Share = 1.0  # from turn to turn
    turn_lam: Share = 1.0
    across_turns: bool = False  # a turn is answerable for what later turns of its episode earn
    whiten: Literal["none", "model", "role"] = "none"


class CriticSection(Section):
    """[critic]; [models.<id>.critic] overrides single keys."""

    kind: Literal["head", "model"] = "head"  # on the model itself, or a network of its own
    checkpoint: str | None = None  # of kind "model"; None: the model's own
    learning_rate: Amount = 1e-5
    value_clip: Amount = 0.5  # how far an update may move a value; 0: off
    coefficient: Amount = 0.5
    warmup_updates: Count = 0  # in which the critic learns and the policy does not move


class CreditSection(Section):
    use: str | None = None  # None: group_relative; none with [advantage] use = "gae" and no options
    options: dict[str, Any] = {}
    truncated: Literal["as_malformed", "exclude"] = "as_malformed"
    silent: Literal["keep", "exclude"] = "keep"  # groups whose returns are all equal
    silent_by: str | None = None  # the reward that decides what is equal; None: the return
