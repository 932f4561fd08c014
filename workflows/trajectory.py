"""The tables of a run: every column name and type is spelled here and nowhere else, but for those of
counterfactual plays (`workflows.interventions`).

One iteration leaves these tables behind (`docs/design.md` draws the flow):

    tasks → turns, episodes → rewards → credit, baselines → partition/<model>
          → scores/<model> → token_advantages/<model>, kl_scale/<model> → updates, models

Rows are joined by key, never by position: an episode is `episode_id`, a turn is
`(episode_id, turn_index)`. Free-form values are JSON text, because Arrow structs that differ
between two files lose fields without a word. List columns are one level deep.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

import pyarrow as pa

from workflows.interventions import INTERVENTIONS, PLAYED_INTERVENTIONS
from workflows.vocabulary import NOT_THE_POLICYS_DOING as NOT_THE_POLICYS_DOING
from workflows.vocabulary import Status

SCHEMA_VERSION: Final = 3

_NAMED_VALUES = pa.list_(pa.struct([("name", pa.string()), ("value", pa.float64())]))
_TOKEN_IDS = pa.list_(pa.int32())
_LOGPROBS = pa.list_(pa.float32())  # and other numbers, one for each token

# A metric of a turn, where it is not 0: special tokens that its prompt's contents spell, encoded as text.
SPECIAL_TOKENS_AS_TEXT: Final = "special_tokens_as_text"

TURN_KEYS: Final = ("episode_id", "turn_index")

TASKS: Final = pa.schema(
    [
        ("task_id", pa.string()),
        ("split", pa.string()),
        ("source", pa.string()),
        ("inputs", pa.string()),  # JSON object: what prompts, routing and tools may see
        ("gold", pa.string()),  # JSON object: answers and private tests, seen by rewards only
        ("row_hash", pa.string()),
    ]
)

_EPISODE_IDENTITY = [
    ("iteration", pa.int32()),
    ("block", pa.int32()),  # which part of the iteration, from 0: see `pipeline.plan.blocks`
    ("split", pa.string()),
    ("task_id", pa.string()),
    (
        "group_id",
        pa.string(),
    ),  # "{iteration:05d}/{task_id}"; "{iteration:05d}.{block}/{task_id}" after block 0
    ("sample", pa.int32()),
    ("episode_id", pa.string()),  # "{group_id}/{sample}"
]

TURNS: Final = pa.schema(
    [
        *_EPISODE_IDENTITY,
        ("turn_index", pa.int32()),  # topological, independent of timing
        ("step", pa.string()),
        ("round", pa.int32()),
        ("branch", pa.string()),
        ("parents", pa.list_(pa.int32())),  # turn_index of the turns whose output this one read
        # what
        ("event", pa.string()),  # an `Event` of workflows.vocabulary
        ("act", pa.string()),  # null or an `Act`
        ("role", pa.string()),
        ("model_id", pa.string()),
        ("base_id", pa.string()),
        ("policy_version", pa.int32()),  # version of the weights that was asked
        ("team_version", pa.string()),  # JSON: every model's version when this turn was asked
        ("trainable", pa.bool_()),
        # tokens; a model behind an API tells no ids and logprobs (null), and its own counts if any
        ("prompt_token_ids", _TOKEN_IDS),
        ("response_token_ids", _TOKEN_IDS),
        ("behaviour_logprobs", _LOGPROBS),  # as long as response_token_ids
        ("logprobs_mode", pa.string()),
        ("sampling", pa.string()),  # JSON: temperature, top_p, top_k, max_tokens, stop, seed
        ("num_prompt_tokens", pa.int32()),
        ("num_response_tokens", pa.int32()),
        ("num_cached_tokens", pa.int32()),
        ("context_hash", pa.string()),  # of the prompt ids and the tokenizer; without ids, of the messages
        # text
        ("messages", pa.string()),  # JSON list of {role, content}
        ("response_text", pa.string()),
        # JSON: the value; of a reply that breaks its format, what its parser's lenient rule reads, or null
        ("parsed", pa.string()),
        ("format_valid", pa.bool_()),
        ("cut", pa.string()),  # JSON: what truncation removed from the prompt
        # outcome
        ("status", pa.string()),
        ("status_detail", pa.string()),
        ("finish_reason", pa.string()),
        ("metrics", _NAMED_VALUES),
        # tool
        ("tool", pa.string()),
        ("tool_request", pa.string()),  # JSON
        ("tool_result", pa.string()),  # JSON
        ("attempts", pa.int32()),
        # time: seconds from the episode's start, monotonic clock
        ("queued_at", pa.float64()),
        ("started_at", pa.float64()),
        ("first_token_at", pa.float64()),
        ("ended_at", pa.float64()),
        # lineage
        ("origin", pa.string()),  # an `Origin` of workflows.vocabulary
        ("base_episode_id", pa.string()),  # the stored episode that this one begins with
        ("replay_from_turn", pa.int32()),  # of this episode: the first turn that is not a copy
        # conversations: a role whose earlier turns of the episode stand in its prompt as chat messages
        ("conversation", pa.string()),  # which one this turn goes on with; null outside of one
        ("conversation_turn", pa.int32()),  # its place in that conversation, from 0
        ("lineage", pa.string()),  # chain of prefixes: turns whose token ids extend each other share it
        ("lineage_parent", pa.string()),  # the chain that this one was made from, e.g. by a summary
        # acts: what a decision of a team led to; each act is a row, child of the turn that decided it
        ("instance", pa.string()),  # which spawned play of a role; null for one that nobody spawned
        ("decided_by", pa.int32()),  # turn_index of the turn that decided this act
        ("recipients", pa.list_(pa.string())),  # instances that a message goes to
        ("act_detail", pa.string()),  # JSON: the brief, budgets, the join, the span of tokens that decided it
        ("option_logprobs", _NAMED_VALUES),  # of a decision: log-probability of each option, renormalised
        ("modelled_at", pa.float64()),  # seconds by stated rates of tokens and tools, not by the clock
    ]
)

EPISODES: Final = pa.schema(
    [
        *_EPISODE_IDENTITY,
        ("status", pa.string()),
        ("error", pa.string()),
        ("stop_reason", pa.string()),
        ("num_turns", pa.int32()),
        ("num_prompt_tokens", pa.int64()),  # of turns that were asked: copied ones do not count
        ("num_response_tokens", pa.int64()),
        ("started_at", pa.float64()),  # epoch seconds
        ("seconds", pa.float64()),
        ("modelled_seconds", pa.float64()),  # length by stated rates of tokens and tools
        # lineage: an episode that begins with turns of another one
        ("base_episode_id", pa.string()),
        ("replay_from_turn", pa.int32()),
        ("num_copied_tokens", pa.int64()),  # response tokens of copied turns: no sampled tokens
    ]
)

REWARDS: Final = pa.schema(
    [
        ("episode_id", pa.string()),
        ("turn_index", pa.int32()),
        ("reward", pa.float64()),  # null where there is none
        ("reward_parts", _NAMED_VALUES),  # before weights, one per configured reward
        ("no_reward_reason", pa.string()),  # why `reward` is null; null where it is not
    ]
)

CREDIT: Final = pa.schema(
    [
        ("episode_id", pa.string()),
        ("turn_index", pa.int32()),
        ("return", pa.float64()),
        ("advantage", pa.float64()),
        ("excluded", pa.string()),  # null, or why this turn is not trained on
        ("channels", _NAMED_VALUES),  # further credit channels
    ]
)

# What a credit method keeps from one iteration to the next: one row for each running baseline, as it
# is after this iteration.
BASELINES: Final = pa.schema(
    [
        ("key", pa.string()),  # what shares the baseline: a role
        ("mean", pa.float64()),
        ("count", pa.float64()),  # returns behind the mean; an average that forgets counts old ones for less
        ("iteration", pa.int32()),  # the last one that changed it
    ]
)

PARTITION: Final = pa.schema(
    [
        ("episode_id", pa.string()),
        ("turn_index", pa.int32()),
        ("group_id", pa.string()),
        ("model_id", pa.string()),
        ("role", pa.string()),
        ("step", pa.string()),
        ("round", pa.int32()),
        ("branch", pa.string()),
        ("policy_version", pa.int32()),
        ("rank", pa.int32()),
        ("mini_batch", pa.int32()),  # which optimizer step of an epoch
        ("micro_batch", pa.int32()),  # which forward pass of that step on that rank
        ("prompt_token_ids", _TOKEN_IDS),
        ("response_token_ids", _TOKEN_IDS),
        ("behaviour_logprobs", _LOGPROBS),
        ("temperature", pa.float64()),  # the sampler's: the trainer divides its logits by it
        ("reward", pa.float64()),
        ("return", pa.float64()),
        ("advantage", pa.float64()),
        ("conversation", pa.string()),
        ("conversation_turn", pa.int32()),
        ("act", pa.string()),
        ("option_logprobs", _NAMED_VALUES),
    ]
)

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
        (
            "kl",
            pa.float64(),
        ),  # of the policy that sampled, against the reference, nats per token; null without
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

EVALUATION: Final = pa.schema(
    [
        ("task_id", pa.string()),
        ("sample", pa.int32()),
        ("episode_id", pa.string()),
        ("status", pa.string()),
        ("failed", pa.string()),  # null, or why values are missing; a missing value counts as 0 in its mean
        ("values", _NAMED_VALUES),  # one per metric
    ]
)

VOTES: Final = pa.schema(
    [
        ("task_id", pa.string()),
        ("sample", pa.int32()),
        ("episode_id", pa.string()),
        ("ballot", pa.string()),  # equal for plays with equal answers; null where there is none
        ("num_response_tokens", pa.int64()),  # of the whole play
    ]
)

_SCHEMAS: Final = {
    "tasks": TASKS,
    "turns": TURNS,
    "episodes": EPISODES,
    "rewards": REWARDS,
    "greedy_turns": TURNS,
    "greedy_episodes": EPISODES,
    "greedy_rewards": REWARDS,
    "credit": CREDIT,
    "baselines": BASELINES,
    "partition": PARTITION,
    "scores": SCORES,
    "token_advantages": TOKEN_ADVANTAGES,
    "kl_scale": KL_SCALE,
    "updates": UPDATES,
    "role_updates": ROLE_UPDATES,
    "role_pairs": ROLE_PAIRS,
    "trust": TRUST,
    "models": MODELS,
    "evaluation": EVALUATION,
    "played_interventions": PLAYED_INTERVENTIONS,
    "interventions": INTERVENTIONS,
    "votes": VOTES,
}


# Part k of each of these holds the same groups of episodes.
ALIGNED_TABLES: Final = frozenset({"tasks", "turns", "episodes", "rewards", "credit", "evaluation", "votes"})
# Each block writes the whole of these: the newest one stands for the iteration.
STATE_TABLES: Final = frozenset({"baselines", "kl_scale", "trust"})
# States that last through iterations which do not write them, such as those that train nothing.
LASTING_TABLES: Final = frozenset({"kl_scale", "trust"})


def schema_of(table: str) -> pa.Schema:
    """The schema of a table by name; `partition/<model>` has that of `partition`."""
    return _SCHEMAS[kind_of_table(table)]


def kind_of_table(table: str) -> str:
    """`partition` for the name `partition/<model>`."""
    return table.partition("/")[0]


# The words of `status`, by the names that they had before `workflows.vocabulary` did.
OK: Final = Status.OK
MALFORMED: Final = Status.MALFORMED
TOOL_ERROR: Final = Status.TOOL_ERROR
TRUNCATED: Final = Status.TRUNCATED
INFRA_ERROR: Final = Status.INFRA_ERROR
TIMEOUT: Final = Status.TIMEOUT
CANCELLED: Final = Status.CANCELLED
NOT_DEMONSTRATED: Final = Status.NOT_DEMONSTRATED
STATUSES: Final = tuple(Status)


def group_id_of(iteration: int, task_id: str, block: int = 0) -> str:
    """The id of a task's group of episodes; in block 0 without the block, as in tables of version 2."""
    return f"{iteration:05d}.{block}/{task_id}" if block else f"{iteration:05d}/{task_id}"


