"""Tables of stop decisions: each decision point of an episode, the probes that answered there, and curves."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_PLACE = [
    ("iteration", pa.int32()),
    ("block", pa.int32()),
    ("task_id", pa.string()),
    ("group_id", pa.string()),
    ("episode_id", pa.string()),
    ("turn_index", pa.int32()),  # of the turn that decided; null at the end of an episode, where nobody did
]

# One row for each probe: the stored episode played again with the other outcome of one decision.
PLAYED_PROBES: Final = pa.schema(
    [
        *_PLACE,
        (
            "kind",
            pa.string(),
        ),  # stop: what a stop there answers; continue: what going on after a stop comes to
        ("sample", pa.int32()),  # number of the probe at its decision, from 0
        ("select_probability", pa.float64()),  # with which a decision was chosen to go on; 1 of a stop
        ("play_id", pa.string()),  # its episode_id among the probes' plays
        ("status", pa.string()),  # of the play
        ("origin", pa.string()),  # probe
        ("context_hash", pa.string()),  # of the decision's prompt: the frozen context that it answers from
        ("prompt_tokens", pa.int64()),  # asked for it, the stored turns left out
        ("tokens", pa.int64()),  # sampled for it: accounted here and nowhere else
        ("skipped", pa.string()),  # null, or why there is no play
    ]
)
PROBES: Final = pa.schema(
    [
        *PLAYED_PROBES,
        (
            "score",
            pa.float64(),
        ),  # by the run's own rewards: the mean over the turns of the play that have one
        ("cost", pa.float64()),  # of the play of a kind continue, as `stops` counts costs; else null
        ("answer", pa.string()),  # JSON: what the team's answer step says in the end
    ]
)

# One row for each decision point, and one for the end of each episode (turn_index null).
STOPS: Final = pa.schema(
    [
        *_PLACE,
        ("decision", pa.int32()),  # number of the point in its episode, from 0
        ("step", pa.string()),
        ("round", pa.int32()),
        ("branch", pa.string()),
        ("role", pa.string()),
        ("model_id", pa.string()),
        ("policy_version", pa.int32()),
        ("context_hash", pa.string()),
        ("stop_available", pa.bool_()),
        ("stop_taken", pa.bool_()),
        ("held_back", pa.bool_()),  # a stop was not to be had: the trace goes on to its end
        (
            "stop_source",
            pa.string(),
        ),  # an entry of `workflows.acts.STOP_SOURCES`; budget at the end of a trace
        ("stop_logprob", pa.float64()),  # given that it is one of both options; null at the end
        ("continue_logprob", pa.float64()),
        ("cost", pa.float64()),  # spent before, in the unit of [stopping] cost; no probe counts
        ("tokens", pa.int64()),  # response tokens of the team before
        ("turns", pa.int32()),  # turns of the team before
        ("seconds", pa.float64()),  # modelled time before; null where none is modelled
        ("points_left", pa.int32()),  # decision points that come after it on this trace
        ("score", pa.float64()),  # of a stop here: the mean of its probes, or the episode's own; null if none
        ("scores", pa.list_(pa.float64())),  # of each probe
        ("probe_tokens", pa.int64()),
        ("agreement", pa.float64()),  # share of the newest branch answers that say the most frequent one
        ("answer", pa.string()),  # JSON: what a stop here answers
        ("price", pa.float64()),
        ("utility", pa.float64()),  # score - price · cost
        ("continue_value", pa.float64()),  # of going on, by the policy that played; null where not seen
        ("survival", pa.float64()),  # probability that the policy comes here
        ("advantage", pa.float64()),  # utility - continue_value: of a stop over going on
        (
            "weight",
            pa.float64(),
        ),  # in the loss; 0 where the decision was not the policy's or nothing is known
        ("excluded", pa.string()),  # null, or why it is not trained on
    ]
)

# Means over the same traces, a row for each rule and setting, the policy and what hindsight would choose;
# `calibration` has one for each range of p(stop), `return` one for each choice among the answers until then.
STOP_CURVE: Final = pa.schema(
    [
        ("iteration", pa.int32()),
        ("block", pa.int32()),
        ("rule", pa.string()),  # fixed, budget, unanimity, patience, regression, policy, hindsight, …
        ("setting", pa.string()),  # of the rule; null where it has none
        ("episodes", pa.int64()),
        ("point", pa.float64()),  # the decision point of the stop
        ("cost", pa.float64()),
        ("score", pa.float64()),
        ("utility", pa.float64()),
        ("claim", pa.float64()),  # of calibration: mean p(stop)
        ("mass", pa.float64()),  # of calibration: decisions of an episode that are come to
    ]
)

# What a price that is steered to a budget keeps from one iteration to the next: one row.
STOP_PRICE: Final = pa.schema(
    [
        ("iteration", pa.int32()),
        ("block", pa.int32()),
        ("price", pa.float64()),  # of a unit of cost, here
        ("cost", pa.float64()),  # what the policy spends on average; null where nothing is known
        ("budget", pa.float64()),
        ("next_price", pa.float64()),
    ]
)

# A decision as its model's update needs it. Decisions of one trace are in one forward pass.
STOP_ROWS: Final = pa.schema(
    [
        ("episode_id", pa.string()),
        ("turn_index", pa.int32()),
        ("model_id", pa.string()),
        ("role", pa.string()),
        ("policy_version", pa.int32()),
        ("rank", pa.int32()),
        ("mini_batch", pa.int32()),
        ("micro_batch", pa.int32()),
        ("prompt_token_ids", pa.list_(pa.int32())),
        ("stop_token_ids", pa.list_(pa.int32())),
        ("continue_token_ids", pa.list_(pa.int32())),
        ("temperature", pa.float64()),
        ("stop_logprob", pa.float64()),
        ("continue_logprob", pa.float64()),
        ("utility", pa.float64()),
        ("continue_value", pa.float64()),
        ("end_utility", pa.float64()),  # of its trace, where it runs to its end
        ("weight", pa.float64()),
    ]
)
