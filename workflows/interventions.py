"""Tables of counterfactual plays: what was replaced in which stored turn, and what came of it."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_WHAT: Final = [
    # the stored turn
    ("iteration", pa.int32()),
    ("block", pa.int32()),
    ("task_id", pa.string()),
    ("group_id", pa.string()),
    ("episode_id", pa.string()),
    ("turn_index", pa.int32()),
    ("step", pa.string()),
    ("round", pa.int32()),
    ("branch", pa.string()),
    ("role", pa.string()),
    ("model_id", pa.string()),
    # what is done
    ("op", pa.string()),  # an `Op` of workflows.vocabulary; none: a replay of the whole episode as it is
    ("alternative", pa.int32()),  # number of the resampled reply, from 1; else 0
    ("recipient", pa.int32()),  # turn_index of the only turn that gets the replacement; null: all get it
    ("delivered", pa.string()),  # the words instead; null where there are none, or the role sampled them anew
    ("select_probability", pa.float64()),  # with which it was chosen
    ("seed", pa.int64()),  # of a resampled reply
    # what came of it
    ("play_id", pa.string()),  # its episode_id among the plays; null where nothing was played
    ("status", pa.string()),  # of the play; null where nothing was played
    ("skipped", pa.string()),  # why nothing was played
    ("first_difference", pa.int32()),  # of the play: turn_index of the first turn that is not as stored
    ("tokens", pa.int64()),  # sampled for it
]

PLAYED_INTERVENTIONS: Final = pa.schema(_WHAT)
INTERVENTIONS: Final = pa.schema(
    [
        *_WHAT,
        ("return", pa.float64()),  # mean reward over the turns of the play that have one
        ("base_return", pa.float64()),  # of the stored episode, by the same rewards
        # base_return - return: what the message was worth against the replacement; of op shapley, its value
        ("effect", pa.float64()),
    ]
)

# One row for each set of the replies that one reply reads: it is made again with the others replaced by a
# placeholder. The value of input k is the sum over the sets of weights[k] · return. An input has a row of op
# shapley in `interventions` as well, without a play of its own, and with its share of all tokens.
_SET: Final = [
    *(column for column in _WHAT[:5]),
    ("recipient", pa.int32()),  # turn_index of the reply that reads them
    ("step", pa.string()),
    ("round", pa.int32()),
    ("branch", pa.string()),
    ("role", pa.string()),
    ("model_id", pa.string()),
    ("inputs", pa.list_(pa.int32())),  # turn_index of all replies that it reads and that may be replaced
    ("present", pa.list_(pa.int32())),  # those of them that it gets here
    ("weights", pa.list_(pa.float64())),  # of this set in the value of each input
    ("exact", pa.bool_()),  # whether all sets are played; else those of sampled orders
    *(column for column in _WHAT if column[0] in ("select_probability", "play_id", "status", "skipped")),
    *(column for column in _WHAT if column[0] in ("first_difference", "tokens")),
]
PLAYED_COALITIONS: Final = pa.schema(_SET)
COALITIONS: Final = pa.schema([*_SET, ("return", pa.float64())])  # of the play