def episode_id_of(group_id: str, sample: int) -> str:
    return f"{group_id}/{sample}"


def seed_for(run_seed: int, *parts: object) -> int:
    """A 63-bit seed that depends on its arguments only: not on the process, order or time.

    Callers pass `(iteration, task_id, sample, step, round, branch)`, and the block where it is not 0.
    Python's own `hash` differs between processes, which is why this is a keyed hash.
    """
    key = (run_seed % 2**64).to_bytes(8, "little")
    digest = hashlib.blake2b(to_json([str(p) for p in parts]).encode(), digest_size=8, key=key)
    return int.from_bytes(digest.digest(), "little") >> 1


def library_seed(seed: int) -> int:
    """A seed that every library takes, from 0 to below 2**32: the seed itself where it is one, else a hash
    of it. The engines' and trainers' own generators get it; `seed_for` takes any integer."""
    if 0 <= seed < 2**32:
        return seed
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=4).digest(), "little")


def to_json(value: Any) -> str:
    """Compact JSON with sorted keys, so that equal values are equal text. NaN and inf are refused."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def clean_text(text: str) -> str:
    """Replace lone surrogates, which no UTF-8 file can hold; everything else is kept as it is."""
    return text.encode("utf-8", "replace").decode("utf-8")


def rows_to_table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows to a table of exactly this schema.

    Raises:
        KeyError: a row has a column that the schema lacks (pyarrow would drop it silently).
    """
    known = set(schema.names)
    for row in rows:
        if extra := row.keys() - known:
            raise KeyError(f"columns {sorted(extra)} are not in the schema ({', '.join(schema.names)})")
    return pa.Table.from_pylist(rows, schema=schema)


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Select, order and cast the columns of `table` to `schema`, and drop its metadata.

    Raises:
        KeyError: a column is missing or is one that the schema does not know.
        pyarrow.ArrowInvalid: a value does not fit its type.
    """
    if missing := set(schema.names) - set(table.column_names):
        raise KeyError(f"columns {sorted(missing)} are missing")
    if extra := set(table.column_names) - set(schema.names):
        raise KeyError(f"columns {sorted(extra)} are not in the schema ({', '.join(schema.names)})")
    table = table.select(schema.names).replace_schema_metadata(None)
    return table if table.schema.equals(schema) else table.cast(schema)  # a cast takes long even of equals
