"""The table of what imported traces say that turns and episodes have no column for."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

TRACED: Final = pa.schema(
    [
        ("episode_id", pa.string()),
        ("turn_index", pa.int32()),  # null: of the whole episode
        ("content_ref", pa.string()),  # of a turn whose text was withheld: what stands for it
        ("extra", pa.string()),  # JSON: everything else, by the exporter that it goes back to
    ]
)
