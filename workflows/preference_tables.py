"""Tables of a reward model: the plays that it was made from, and which of two earned more.

They lie in the model's own folder, and belong to no iteration.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

PLAYS: Final = pa.schema(
    [
        ("play", pa.string()),  # "{number of the run}:{episode_id}"
        ("run", pa.string()),  # its URL
        ("episode_id", pa.string()),
        ("task", pa.string()),  # hash of the task's inputs: equal for equal tasks of any run
        ("held_out", pa.bool_()),  # whether the task trains nothing
        ("value", pa.float64()),  # what the play earned
        ("num_turns", pa.int32()),
        ("num_tokens", pa.int32()),  # of its text, before it was cut
        ("cut_tokens", pa.int32()),  # of its text that the context has no room for
        ("format", pa.float64()),  # share of its replies that keep their role's format
        ("token_ids", pa.list_(pa.int32())),  # of its text, cut
    ]
)

PAIRS: Final = pa.schema(
    [
        ("task", pa.string()),
        ("winner", pa.string()),  # plays
        ("loser", pa.string()),
        ("gap", pa.float64()),  # of what they earned; above 0
        ("held_out", pa.bool_()),
    ]
)
