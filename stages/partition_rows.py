"""What a worker does for `partition/<model>`: it finds the turns that can be trained on, and gathers them.

Keys and lengths of usable turns are small enough for the driver; token lists pass through workers alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rewards.scoring.reasons import kind_of
from stages.batching import PLAN_COLUMNS, prefix_names
from stages.tables.parquet import TableRef, TableSink
from workflows.errors import SchemaError
from workflows.trajectory import PARTITION, TURN_KEYS

LENGTH_COLUMNS: Final = (
    *TURN_KEYS,
    "model_id",
    "role",
    "context_hash",
    "branch",
    "num_prompt_tokens",
    "prompt_token_ids",
    "response_token_ids",
)
ROW_COLUMNS: Final = (
    *TURN_KEYS,
    "group_id",
    "model_id",
    "role",
    "step",
    "round",
    "branch",
    "policy_version",
    "prompt_token_ids",
    "response_token_ids",
    "behaviour_logprobs",
    "sampling",
    "conversation",
    "conversation_turn",
    "act",
    "option_logprobs",
)
REWARD_COLUMNS: Final = (*TURN_KEYS, "reward")
CREDIT_COLUMNS: Final = (*TURN_KEYS, "return", "advantage", "excluded")
TURN_COLUMNS: Final = tuple(dict.fromkeys((*LENGTH_COLUMNS, *ROW_COLUMNS)))
SURVEY: Final = {
    "episode_id": pl.String,
    "turn_index": pl.Int32,
    "model_id": pl.String,
    "num_prompt_tokens": pl.Int32,
    "num_response_tokens": pl.Int32,
    "prompt": pl.String,  # equal for equal prompts
    "prefix": pl.Binary,  # by `prefix_names`
    "role": pl.String,
    "branch": pl.String,
    "advantage": pl.Float64,
    "source": pl.Int32,  # number of the input part
}


DECIDED: Final = "a stop decision with a loss of its own"


@dataclass(frozen=True, slots=True)
class Job:
    """One output part: its model, its number within the model's table, and the places of its rows."""

    model_id: str
    number: int
    rows: pl.DataFrame  # the turn keys, the numbers of their input parts (`source`), and PLAN_COLUMNS


def table_of(model_id: str) -> str:
    return f"partition/{model_id}"


