"""The sections about training: [ppo], [advantage], [critic], and what models and roles override."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field

from pipeline.settings.section import Amount, Count, Name, Positive, Section, Share
from stages.training.gradients.spec import MOST_DAMPING, Detail

CLIP: Final = {"clip_low": 0.2, "clip_high": 0.2}
DEFAULTS_OF_LOSS: Final[Mapping[str, Mapping[str, float]]] = {
    # ratios of whole replies are far closer to 1 than those of tokens: GSPO, arXiv:2507.18071, section 5.1
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4},
    # arXiv:2505.22617
    "clip_cov": {"cov_share": 2e-4},
    "kl_cov": {"cov_share": 2e-3},
}
"""What keys of [ppo] are under a loss where the settings do not name them; others have no such value."""

Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainerSection(Section):
    ranks: Positive = 1
    """Processes that train the model together."""
    zero_stage: Literal[0, 1, 2] = 1
    """DeepSpeed's ZeRO stage: 1 spreads the optimizer's state over ranks, 2 the gradients too."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Precision of compute; auto is bf16 on a GPU and on a processor made for it, else fp32."""
    shared_prefix: bool = True
    """Compute once what rows of a micro-batch begin with alike, without padding."""
    activation_checkpointing: bool = False
    """Compute activations twice instead of keeping them: less memory, more time."""
    compile: bool = False
    """Use torch.compile for normalisations and feed-forward layers."""
    num_threads: Count = 0
    """Threads of each rank; 0 shares the cores among the ranks."""
    num_gpus: Amount = 0.0
    """GPUs of each rank; parts of one are possible."""


class PpoSection(Section):
    """The update of a model; [models.<id>.ppo] and [roles.<name>.ppo] override single keys."""

    later = frozenset(
        {
            *("cov_share", "cov_low", "cov_high", "cov_kl_coefficient", "kl_target", "kl_step"),
            *("coherence_damping", "coherence_window", "max_role_share", "damp_copies"),
        }
    )

    learning_rate: Amount = 1e-6
    """Learning rate of AdamW."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls over the updates."""
    warmup_updates: Count = 0
    """Updates in which the learning rate rises to its value."""
    total_updates: Positive | None = None
    """The update at which a falling schedule ends."""
    final_share: Share = 0.0
    """Share of the learning rate that is left at the end of a falling schedule."""
    loss: str = "ppo"
    """ppo, gspo, message (PPO's clip on the product of a reply's ratios), cispo, clip_cov, kl_cov,
    policy_gradient, supervised, or package.module:function of your own."""
    normalisation: Literal["token_mean", "sequence_mean", "fixed_length"] | None = None
    """What the summed loss is divided by; without it, token_mean, and sequence_mean for gspo."""
    fixed_length: Positive | None = None
    """Tokens of a response for normalisation fixed_length; without it, the longest answer that the model's
    roles may give."""
    clip_low: Annotated[float, Field(gt=0, le=1)] | None = None
    """How far the ratio of new to old policy may fall below 1; 1 sets no bound; without it, 0.2, and 0.0003
    for gspo, whose ratio is of whole replies."""
    clip_high: Annotated[float, Field(gt=0)] | None = None
    """How far the ratio of new to old policy may rise above 1; without it, 0.2, and 0.0004 for gspo."""
    dual_clip: Amount = 3.0
    """Bound on the loss of a token with a negative advantage, in units of the advantage; 0 is off."""
    cov_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of an optimizer step's tokens that clip_cov and kl_cov hold back, rounded up to whole tokens;
    without it, 0.0002 for clip_cov and 0.002 for kl_cov."""
    cov_low: float = 1.0
    """Lowest covariance of logprob and advantage of a token that clip_cov may hold back."""
    cov_high: float = 5.0
    """Highest covariance of a token that clip_cov may hold back."""
    cov_kl_coefficient: Amount = 1.0
    """Weight of the KL to the policy of before the update, for the tokens that kl_cov holds back."""
    entropy_coefficient: Amount = 0.0
    """Weight of the entropy bonus."""
    kl_coefficient: Amount = 0.0
    """Weight of the KL term to the model's reference."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Whether the KL term is part of the loss or of the reward."""
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    """Estimator of the KL; without it, k3 in the loss and k1 in the reward."""
    kl_target: Annotated[float, Field(gt=0)] | None = None
    """Nats per token that an adaptive coefficient steers the KL to; without it, the coefficient stays."""
    kl_step: Annotated[float, Field(gt=0, lt=5)] = 0.1
    """How fast an adaptive coefficient follows: by a fifth of this in an iteration at most."""
    importance: Literal["none", "truncated", "masked"] = "none"
    """Correction of the gap between sampler and trainer: weights that are cut at a cap, or tokens beyond it
    that are left out."""
    importance_level: Literal["token", "sequence"] = "token"
    """Whether weights are of single tokens or of whole sequences."""
    importance_cap: Annotated[float, Field(gt=0)] = 2.0
    """Largest weight."""
    importance_floor: Amount = 0.0
    """Smallest weight, for masked."""
    epochs: Positive = 1
    """Passes over an iteration's rows."""
    mini_batches: Positive = 1
    """Optimizer steps in each epoch."""
    micro_batch_tokens: Positive = 2048
    """Tokens of one forward pass, prompts that are shared counted once; it sets the accumulation."""
    gradient_clip: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the gradient."""
    weight_decay: Amount = 0.01
    """Weight decay of AdamW."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Betas of AdamW."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """Epsilon of AdamW."""
    coherence_damping: Annotated[float, Field(ge=0, le=MOST_DAMPING)] = 0.0
    """Before clipping, multiply the gradient by 1 minus this times its cosine with its own running mean,
    where that is above 0; 0 is off."""
    coherence_window: Positive = 32
    """Optimizer steps of the running mean of coherence_damping."""
    max_role_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Largest share that one role may have of the sum of all roles' gradient norms in its model; 1 is off."""
    damp_copies: bool = False
    """Multiply the gradient of a role's N parallel copies by min(1, 1 / (√N · redundancy)), so that copies
    that agree count as √N."""

    def settled(self) -> Self:
        """The section with what its loss has of its own, where no other value is named."""
        defaults = {**CLIP, **DEFAULTS_OF_LOSS.get(self.loss, {})}
        unnamed = {key: value for key, value in defaults.items() if getattr(self, key) is None}
        return self.model_copy(update=unnamed) if unnamed else self


