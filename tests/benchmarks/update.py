"""The update against a bare torch loop over the same micro-batches that computes the same logits.

Ours is `TrainerGroup.update` as the update stage calls it, seen from the driver: the Ray call, the
partition read, checked and packed, forward and backward under DeepSpeed, the optimizer step, and all
measures of the report. Rows are as in one iteration of `single`; what the responses say does not
matter to the time, so they are random ids.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from pipeline.cluster import start_ray
from pipeline.settings import PpoSection, TrainerSection
from stages.balance import PLAN_COLUMNS, plan_batches
from stages.checkpoints import describe_checkpoint, resolve_checkpoint
from stages.tables import TableSink
from stages.training.group import TrainerGroup
from stages.training.spec import TrainerSpec
from tests.benchmarks.measure import Figure, Options, column, interleave, noise_of, told
from tests.benchmarks.peer import cores, peer
from workflows.trajectory import PARTITION, TURN_KEYS

ROWS, PROMPT_TOKENS, RESPONSE_TOKENS = 12, (225, 255), (20, 48)
MODEL = "team"


def run(options: Options, say: Callable[[str], None]) -> list[Figure]:
    import ray

    checkpoint = resolve_checkpoint(options.checkpoint)
    ppo, trainer = PpoSection(), TrainerSection()
    spec = TrainerSpec(MODEL, MODEL, checkpoint, **trainer.model_dump(), **_of_spec(ppo))
    arguments = {"checkpoint": checkpoint, "threads": cores(), "learning_rate": spec.learning_rate}
    start_ray("local", 0.3)
    try:
        group = TrainerGroup.start(spec, version=0)
        with peer("tests.benchmarks.torch_loop", arguments, Path(options.folder) / "torch_loop.log") as loop:
            sink = TableSink(f"partition/{MODEL}", f"{options.folder}/partition", PARTITION)
            vocabulary = describe_checkpoint(checkpoint).vocab_size

            def ours(pair: int) -> dict[str, float]:
                table = partition(pair, group.version, vocabulary, ppo.micro_batch_tokens)
                reference = sink.ref([sink.write_part(pair, table)])
                started = time.monotonic()
                report = group.update(reference, pair)
                seconds = time.monotonic() - started
                if report.skipped:
                    raise RuntimeError(f"the update was skipped: {report.skipped}")
                tokens = report.num_forward_tokens
                return {"tokens_per_second": tokens / seconds, "seconds": seconds, "tokens": tokens}

            def theirs(pair: int) -> dict[str, float]:
                path = f"{sink.folder}/part-{pair:05d}.parquet"
                started = time.monotonic()
                answer = loop.ask(partition=path)
                seconds = time.monotonic() - started
                tokens = answer["forward_tokens"]
                return {"tokens_per_second": tokens / seconds, "seconds": seconds, "tokens": tokens}

            mine, others = interleave(ours, theirs, options.pairs, say)
        group.close()
    finally:
        ray.shutdown()
    return [
        Figure(
            "update",
            "tokens/s",
            column(mine, "tokens_per_second"),
            column(others, "tokens_per_second"),
            goal=0.9,
            at="least",
            against="bare torch loop",
            notes=(
                f"{ROWS} rows, {told(mine, 'tokens', 0)} prompt and response tokens, one optimizer step, "
                f"micro-batches of at most {ppo.micro_batch_tokens} padded tokens, {cores()} threads",
                f"both compute in {spec.precision} with fp32 master weights and moments; gradients of "
                "micro-batches add up in fp32 in ours, in bf16 in the peer",
                f"seconds: ours {told(mine, 'seconds', 2)}, peer {told(others, 'seconds', 2)}",
                noise_of(mine, others),
            ),
            settings={"trainer": trainer.model_dump(), "ppo": ppo.model_dump(), "rows": ROWS},
        )
    ]


def partition(seed: int, version: int, vocabulary: int, micro_batch_tokens: int) -> pa.Table:
    """A partition of one rank and one optimizer step, with random ids."""
    generator = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for number in range(ROWS):
        if number % 4 == 0:  # the episodes of a group share their prompt
            prompt = [generator.randrange(vocabulary) for _ in range(generator.randint(*PROMPT_TOKENS))]
        response = [generator.randrange(vocabulary) for _ in range(generator.randint(*RESPONSE_TOKENS))]
        rows.append(
            {
                "episode_id": f"{seed:05d}/task-{number // 4}/{number % 4}",
                "turn_index": 0,
                "group_id": f"{seed:05d}/task-{number // 4}",
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
    lengths = pl.DataFrame(
        {
            **{key: [row[key] for row in rows] for key in TURN_KEYS},
            "num_prompt_tokens": [len(row["prompt_token_ids"]) for row in rows],
            "num_response_tokens": [len(row["response_token_ids"]) for row in rows],
        }
    )
    plan = plan_batches(lengths, ranks=1, mini_batches=1, micro_batch_tokens=micro_batch_tokens, seed=seed)
    places = {tuple(row[k] for k in TURN_KEYS): row for row in plan.iter_rows(named=True)}
    for row in rows:
        place = places[tuple(row[k] for k in TURN_KEYS)]
        row |= {column: place[column] for column in PLAN_COLUMNS}
    return pa.Table.from_pylist(rows, schema=PARTITION)


def _of_spec(ppo: PpoSection) -> dict[str, Any]:
    return ppo.model_dump(exclude={"mini_batches", "micro_batch_tokens"})