def survey_part(
    index: int,
    tables: Mapping[str, TableRef],
    models: Sequence[str],
    frozen_roles: frozenset[str] = frozenset(),
    elsewhere: frozenset[str] = frozenset(),
    decided_roles: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Keys and lengths of the usable turns of part `index`, and the others counted by reason."""
    turns = _surveyed(tables["turns"].read_part(index, LENGTH_COLUMNS))
    credit = pl.DataFrame(tables["credit"].read_part(index, CREDIT_COLUMNS))
    both = turns.join(credit, on=TURN_KEYS, how="inner", validate="1:1")
    if not both.height == turns.height == credit.height:
        raise SchemaError(
            f"part {index}: turns ({turns.height} rows) and credit ({credit.height}) share only "
            f"{both.height} turns; these tables are not of one rollout"
        )
    reason = (
        pl.when(pl.col("excluded").is_not_null())
        .then(pl.col("excluded"))
        .when(pl.col("role").is_in(sorted(frozen_roles)))
        .then(pl.lit("role is frozen"))
        .when(pl.col("role").is_in(sorted(decided_roles)))
        .then(pl.lit(DECIDED))
        .when(pl.col("model_id").is_in(sorted(elsewhere)))
        .then(pl.lit("model is trained in another block"))
        .when(~pl.col("model_id").is_in(models))
        .then(pl.lit("model ") + pl.col("model_id").fill_null("(none)") + pl.lit(" is not partitioned"))
        .when(pl.col("num_response_tokens") == 0)
        .then(pl.lit("no response tokens"))
    )
    both = both.with_columns(reason=reason)
    usable = both.filter(pl.col("reason").is_null()).with_columns(
        source=pl.lit(index, pl.Int32), prompt="context_hash"
    )
    left_out = both.sort(TURN_KEYS)["reason"].drop_nulls().to_list()
    return {
        "usable": usable.select(list(SURVEY)),
        "excluded": Counter(kind_of(r) for r in left_out),
        "details": {kind_of(r): r for r in reversed(left_out)},  # the first of each kind, in full
    }


def write_part(
    index: int, tables: Mapping[str, TableRef], sinks: Mapping[str, TableSink], jobs: Sequence[Job]
) -> dict[str, Any]:
    """Gather the rows of job `index` from the input parts and write them."""
    job = jobs[index]
    pieces = [PARTITION.empty_table()]
    for (source,), wanted in job.rows.group_by("source", maintain_order=True):
        turns = tables["turns"].read_part(source, ROW_COLUMNS)
        rewards = tables["rewards"].read_part(source, REWARD_COLUMNS)
        credit = tables["credit"].read_part(source, CREDIT_COLUMNS)
        pieces.append(gather(turns, rewards, credit, wanted))
    table = pa.concat_tables(pieces).sort_by(
        [(c, "ascending") for c in ("rank", "mini_batch", "micro_batch", *TURN_KEYS)]
    )
    if table.num_rows != job.rows.height:
        raise SchemaError(
            f"{table_of(job.model_id)} part {job.number} should have {job.rows.height} rows, found "
            f"{table.num_rows}"
        )
    return {"part": sinks[job.model_id].write_part(job.number, table)}


def gather(turns: pa.Table, rewards: pa.Table, credit: pa.Table, places: pl.DataFrame) -> pa.Table:
    """The rows of `PARTITION` that `places` (turn keys and PLAN_COLUMNS) asks for, as far as they are here.

    Raises:
        SchemaError: a row whose logprobs are not as many as its response ids, or without a temperature.
    """
    # Positions first, so that token lists are taken once, by Arrow, and never pass through a join.
    wanted = (
        _positions(turns, "turn_row")
        .join(places, on=TURN_KEYS)
        .join(_positions(rewards, "reward_row"), on=TURN_KEYS)
        .join(_positions(credit, "credit_row"), on=TURN_KEYS)
    )
    rows = turns.take(wanted["turn_row"].to_arrow())
    credits = credit.take(wanted["credit_row"].to_arrow())
    temperature = pl.Series(rows["sampling"]).str.json_path_match("$.temperature").cast(pl.Float64)
    columns = {name: rows[name] for name in ROW_COLUMNS if name != "sampling"}
    columns |= {name: wanted[name].to_arrow() for name in PLAN_COLUMNS}
    columns |= {"temperature": temperature.to_arrow()}
    columns |= {"reward": rewards["reward"].take(wanted["reward_row"].to_arrow())}
    columns |= {name: credits[name] for name in ("return", "advantage")}
    table = pa.table(columns).select(PARTITION.names).cast(PARTITION)
    _refuse_broken_rows(table)
    return table


def _refuse_broken_rows(table: pa.Table) -> None:
    lengths = pc.list_value_length(table["response_token_ids"])
    logprobs = pc.fill_null(pc.list_value_length(table["behaviour_logprobs"]), -1)
    for what, bad in (
        ("other numbers of behaviour_logprobs than of response_token_ids", pc.not_equal(lengths, logprobs)),
        ("no temperature in sampling", pc.is_null(table["temperature"])),
    ):
        broken = table.filter(bad)
        if broken.num_rows:
            first = tuple(broken[key][0].as_py() for key in TURN_KEYS)
            raise SchemaError(
                f"{broken.num_rows} turns have {what}, the first is {first}; they can't be trained on"
            )


def _surveyed(turns: pa.Table) -> pl.DataFrame:
    """The turns with the length of their response and `prefix` in place of their tokens."""
    lengths = pc.fill_null(pc.list_value_length(turns["response_token_ids"]), 0)
    names = prefix_names(
        # the last token of a response predicts nothing, so no forward pass has it
        np.concatenate([prompt.values, response.values[:-1]]) if prompt.is_valid and response.is_valid else ()
        for prompt, response in zip(turns["prompt_token_ids"], turns["response_token_ids"], strict=True)
    )
    narrow = turns.drop_columns(["prompt_token_ids", "response_token_ids"])
    narrow = narrow.append_column("num_response_tokens", lengths)
    return pl.DataFrame(narrow.append_column("prefix", pa.array(names, pa.binary())))


def _positions(table: pa.Table, name: str) -> pl.DataFrame:
    return pl.DataFrame(table.select(TURN_KEYS)).with_row_index(name)
