"""The tables of a run: every column name and type is spelled here, but for those of updates
(`workflows.update_tables`), of counterfactual plays (`workflows.interventions`), of credit in channels
(`workflows.credit_tables`), of stop decisions (`workflows.stop_tables`) and of imported traces
(`workflows.traced`).

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

from workflows.credit_tables import CREDIT_CHANNELS, MESSAGE_CREDIT, MESSAGES
from workflows.interventions import COALITIONS, INTERVENTIONS, PLAYED_COALITIONS, PLAYED_INTERVENTIONS
from workflows.stop_tables import PLAYED_PROBES, PROBES, STOP_CURVE, STOP_PRICE, STOP_ROWS, STOPS
from workflows.traced import TRACED
from workflows.update_tables import KL_SCALE as KL_SCALE
from workflows.update_tables import MODELS as MODELS
from workflows.update_tables import PREFIX_WEIGHTS as PREFIX_WEIGHTS
from workflows.update_tables import RATIOS as RATIOS
from workflows.update_tables import ROLE_PAIRS as ROLE_PAIRS
from workflows.update_tables import ROLE_UPDATES as ROLE_UPDATES
from workflows.update_tables import SCORES as SCORES
from workflows.update_tables import SHIFT as SHIFT
from workflows.update_tables import TOKEN_ADVANTAGES as TOKEN_ADVANTAGES
from workflows.update_tables import TRIAL as TRIAL
from workflows.update_tables import TRUST as TRUST
from workflows.update_tables import UPDATES as UPDATES
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
    "ratios": RATIOS,
    "trial": TRIAL,
    "prefix_weights": PREFIX_WEIGHTS,
    "shift": SHIFT,
    "models": MODELS,
    "evaluation": EVALUATION,
    "played_interventions": PLAYED_INTERVENTIONS,
    "interventions": INTERVENTIONS,
    "played_coalitions": PLAYED_COALITIONS,
    "coalitions": COALITIONS,
    "counterfactual_turns": TURNS,
    "counterfactual_episodes": EPISODES,
    "counterfactual_rewards": REWARDS,
    "messages": MESSAGES,
    "message_credit": MESSAGE_CREDIT,
    "credit_channels": CREDIT_CHANNELS,
    "votes": VOTES,
    "probe_turns": TURNS,
    "probe_episodes": EPISODES,
    "probe_rewards": REWARDS,
    "played_probes": PLAYED_PROBES,
    "probes": PROBES,
    "stops": STOPS,
    "stop_curve": STOP_CURVE,
    "stop_price": STOP_PRICE,
    "stop_rows": STOP_ROWS,
    "traced": TRACED,
}


# Part k of each of these holds the same groups of episodes.
ALIGNED_TABLES: Final = frozenset(
    {"tasks", "turns", "episodes", "rewards", "credit", "evaluation", "votes", "traced"}
)
# Each block writes the whole of these: the newest one stands for the iteration.
STATE_TABLES: Final = frozenset({"baselines", "kl_scale", "trust", "stop_price"})
# States that last through iterations which do not write them, such as those that train nothing.
LASTING_TABLES: Final = frozenset({"kl_scale", "trust", "stop_price"})


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
CALLED_OFF: Final = Status.CALLED_OFF
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
