"""The update against a bare torch loop that computes the same logits, and its memory against TRL's.

Ours is `TrainerGroup.update` as the update stage calls it, seen from the driver: the Ray call, the
partition read, checked and packed, forward and backward under DeepSpeed, the optimizer step, and all
measures of the report. Rows are as in one iteration of `single`; what the responses say does not
matter to the time, so they are random ids.

With a prompt for each row, where both sides run the same micro-batches; with four rows to a prompt that is
five times as long as a response; and with the rows of an iteration of three teams that ship, with their
real prompts. Ours computes once what rows begin with; the loop, which pads rows, cuts the same rows by the
same budget.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from pipeline.run.cluster import start_ray
from stages.batching import PLAN_COLUMNS, plan_batches, prefix_names
from stages.tables.parquet import TableSink
from stages.training.group import TrainerGroup
from stages.training.network.packing import split
from stages.training.spec import TrainerSpec
from stages.weights.checkpoints import describe_checkpoint
from stages.weights.precision import trainer_precision
from stages.weights.resolve import resolve_checkpoint
from tests.benchmarks.measure import Figure, Options, column, interleave, noise_of, told, torch_dtype
from tests.benchmarks.peer import Peer, cores, peer
from tests.benchmarks.team_rows import TEAMS, Team, team_rows
from tests.benchmarks.trl_memory import trl_peak
from workflows.trajectory import PARTITION, TURN_KEYS

ROWS, GROUP_SIZE, PROMPT_TOKENS, RESPONSE_TOKENS = 16, 4, (225, 255), (42, 54)
MICRO_BATCH_TOKENS = 2048  # the default of [ppo]
MODEL = "team"


def run(options: Options, say: Callable[[str], None]) -> list[Figure]:
    import ray

    checkpoint = resolve_checkpoint(options.checkpoint)
    spec = TrainerSpec(MODEL, MODEL, checkpoint, precision=trainer_precision("auto", 0))
    arguments = {
        "checkpoint": checkpoint,
        "dtype": torch_dtype(),
        "threads": cores(),
        "learning_rate": spec.learning_rate,
    }
    start_ray("local", 0.3)
    try:
        group = TrainerGroup.start(spec, version=0)
        with peer("tests.benchmarks.torch_loop", arguments, Path(options.folder) / "torch_loop.log") as loop:
            bench = _Bench(group, loop, options.folder)
            figures = []
            for case in cases(checkpoint):
                say(case.said)
                figures.append(bench.figure(case, options.pairs, say))
        memory = group.peak_memory()[0]
        group.close()
    finally:
        ray.shutdown()
    theirs = trl_peak(options, say, GROUP_SIZE, ROWS // GROUP_SIZE)
    if theirs is not None:
        figures.append(_memory(memory, theirs))
    return figures


@dataclass(frozen=True, slots=True)
class Case:
    """Rows that both sides train on."""

    name: str
    said: str
    goal: float
    rows: Callable[[int, int], list[dict[str, Any]]]  # of a seed and a version


def cases(checkpoint: str) -> list[Case]:
    """What the update is measured on."""
    vocabulary = describe_checkpoint(checkpoint).vocab_size

    def random_rows(to_a_prompt: int) -> Callable[[int, int], list[dict[str, Any]]]:
        return lambda seed, version: partition_rows(seed, version, vocabulary, to_a_prompt)

    def of_team(team: Team) -> Callable[[int, int], list[dict[str, Any]]]:
        return lambda seed, version: team_rows(team, checkpoint, MODEL, version, seed)

    return [
        Case("update", "a prompt for each row", 0.9, random_rows(1)),
        Case("update, shared prompts", "four rows to a prompt", 2.0, random_rows(GROUP_SIZE)),
        *(
            Case(
                f"update, {team.name}",
                f"{team.tasks} tasks x {team.plays} plays of {team.workflow}",
                team.goal,
                of_team(team),
            )
            for team in TEAMS
        ),
    ]


class _Bench:
    """Our trainer and the bare loop, over the same rows."""

    def __init__(self, group: TrainerGroup, loop: Peer, folder: str) -> None:
        self.group, self.loop = group, loop
        self.sink = TableSink(f"partition/{MODEL}", f"{folder}/partition", PARTITION)
        self.padded = TableSink(f"partition/{MODEL}", f"{folder}/padded", PARTITION)
        self.updates = 0

    def figure(self, case: Case, pairs: int, say: Callable[[str], None]) -> Figure:
        mine, others = interleave(lambda _: self.ours(case), lambda _: self.theirs(), pairs, say)
        return Figure(
            case.name,
            "tokens/s",
            column(mine, "tokens_per_second"),
            column(others, "tokens_per_second"),
            goal=case.goal,
            at="least",
            against="bare torch loop",
            notes=(
                f"{case.said}: {told(mine, 'rows', 0)} rows, {told(mine, 'tokens', 0)} prompt and response "
                f"tokens, of which ours computes {told(mine, 'computed', 0)}, one optimizer step, "
                f"{MICRO_BATCH_TOKENS} tokens at most in a forward pass, {cores()} threads",
                f"both compute in {self.group.spec.precision}, with fp32 master weights and moments; "
                "gradients of micro-batches add up in fp32 in ours, in what it computes in in the peer",
                f"seconds: ours {told(mine, 'seconds', 2)}, peer {told(others, 'seconds', 2)}",
                noise_of(mine, others),
            ),
            settings={"micro_batch_tokens": MICRO_BATCH_TOKENS},
        )

    def ours(self, case: Case) -> dict[str, float]:
        number = self.updates
        rows = case.rows(number, self.group.version)
        cut = planned(rows, number, shared_prefix=True)
        part = self.sink.write_part(number, cut)
        self.padded.write_part(number, planned(rows, number, shared_prefix=False))
        self.updates += 1
        started = time.monotonic()
        report = self.group.update(self.sink.ref([part]), number)
        seconds = time.monotonic() - started
        if report.skipped:
            raise RuntimeError(f"the update was skipped: {report.skipped}")
        passes = next(iter(split(cut, packed=True).values()))
        computed = sum(batch.token_ids.numel() for batch in passes)
        measured = _measured(report.num_forward_tokens, seconds)
        return measured | {"rows": float(len(rows)), "computed": float(computed)}

    def theirs(self) -> dict[str, float]:
        """Of the rows that ours had last."""
        started = time.monotonic()
        answer = self.loop.ask(partition=f"{self.padded.folder}/part-{self.updates - 1:05d}.parquet")
        return _measured(answer["forward_tokens"], time.monotonic() - started)


def _measured(tokens: int, seconds: float) -> dict[str, float]:
    return {"tokens_per_second": tokens / seconds, "seconds": seconds, "tokens": tokens}


def _memory(ours: int, theirs: tuple[int, str]) -> Figure:
    gib = 2**30
    return Figure(
        "trainer memory",
        "GiB",
        (ours / gib,),
        (theirs[0] / gib,),
        goal=0.4,
        at="most",
        against="TRL, fp32 master weights",
        notes=(
            "the most that each process had resident; ours over all updates above, TRL's over one step",
            theirs[1],
        ),
    )


def partition_rows(seed: int, version: int, vocabulary: int, to_a_prompt: int) -> list[dict[str, Any]]:
    """Rows of one optimizer step, with random ids, and no place in it yet."""
    generator = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for number in range(ROWS):
        if number % to_a_prompt == 0:
            prompt = [generator.randrange(vocabulary) for _ in range(generator.randint(*PROMPT_TOKENS))]
        response = [generator.randrange(vocabulary) for _ in range(generator.randint(*RESPONSE_TOKENS))]
        rows.append(
            {
                "episode_id": f"{seed:05d}/task-{number // to_a_prompt}/{number % to_a_prompt}",
                "turn_index": 0,
                "group_id": f"{seed:05d}/task-{number // to_a_prompt}",
                "model_id": MODEL,
                "role": "solver",
                "step": "solve",
                "policy_version": version,
                "prompt_token_ids": prompt,
                "response_token_ids": response,
                "behaviour_logprobs": [-10.0] * len(response),
                "temperature": 1.0,
                "return": 0.0,
                "advantage": 1.0 if number % 2 else -1.0,
            }
        )
    return rows


def planned(rows: list[dict[str, Any]], seed: int, *, shared_prefix: bool, by_role: bool = False) -> pa.Table:
    """The rows as a partition of one rank and one optimizer step."""
    lengths = pl.DataFrame(
        {
            **{key: [row[key] for row in rows] for key in TURN_KEYS},
            "num_prompt_tokens": [len(row["prompt_token_ids"]) for row in rows],
            "num_response_tokens": [len(row["response_token_ids"]) for row in rows],
            "prompt": [row["group_id"] for row in rows],
            "part": [row["role"] for row in rows],
            "prefix": prefix_names(row["prompt_token_ids"] + row["response_token_ids"][:-1] for row in rows),
        }
    )
    plan = plan_batches(
        lengths,
        ranks=1,
        mini_batches=1,
        micro_batch_tokens=MICRO_BATCH_TOKENS,
        seed=seed,
        shared_prefix=shared_prefix,
        apart=by_role,
    )
    places = {tuple(row[k] for k in TURN_KEYS): row for row in plan.iter_rows(named=True)}
    placed = [
        row | {column: places[tuple(row[k] for k in TURN_KEYS)][column] for column in PLAN_COLUMNS}
        for row in rows
    ]
    return pa.Table.from_pylist(placed, schema=PARTITION)
