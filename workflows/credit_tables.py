"""Tables of credit in channels: what each unit of a team's work earned, and what messages were worth."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

# One row for each turn and unit that a channel credits; what is trained on is the sum of weight · value over
# a turn's rows. A row with a span of tokens counts on these tokens of the response alone.
CREDIT_CHANNELS: Final = pa.schema(
    [
        ("episode_id", pa.string()),
        ("turn_index", pa.int32()),  # of the turn that gets the credit
        ("channel", pa.string()),  # by its name in the settings
        ("unit", pa.string()),  # a `Unit` of rewards.channels.base
        (
            "member",
            pa.string(),
        ),  # which team, role, instance, turn, message or call: equal for all of its rows
        ("value", pa.float64()),  # before the weight
        ("weight", pa.float64()),
        ("first_token", pa.int32()),  # of the response; null: from its start
        ("end_token", pa.int32()),  # the one after the last; null: to its end
        ("about", pa.int32()),  # the turn that the credit is about, such as a tool's; null: this turn itself
        ("counts", pa.bool_()),  # whether it is part of an advantage: the turn is trained on
    ]
)

# Every message that a replay could replace, whether one does or not.
MESSAGES: Final = pa.schema(
    [
        ("episode_id", pa.string()),
        ("turn_index", pa.int32()),
        ("group_id", pa.string()),
        ("role", pa.string()),
        ("step", pa.string()),
        ("op", pa.string()),
        ("alternative", pa.int32()),
        ("recipient", pa.int32()),  # turn_index; null: all readers
        ("reader", pa.int32()),  # turn_index of the first reply that reads it
        ("select_probability", pa.float64()),  # with which its replay was chosen, above 0
        ("is_chosen", pa.bool_()),
        ("tokens", pa.int64()),  # that its replay was expected to sample
        ("spread", pa.float64()),  # deviation of the returns of plays that had the same context
        ("influence", pa.float64()),  # expected: its share of what its readers read
        ("cheap", pa.float64()),  # team credit of its episode
        ("first_token", pa.int32()),  # of the response: what readers got of it; null: from its start
        ("end_token", pa.int32()),  # the one after the last; null: to its end
    ]
)

# What messages were worth, doubly robust: cheap + (replay - cheap) / p where it was replayed, else cheap.
MESSAGE_CREDIT: Final = pa.schema(
    [
        ("episode_id", pa.string()),
        ("turn_index", pa.int32()),
        ("op", pa.string()),
        ("credit", pa.float64()),
        ("cheap", pa.float64()),  # what was expected of it without its own replays
        ("effect", pa.float64()),  # mean over its replays; null where it has none
        ("replays", pa.int32()),  # that have a return
        ("candidates", pa.int32()),  # that could have been played
        ("first_token", pa.int32()),
        ("end_token", pa.int32()),
    ]
)
