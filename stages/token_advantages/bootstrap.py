"""Which turns a limit cut off, so that what would have come after them is worth the critic's value and not 0.

An episode that ends by itself is over: nothing comes after its last token. One that a limit ended would have
gone on, and counting the rest as 0 teaches the critic that states far along are worth little.
Source: partial-episode bootstrapping, "Time limits in reinforcement learning", arXiv:1712.00378.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from workflows.trajectory import TURN_KEYS
from workflows.vocabulary import Status, StopReason

ENDED_BY_A_LIMIT: Final = (StopReason.MAX_TURNS, StopReason.PROMPT_TOO_LONG)
"""Why an episode stopped that would have gone on. A loop at its limit is not among them: what follows it is
played."""
TURN_COLUMNS: Final = (*TURN_KEYS, "status")
EPISODE_COLUMNS: Final = ("episode_id", "stop_reason")


def cut_off(
    rows: pl.DataFrame, turns: pl.DataFrame, episodes: pl.DataFrame, *, across_turns: bool
) -> frozenset[tuple[str, int]]:
    """The keys of the rows after which a limit cut something off.

    Args:
        rows: keys of the turns that a model is trained on.
        turns: all turns, with `TURN_COLUMNS`.
        episodes: with `EPISODE_COLUMNS`.
        across_turns: a turn answers for what comes after it, too. Then it is the last row of an episode whose
            reply was cut off or that a limit of turns or of context ended; else it is every row whose reply
            was cut off, for the world ends with a turn.
    """
    marked = rows.select(TURN_KEYS).join(turns.select(TURN_COLUMNS), on=TURN_KEYS, how="left")
    cut = pl.col("status").eq_missing(pl.lit(str(Status.TRUNCATED)))
    if across_turns:
        marked = marked.join(episodes.select(EPISODE_COLUMNS), on="episode_id", how="left")
        is_last = pl.col("turn_index") == pl.col("turn_index").max().over("episode_id")
        by_limit = pl.col("stop_reason").is_in([str(reason) for reason in ENDED_BY_A_LIMIT])
        cut = is_last & (cut | by_limit.fill_null(False))
    return frozenset(marked.filter(cut).select(TURN_KEYS).iter_rows())
