"""Stored turns of the model whose place is taken: what the newcomer is asked, measured and taught on.

Whole episodes are chosen, newest iterations first, in an order that depends on the seed alone. A fifth of
them is held out: the newcomer is measured on these, and taught on the others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl
import pyarrow as pa

from pipeline.store.finished import Finished
from pipeline.store.run import Run
from stages.batching import PLAN_COLUMNS, plan_batches, prefix_names
from stages.partition import PartitionSpec
from stages.tables.parquet import TableRef, TableSink
from stages.weights.chat import ChatRenderer
from workflows.errors import UsageError
from workflows.trajectory import PARTITION, TURN_KEYS, rows_to_table, seed_for
from workflows.vocabulary import NOT_THE_POLICYS_DOING, Event

HELD_OUT: Final = 5  # every fifth episode
ROWS_A_STEP: Final = 32  # rows of one optimizer step of what is taught
_COLUMNS: Final = (
    *TURN_KEYS,
    *("iteration", "group_id", "event", "model_id", "role", "step", "round", "branch", "status"),
    *("policy_version", "prompt_token_ids", "response_token_ids", "behaviour_logprobs", "sampling"),
    *("messages", "response_text", "format_valid", "context_hash"),
)


@dataclass(frozen=True, slots=True)
class Contexts:
    """Stored turns of one model, in the order in which their episodes were chosen."""

    rows: tuple[dict[str, Any], ...]  # of `turns`, each with its `reward`
    turns: tuple[tuple[str, int, str], ...]  # episode, turn and model of all llm turns of these episodes
    iterations: tuple[int, ...]  # that they are from

    @property
    def held_out(self) -> Contexts:
        """Every fifth episode: to measure on. All of them where there are fewer than ten."""
        return self._of_episodes(lambda place: place % HELD_OUT == 0)

    @property
    def taught(self) -> Contexts:
        """The other episodes."""
        return self._of_episodes(lambda place: place % HELD_OUT != 0)

    def _of_episodes(self, chosen: Any) -> Contexts:
        episodes = list(dict.fromkeys(row["episode_id"] for row in self.rows))
        if len(episodes) < 2 * HELD_OUT:
            return self
        kept = {episode for place, episode in enumerate(episodes) if chosen(place)}
        return replace(
            self,
            rows=tuple(row for row in self.rows if row["episode_id"] in kept),
            turns=tuple(turn for turn in self.turns if turn[0] in kept),
        )

    def earned(self, least: float) -> Contexts:
        """The turns whose reward is at least that."""
        kept = (row for row in self.rows if row["reward"] is not None and row["reward"] >= least)
        return replace(self, rows=tuple(kept))


def stored_contexts(run: Run, model: str, count: int, seed: int) -> Contexts:
    """The newest stored turns of a model, at least `count` if there are so many.

    Turns that failed, without tokens, or at temperature 0 (no policy sampled them) are left out.

    Raises:
        UsageError: there are none.
    """
    rows: list[dict[str, Any]] = []
    turns: list[tuple[str, int, str]] = []
    used: list[int] = []
    for index in reversed(run.iterations()):
        if len(rows) >= count:
            break
        of_iteration = _rows_of(Finished.read(run.iteration(index)))
        by_episode: dict[str, list[dict[str, Any]]] = {}
        for row in of_iteration:
            by_episode.setdefault(row["episode_id"], []).append(row)
        used.append(index)
        for episode in sorted(by_episode, key=lambda e: (seed_for(seed, "replace", e), e)):
            if len(rows) >= count:
                break
            mine = [row for row in by_episode[episode] if row["model_id"] == model and _is_usable(row)]
            rows += mine
            if mine:
                turns += [(episode, row["turn_index"], row["model_id"]) for row in by_episode[episode]]
    if not rows:
        raise UsageError(
            f"run {run.name!r} has no stored turn of model {model!r} that a policy sampled (finished, with "
            "tokens, at a temperature above 0), so there is nothing to measure a newcomer on; run an "
            "iteration first"
        )
    return Contexts(tuple(rows), tuple(turns), tuple(used))


def _rows_of(done: Finished) -> list[dict[str, Any]]:
    if "turns" not in done.tables:
        return []
    frame = pl.DataFrame(done.tables["turns"].read(_COLUMNS)).filter(pl.col("event") == str(Event.LLM))
    if "rewards" in done.tables:
        rewards = pl.DataFrame(done.tables["rewards"].read([*TURN_KEYS, "reward"]))
        frame = frame.join(rewards, on=TURN_KEYS, how="left")
    else:
        frame = frame.with_columns(reward=pl.lit(None, pl.Float64))
    return frame.filter(pl.col("model_id").is_not_null()).sort(TURN_KEYS).to_dicts()


def _is_usable(row: dict[str, Any]) -> bool:
    sampled = row["behaviour_logprobs"] and row["prompt_token_ids"]
    failed = row["status"] in NOT_THE_POLICYS_DOING
    return bool(sampled) and not failed and _temperature(row) > 0


def _temperature(row: dict[str, Any]) -> float:
    return float(json.loads(row["sampling"] or "{}").get("temperature") or 0.0)


@dataclass(frozen=True, slots=True)
class Reading:
    """How the newcomer reads stored turns: with the tokens that they have, or with its own."""

    renderer: ChatRenderer
    own_prompts: bool  # its chat template or vocabulary differs, so prompts are rendered anew
    own_words: bool  # its vocabulary differs, so replies are encoded anew
    end_before: int | None = None  # the token with which its predecessor ends a turn; None: there is none

    def tokens(self, row: dict[str, Any]) -> tuple[list[int], list[int]]:
        """Prompt and response of a stored turn as the newcomer would have them."""
        prompt, response = row["prompt_token_ids"], row["response_token_ids"]
        if self.own_prompts:
            prompt = self.renderer.render(json.loads(row["messages"]))
        if self.own_words:
            response = self.renderer.encode(row["response_text"])
            if (
                row["response_token_ids"][-1] == self.end_before
            ):  # others were cut off, or are of fixed length
                response = [*response, self.renderer.end_of_turn]
        return list(prompt), list(response)


def partition_of(
    rows: Sequence[dict[str, Any]], spec: PartitionSpec, reading: Reading | None = None
) -> list[pa.Table]:
    """Stored turns as `PARTITION` tables, one for each rank; None reads them as they are.

    A response that is encoded anew has no logprobs of the sampler: zeros stand for them.
    """
    read = [
        (r, *(reading.tokens(r) if reading else (r["prompt_token_ids"], r["response_token_ids"])))
        for r in rows
    ]
    read = [(row, prompt, response) for row, prompt, response in read if prompt and response]
    keys = pl.DataFrame(
        {
            "episode_id": [row["episode_id"] for row, _, _ in read],
            "turn_index": pl.Series([row["turn_index"] for row, _, _ in read], dtype=pl.Int32),
            "num_prompt_tokens": pl.Series([len(p) for _, p, _ in read], dtype=pl.Int32),
            "num_response_tokens": pl.Series([len(r) for _, _, r in read], dtype=pl.Int32),
            "prompt": [row["context_hash"] for row, _, _ in read],
            "prefix": pl.Series(prefix_names([*p, *r[:-1]] for _, p, r in read), dtype=pl.Binary),
        }
    )
    plan = plan_batches(
        keys,
        ranks=spec.ranks,
        mini_batches=spec.mini_batches,
        micro_batch_tokens=spec.micro_batch_tokens,
        seed=spec.seed,
        shared_prefix=spec.shared_prefix,
    )
    places = {
        (row["episode_id"], row["turn_index"]): {name: row[name] for name in PLAN_COLUMNS}
        for row in plan.iter_rows(named=True)
    }
    out = []
    for row, prompt, response in read:
        stored = row["behaviour_logprobs"]
        out.append(
            {
                **{name: row[name] for name in PARTITION.names if name in row},
                "model_id": spec.model_id,
                "prompt_token_ids": prompt,
                "response_token_ids": response,
                "behaviour_logprobs": stored if len(stored) == len(response) else [0.0] * len(response),
                "temperature": _temperature(row),
                "advantage": 1.0,
                **places[row["episode_id"], row["turn_index"]],
            }
        )
    table = rows_to_table(out, PARTITION).sort_by(
        [(c, "ascending") for c in ("rank", "mini_batch", "micro_batch", *TURN_KEYS)]
    )
    ranks = table["rank"].to_numpy()
    return [table.filter(pa.array(ranks == rank)) for rank in range(spec.ranks)]


def at_places_of(table: pa.Table, other: pa.Table) -> pa.Table:
    """The rows of `table` at the places (rank, optimizer step, forward pass) that `other` has for them."""
    own = pl.DataFrame(table).drop(PLAN_COLUMNS)
    placed = own.join(pl.DataFrame(other.select([*TURN_KEYS, *PLAN_COLUMNS])), on=TURN_KEYS, how="inner")
    return placed.select(PARTITION.names).to_arrow().cast(PARTITION)


def stored_table(name: str, folder: str, tables: Sequence[pa.Table]) -> TableRef:
    """Write tables as the parts of one."""
    sink = TableSink(name, folder, PARTITION)
    return sink.ref([sink.write_part(index, table) for index, table in enumerate(tables)])


def steps_for(rows: int) -> int:
    """Optimizer steps of one pass over so many rows."""
    return max(1, -(-rows // ROWS_A_STEP))
