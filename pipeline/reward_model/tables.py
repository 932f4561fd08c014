"""The tables of a reward model: its plays, its pairs, and the plays as rows of a trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from pipeline.reward_model.asked import MODEL_ID, Asked
from rewards.preferences.pairs import Pair
from stages.batching import PLAN_COLUMNS, plan_batches, prefix_names
from stages.tables.parquet import TableRef, TableSink
from workflows.preference_tables import PAIRS, PLAYS
from workflows.trajectory import PARTITION, TURN_KEYS, rows_to_table

FILLER = 0  # stands for the token after a text: no token sees it, and nothing is learned of it


def plays_table(asked: Asked) -> pa.Table:
    """The plays that are in any pair."""
    rows = [
        {
            "play": play.play,
            "run": play.run,
            "episode_id": play.episode_id,
            "task": play.task,
            "held_out": play.task in asked.held_out,
            "value": play.value,
            "num_turns": play.num_turns,
            "num_tokens": len(asked.ids[play.play]) + asked.removed[play.play],
            "cut_tokens": asked.removed[play.play],
            "format": play.format,
            "token_ids": asked.ids[play.play],
        }
        for play in asked.paired
    ]
    return rows_to_table(rows, PLAYS)


def pairs_table(asked: Asked, pairs: Sequence[Pair]) -> pa.Table:
    """These pairs."""
    rows = [
        {
            "task": pair.task,
            "winner": pair.winner,
            "loser": pair.loser,
            "gap": pair.gap,
            "held_out": pair.task in asked.held_out,
        }
        for pair in pairs
    ]
    return rows_to_table(rows, PAIRS)


def stored(folder: str, schema: pa.Schema, tables: Sequence[pa.Table]) -> TableRef:
    """Write tables as the parts of one; the name is the folder's."""
    sink = TableSink(folder.rpartition("/")[2], folder, schema)
    return sink.ref([sink.write_part(index, table) for index, table in enumerate(tables)])


def rows_for(asked: Asked, steps: Sequence[Sequence[str]]) -> list[pa.Table]:
    """The plays of some tasks as `PARTITION` tables, one for each rank.

    Args:
        asked: has the plays.
        steps: the tasks of each optimizer step.
    """
    step_of = {task: number for number, tasks in enumerate(steps) for task in tasks}
    by_step: dict[int, list[str]] = {}
    for play in asked.paired:
        if play.task in step_of:
            by_step.setdefault(step_of[play.task], []).append(play.play)
    places: dict[str, Mapping[str, Any]] = {}
    for number, plays in sorted(by_step.items()):
        for row in _planned(asked, plays).iter_rows(named=True):
            places[row["episode_id"]] = {name: row[name] for name in PLAN_COLUMNS} | {"mini_batch": number}
    rows = [
        {
            "episode_id": play.play,
            "turn_index": 0,
            "group_id": play.task,
            "model_id": MODEL_ID,
            "role": "play",
            "step": "play",
            "round": 0,
            "branch": "",
            "policy_version": 0,
            **places[play.play],
            "prompt_token_ids": asked.ids[play.play],
            "response_token_ids": [FILLER],
            "behaviour_logprobs": [0.0],
            "temperature": 1.0,
            "advantage": 1.0,
        }
        for play in asked.paired
        if play.play in places
    ]
    table = rows_to_table(rows, PARTITION).sort_by(
        [(column, "ascending") for column in ("rank", "mini_batch", "micro_batch", *TURN_KEYS)]
    )
    ranks = table["rank"].to_numpy()
    return [table.filter(pa.array(ranks == rank)) for rank in range(asked.section.trainer.ranks)]


def _planned(asked: Asked, plays: Sequence[str]) -> pl.DataFrame:
    """Which rank and forward pass each play of one optimizer step goes to."""
    ids = [asked.ids[play] for play in plays]
    keys = pl.DataFrame(
        {
            "episode_id": plays,
            "turn_index": pl.Series([0] * len(plays), dtype=pl.Int32),
            "num_prompt_tokens": pl.Series([len(each) for each in ids], dtype=pl.Int32),
            "num_response_tokens": pl.Series([1] * len(plays), dtype=pl.Int32),
            "prompt": plays,
            "prefix": pl.Series(prefix_names(ids), dtype=pl.Binary),
        }
    )
    return plan_batches(
        keys,
        ranks=asked.section.trainer.ranks,
        mini_batches=1,
        micro_batch_tokens=asked.section.micro_batch_tokens,
        seed=asked.seed,
        shared_prefix=asked.section.trainer.shared_prefix,
    )
