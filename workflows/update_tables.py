"""Tables of updates: what is known of each token before, what an update did, and what is carried on."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_LOGPROBS = pa.list_(pa.float32())  # and other numbers, one for each token

# Part k of scores/<model> and of token_advantages/<model> has the rows of part k of partition/<model>.
# A list is as long as the row's response_token_ids, or null where the plan does not need it.
SCORES: Final = pa.schema(
    [
        ("episode_id", pa.string()),
        ("turn_index", pa.int32()),
        ("scored_version", pa.int32()),  # of the weights that scored
        ("old_logprobs", _LOGPROBS),  # the trainer's own, at the sampler's temperature
        ("reference_logprobs", _LOGPROBS),  # the frozen anchor's, at the same temperature
        ("values", _LOGPROBS),  # value of the state that each response token was chosen in
        ("bootstrap_value", pa.float64()),  # value after the last token, where the episode was cut; else null
    ]
)

TOKEN_ADVANTAGES: Final = pa.schema(
    [
        ("episode_id", pa.string()),
        ("turn_index", pa.int32()),
        ("advantages", _LOGPROBS),
        ("returns", _LOGPROBS),  # what a critic learns; null without one
        ("importance_weights", _LOGPROBS),  # old policy over sampler, corrected; null where not asked for
        ("excluded", pa.string()),  # null, or why the update leaves this row out
    ]
)

# What an adaptive KL coefficient keeps from one iteration to the next: one row for its model.
KL_SCALE: Final = pa.schema(
    [
        ("iteration", pa.int32()),
        ("block", pa.int32()),
        ("model_id", pa.string()),
        ("scale", pa.float64()),  # what KL coefficients were multiplied by here
        ("kl", pa.float64()),  # of the sampling policy against the reference, nats per token; else null
        ("target", pa.float64()),
        ("next_scale", pa.float64()),
    ]
)

UPDATES: Final = pa.schema(
    [
        ("iteration", pa.int32()),
        ("model_id", pa.string()),
        ("kind", pa.string()),  # step, or summary (one per model, last)
        ("step", pa.int32()),  # optimizer step within this update; null in the summary
        ("version_before", pa.int32()),
        ("version_after", pa.int32()),
        ("loss", pa.float64()),  # all terms, divided as the loss says (token mean by default)
        ("policy_loss", pa.float64()),  # its part without KL, entropy and critic
        ("value_loss", pa.float64()),  # of the critic, before its coefficient
        ("kl_old", pa.float64()),  # k3 of old (start of this update) against current policy
        ("kl_reference", pa.float64()),  # of the current policy against the reference, per token
        ("clip_fraction", pa.float64()),
        ("dual_clip_fraction", pa.float64()),  # part of it: stopped by the dual clip
        ("entropy", pa.float64()),  # nats per token
        ("explained_variance", pa.float64()),  # of returns by the values from before the update
        ("importance_ratio_max", pa.float64()),
        ("importance_weight_mean", pa.float64()),  # of the sampler correction, over tokens
        ("importance_weight_max", pa.float64()),
        ("importance_masked", pa.float64()),  # share of tokens that it takes out
        ("sampler_gap_mean", pa.float64()),  # mean |trainer old logprob - behaviour logprob|
        ("sampler_gap_max", pa.float64()),
        ("sampler_kl", pa.float64()),  # k3 of behaviour against trainer's old policy
        ("gradient_norm", pa.float64()),  # before clipping
        ("learning_rate", pa.float64()),
        ("num_rows", pa.int64()),
        ("num_tokens", pa.int64()),  # response tokens in the loss
        ("num_forward_tokens", pa.int64()),  # prompt and response tokens, without padding
        ("seconds", pa.float64()),
        ("skipped", pa.string()),  # null, or why no optimizer step was made
        ("block", pa.int32()),
        ("update_id", pa.string()),  # model, version before and hash of what was trained on
        # schedules and trust regions
        ("place", pa.int32()),  # of the updated unit in the order of its iteration, from 0
        ("radius", pa.float64()),  # of the trust region, nats
        ("divergence", pa.float64()),  # from the start of the block, in the radius's measure
        ("decision", pa.string()),  # accepted, partly, rejected
        ("kept_share", pa.float64()),  # of the step, after backtracking
        ("candidate_version", pa.int32()),  # number of the weights that were judged
    ]
)

_MEASURED_UPDATE = [
    ("iteration", pa.int32()),
    ("block", pa.int32()),
    ("model_id", pa.string()),
    ("update_id", pa.string()),  # as in `updates`
    ("version_before", pa.int32()),
    ("kind", pa.string()),  # step, or summary: the mean over the update's steps
    ("step", pa.int32()),  # optimizer step within this update; null in the summary
    ("method", pa.string()),  # of gradients: exact, or estimate (a fixed random projection)
]

# Gradients by role, before clipping: one row for the whole (role null), for each role, and for each copy of a
# role that runs in branches (then `branch` says which). What is not defined is null.
ROLE_UPDATES: Final = pa.schema(
    [
        *_MEASURED_UPDATE,
        ("role", pa.string()),
        ("branch", pa.string()),
        ("num_rows", pa.int64()),
        ("num_tokens", pa.int64()),  # response tokens in the loss
        ("token_share", pa.float64()),  # of the model's tokens; of a copy: of its role's
        ("gradient_norm", pa.float64()),
        ("gradient_share", pa.float64()),  # of the sum of all roles' norms; of a copy: of all copies'
        ("cosine_whole", pa.float64()),  # with the sum over all roles; of a copy: over all copies
        ("cosine_mean", pa.float64()),  # with the running mean of the role's own gradient
        ("interference", pa.float64()),  # of the whole: sum of the roles' norms minus the norm of their sum
        ("redundancy", pa.float64()),  # norm of the sum over sum of norms: of copies; of the whole, of roles
        ("copies", pa.int32()),  # N; independent ones have a redundancy of 1/√N
        ("copies_cosine", pa.float64()),  # mean over pairs of copies
        ("factor", pa.float64()),  # what the role's gradient (the whole: all of it) was multiplied by
        ("policy_loss", pa.float64()),  # the role's part of the model's
        ("kl_old", pa.float64()),  # k3 of the start of this update against the current policy, per token
        ("kl_reference", pa.float64()),  # k3 from the current policy to the reference, per token
        ("sampler_kl", pa.float64()),  # k3 of the sampler against the trainer's old policy, per token
        ("entropy", pa.float64()),  # nats per token; null where the loss has no entropy term
        ("sampled_entropy", pa.float64()),  # mean -log p of the sampled tokens: what entropy is on average
        ("clip_fraction", pa.float64()),
        ("reward", pa.float64()),  # mean over rows
        ("response_tokens", pa.float64()),  # mean over rows
    ]
)

# Cosines of gradients: of two roles of one model, or of two copies of one role.
ROLE_PAIRS: Final = pa.schema(
    [
        *_MEASURED_UPDATE,
        ("role", pa.string()),
        ("branch", pa.string()),
        ("other_role", pa.string()),
        ("other_branch", pa.string()),
        ("cosine", pa.float64()),
    ]
)

# What a model's trust region decided of an update, and what it leaves to the next one: one row.
TRUST: Final = pa.schema(
    [
        ("iteration", pa.int32()),
        ("block", pa.int32()),
        ("model_id", pa.string()),
        ("update_id", pa.string()),
        ("version_before", pa.int32()),
        ("radius", pa.float64()),  # nats per measure: what the settings say times shrink
        ("measure", pa.string()),  # token, message, episode
        ("estimator", pa.string()),  # k1, k3, exact
        ("direction", pa.string()),  # start_to_new: KL(start of the block ‖ new); new_to_start
        ("shrink", pa.float64()),
        ("scale", pa.float64()),  # of the penalty's coefficient
        ("coefficient", pa.float64()),  # of the penalty
        ("spent_before", pa.int32()),  # highest number of a candidate before this one
        ("candidate_version", pa.int32()),  # and with this one
        ("whole_divergence", pa.float64()),  # of the whole step, before any was taken back; null without one
        ("divergence", pa.float64()),  # of the weights that were kept; 0 where the step was rejected
        ("per_episode", pa.float64()),  # KL(start ‖ new) by k3, summed over an episode, mean, of these
        ("surrogate", pa.float64()),  # mean over episodes of the sum of (ratio - 1) · advantage
        ("surrogate_error", pa.float64()),  # its standard error over episodes
        ("certificate", pa.float64()),  # surrogate - z · error - 2 (turns - 1) √(KL / 2) · range of returns
        ("turns", pa.int32()),  # most turns of the model in an episode
        ("messages", pa.int64()),  # that were measured
        ("masked_share", pa.float64()),  # of the messages of all passes; null without a mask
        ("steps", pa.int32()),  # optimizer steps that were made
        ("decision", pa.string()),  # accepted, partly, rejected; null without a step
        ("reason", pa.string()),  # null where all was accepted
        ("kept_share", pa.float64()),  # of the step
        ("next_shrink", pa.float64()),
        ("next_scale", pa.float64()),
    ]
)

# How far an update moved each message that it was measured on; no rows where nothing moved.
RATIOS: Final = pa.schema(
    [
        ("episode_id", pa.string()),
        ("turn_index", pa.int32()),
        ("log_ratio", pa.float64()),  # log of new over start of the block, summed over the message's tokens
    ]
)

# A candidate on trial: the team plays held-out tasks with it and without it. One row for each pair of plays.
TRIAL: Final = pa.schema(
    [
        ("iteration", pa.int32()),
        ("block", pa.int32()),
        ("model_id", pa.string()),
        ("candidate_version", pa.int32()),
        ("version_before", pa.int32()),
        ("task_id", pa.string()),
        ("sample", pa.int32()),
        ("return_before", pa.float64()),  # mean reward of the episode's turns; null where it failed
        ("return_candidate", pa.float64()),
        ("failed", pa.string()),  # null, or why the pair is not compared
        ("response_tokens_before", pa.int64()),  # sampled in the episode
        ("response_tokens_candidate", pa.int64()),
        ("prompt_tokens_before", pa.int64()),
        ("prompt_tokens_candidate", pa.int64()),
    ]
)

# How likely the updated teammates of a unit are to bring about the contexts of its rows today.
PREFIX_WEIGHTS: Final = pa.schema(
    [
        ("episode_id", pa.string()),
        ("turn_index", pa.int32()),
        ("log_weight", pa.float64()),  # sum of log ratios of earlier turns; null where one is not known
        ("weight", pa.float64()),  # its exponential, cut at the schedule's cap; likewise
    ]
)

# What the updates on some plays did to every unit's rows of these plays: one row a unit. Weights W are
# products of the ratios of updated teammates; a unit's own update is not among them.
SHIFT: Final = pa.schema(
    [
        ("iteration", pa.int32()),
        ("block", pa.int32()),
        ("model_id", pa.string()),
        ("teammates", pa.int32()),  # other units that were updated on these plays
        ("rows", pa.int64()),  # trainable turns of the unit
        ("unscored", pa.int64()),  # of them, with a turn of an updated teammate whose ratio is not known
        (
            "shift_budget",
            pa.float64(),
        ),  # √(D / 2), D the KL per episode of updated teammates that speak before
        ("shift_budget_triangle", pa.float64()),  # sum of √(D_j / 2) over them
        ("ess_prefix", pa.float64()),  # (ΣW)² / (N ΣW²), W over the turns before each row
        ("ess_suffix", pa.float64()),  # over the turns after it
        ("ess_joint", pa.float64()),  # over both
        ("tv_hat", pa.float64()),  # half the mean |W - 1| of prefixes: total variation of contexts, estimated
        ("log_weight_p05", pa.float64()),  # quantiles of log W of prefixes
        ("log_weight_p50", pa.float64()),
        ("log_weight_p95", pa.float64()),
        ("max_weight_share", pa.float64()),  # the largest W of prefixes as a share of their sum
        ("clipped_share", pa.float64()),  # of rows whose |log W| is above 20, where it is cut
        # of the unit's own update r, where this block made it: means over episodes of sums over its rows
        ("surrogate_cached", pa.float64()),  # (r - 1) A, as these plays have it
        ("surrogate_fresh", pa.float64()),  # W (r - 1) A, W over both sides: as the updated teammates would
        ("stale_low", pa.float64()),  # bootstrap interval at 95 % of their difference, paired by episode
        ("stale_high", pa.float64()),
        ("kl_seq_post", pa.float64()),  # W k3(r), W over prefixes: the KL of an episode on today's contexts
    ]
)

MODELS: Final = pa.schema(
    [
        ("iteration", pa.int32()),
        ("model_id", pa.string()),
        ("base_id", pa.string()),
        ("adapter", pa.string()),  # JSON, null for full weights
        ("version", pa.int32()),
        ("parent_version", pa.int32()),
        ("uri", pa.string()),
        ("hash", pa.string()),
        ("block", pa.int32()),
    ]
)