LOSS_TERMS = frozenset({"clip_low", "clip_high", "kl_coefficient", "entropy_coefficient"})
"""Keys of [ppo] that a role may have of its own where it shares its model; and `weight`."""


OPTIMIZER_KEYS = frozenset({"learning_rate", "betas", "eps", "weight_decay", "gradient_clip", "epochs"})
"""Keys of [ppo] that a trainer takes as they are."""


class MeasureSection(Section):
    """What updates measure of each role, in the tables role_updates and role_pairs, and in metrics."""

    gradients: Detail = "off"
    """Measure gradients by role, in forward passes that never mix roles or parallel copies of one: exact (the
    memory of a gradient for each), estimate (a fixed random projection) or off."""
    window: Positive = 32
    """Optimizer steps of the running mean that the gradient of a role is compared with."""
    drift: bool = False
    """Measure the KL of each role to its model's reference on one micro-batch in every update, where the loss
    has no KL term that measures it anyway."""


class TrustSection(Section):
    """How far one update may move a model from the policy that sampled its rows, and what is done about it;
    [models.<id>.trust_region] overrides single keys."""

    later = frozenset({"trial_tasks", "trial_samples"})

    radius: Annotated[float, Field(gt=0)] | None = None
    """Nats that an update may go, in the measure below, watched and logged where nothing else is set; without
    it there is no trust region."""
    measure: Literal["token", "message", "episode"] = "message"
    """What the divergence is of: a token, a message (sum of its tokens) or an episode (sum of the messages of
    the model in it); radii of different measures are different numbers."""
    estimator: Literal["k1", "k3", "exact"] = "k3"
    """k1 and k3 look at sampled tokens; exact at the likeliest top_k and the rest together."""
    top_k: Positive = 64
    """Tokens that exact looks at one by one; with as many as the vocabulary has, it is exact."""
    direction: Literal["start_to_new", "new_to_start"] = "start_to_new"
    """start_to_new is KL(start ‖ new), new_to_start is KL(new ‖ start); start is the policy that sampled."""
    quantile: Share = 0.0
    """The quantile over tokens, messages or episodes that must be within the radius; 0 is their mean."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the forward passes whose rows are measured."""
    penalty: Amount = 0.0
    """First coefficient of the divergence in the loss; it doubles above 1.5 times the radius and halves below
    a 1.5th of it, from update to update; 0 is off."""
    stop_at: Amount = 0.0
    """End the steps of an update whose divergence is above this times the radius; 0 is off."""
    mask_above: Amount = 0.0
    """Take messages out of the loss that alone are further than this, in nats; 0 is off."""
    backtrack: Annotated[int, Field(ge=0, le=20)] = 0
    """How often the step is halved, from the whole of it, until it is good enough; 0 is off."""
    reject: bool = False
    """Put back weights, optimizer and critic where no part of the step is good enough, and halve the radius
    of the next update."""
    certificate: bool = False
    """Good enough means also that a lower bound on the gain is above minus tolerance."""
    z: Amount = 1.64
    """Standard errors that the certificate, and the bound of a trial, subtract."""
    tolerance: Amount = 0.0
    """How far below 0 the certificate, or the bound of a trial, may be."""
    return_range: Annotated[float, Field(gt=0)] = 1.0
    """Difference of the highest and the lowest return, for the certificate of a model that speaks more than
    once."""
    trial_tasks: Annotated[int, Field(ge=0)] = 0
    """Good enough means also that the team stands a trial: it plays so many held-out tasks of evaluate.split
    with the candidate and without it, and a lower bound on the gain is at least minus tolerance; 0 is off."""
    trial_samples: Positive = 1
    """Plays of each of these tasks, with and without the candidate."""


class AdvantageSection(Section):
    later = frozenset({"bootstrap_cut", "clip"})

    use: Literal["from_credit", "gae"] = "from_credit"
    """from_credit gives every token its turn's advantage, gae makes advantages of a critic's values."""
    gamma: Share = 1.0
    """GAE: discount from token to token."""
    lam: Share = 1.0
    """GAE: lambda from token to token."""
    turn_gamma: Share = 1.0
    """GAE: discount from turn to turn."""
    turn_lam: Share = 1.0
    """GAE: lambda from turn to turn."""
    across_turns: bool = False
    """GAE: a turn also answers for what later turns of its episode earn."""
    bootstrap_cut: bool = False
    """GAE: what a limit cut off (a reply at its token limit; across turns, an episode at its limit of turns
    or of context) is worth the critic's value after its last token, and not 0."""
    whiten: Literal["none", "model", "role"] = "none"
    """Give advantages mean 0 and deviation 1, over a model or over each role."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Cut advantages at this number and at its negative, after whitening; without it, they are not cut."""


class CriticSection(Section):
    """The critic of GAE; [models.<id>.critic] overrides single keys."""

    later = frozenset({"heads"})

    kind: Literal["head", "model"] = "head"
    """A head on the model itself, or a model of its own."""
    heads: Literal["shared", "role"] = "shared"
    """One value head for all roles of a model, or one for each role on the same trunk."""
    checkpoint: str | None = None
    """Checkpoint of a critic of kind model; without it, the policy's."""
    learning_rate: Amount = 1e-5
    """Learning rate of the critic."""
    value_clip: Amount = 0.5
    """How far an update may move a value; 0 is off."""
    coefficient: Amount = 0.5
    """Weight of the value loss."""
    warmup_updates: Count = 0
    """First updates, in which the critic learns and the policy does not move."""


class ChannelSection(Section):
    """One channel of credit: what a unit of the team's work earned. The advantage that is trained on is the
    sum of weight times value over all channels."""

    use: str
    """A channel that ships: credit (what credit.use gives), outcome, siblings, tool_calls, critical_path,
    shapley, surprise, message, difference, stop; or package.module:Class of your own."""
    name: Name | None = None
    """Name of the channel in tables and metrics; without it, the last word of use."""
    weight: float = 1.0
    """Weight in the advantage; 0 keeps and shows the channel, and trains on nothing of it."""
    options: dict[str, Any] = {}
    """Options of the channel."""

    @property
    def label(self) -> str:
        """The name of its rows in `credit_channels`."""
        return self.name or self.use.rsplit(":", 1)[-1].rsplit(".", 1)[-1]


class CounterfactualsSection(Section):
    """Replays of an iteration's plays with one message replaced: what was it worth? Off without ops."""

    later = frozenset({"permutations", "unit"})

    ops: tuple[Literal["resample", "drop", "null", "swap", "paraphrase", "mask", "shapley"], ...] = ()
    """What is done with a message: resample (the role says something else), drop, null (a placeholder), swap
    (with another play of the task), paraphrase (a control), mask (for one recipient), shapley (a reply that
    reads several is made again with sets of them nulled, for their Shapley values)."""
    unit: Literal["reply", "act"] = "reply"
    """What is replaced: a reply as a whole, or (with null, swap and paraphrase) each brief, piece of work and
    message that it hands to another play on its own, with credit on the tokens that say it."""
    tokens: Positive | None = None
    """Response tokens that the replays of one rollout may sample, on average; without it, every message is
    replayed."""
    alternatives: Positive = 1
    """Resampled replies of each message."""
    roles: tuple[str, ...] = ()
    """Roles whose messages may be replaced; without it, all."""
    explore: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Share of the tokens that is spread evenly over all messages; the rest goes where replays teach most."""
    cheap: Literal["fitted", "team", "zero"] = "fitted"
    """What a message is expected to be worth without its own replay: a line in its episode's team credit,
    fitted to the replays of other tasks; that credit itself; or nothing."""
    paraphrase: str | None = None
    """A function that puts a text in other words, package.module:function, for paraphrase."""
    placeholder: str = "(no message)"
    """What null and shapley deliver."""
    permutations: Positive = 8
    """Orders of the messages that one reply reads, of which shapley plays the sets; all sets are played where
    that takes no more plays (up to five messages by default)."""


class CreditSection(Section):
    later = frozenset({"channels"})

    use: str | None = None
    """A credit method that ships, or package.module:name; without it, group_relative, and none with GAE."""
    options: dict[str, Any] = {}
    """Options of the credit method."""
    truncated: Literal["as_malformed", "mask", "exclude"] = "as_malformed"
    """A reply that its token limit cut off counts as malformed; with mask it does so in rewards and baselines
    and is masked out of the loss (DAPO's overlong filtering); with exclude it has no reward at all."""
    silent: Literal["keep", "exclude"] = "keep"
    """Whether groups whose returns are all equal are kept or left out."""
    silent_by: str | None = None
    """The reward that decides whether a group's plays are equal; without it, the return."""
    channels: tuple[ChannelSection, ...] = ()
    """Channels whose weighted sum is the advantage; without any, it is what the credit method gives."""
