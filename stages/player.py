"""The player actor: a workflow with its tools, kept warm, that plays many episodes at once."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stages.tables import TableRef, TableSink, write_bytes
from workflows.engine import Engine
from workflows.loading import load_workflow
from workflows.models import ModelMap
from workflows.play import Played, Player, PlayLimits
from workflows.roles import RoleSettings
from workflows.trajectory import EPISODES, TURNS, rows_to_table


@dataclass(frozen=True, slots=True)
class PlayerSpec:
    """What a player actor needs to build its workflow: no live objects, so that it pickles."""

    use: str
    options: Mapping[str, Any]
    models: ModelMap
    roles: Mapping[str, RoleSettings]
    limits: PlayLimits
    run_seed: int
    max_in_flight: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of an iteration's tasks to be played, and where its tables go."""

    index: int
    iteration: int
    group_size: int
    tasks: TableRef
    sinks: Mapping[str, TableSink]
    receipts: str  # folder of the receipts; a shard is finished when its receipt is there

    @property
    def receipt_uri(self) -> str:
        return receipt_uri(self.receipts, self.index)


def receipt_uri(folder: str, index: int) -> str:
    return f"{folder}/{index:05d}.json"


class PlayerActor:
    """Runs in an async Ray actor (`start_player`), and in tests as it is."""

    def __init__(self, spec: PlayerSpec, engines: Mapping[str, Engine]) -> None:
        self.spec = spec
        self.engines = dict(engines)
        self.progress_counts: Counter[str] = Counter()

    async def start(self) -> None:
        """Build the workflow and let its tools load what they need."""
        spec = self.spec
        workflow = load_workflow(spec.use, spec.options)
        self.player = Player(workflow, self.engines, spec.models, spec.roles, spec.limits, spec.run_seed)
        await self.player.start()
        self.slots = asyncio.Semaphore(self.spec.max_in_flight)

    async def set_versions(self, versions: Mapping[str, int]) -> None:
        """Which weights a request sent from now on is asked of, by model id."""
        for model_id, version in versions.items():
            self.engines[model_id].policy_version = version

    async def progress(self) -> dict[str, int]:
        """Episodes, turns and response tokens since the actor started."""
        return dict(self.progress_counts)

    async def play_shard(self, shard: Shard) -> dict[str, Any]:
        """Play every episode of the shard, write its two tables, then its receipt, and return it."""
        rows = shard.tasks.read_part(shard.index, ["task_id", "split", "inputs"]).to_pylist()
        tasks = [{**row, "inputs": json.loads(row["inputs"])} for row in rows]
        played = await asyncio.gather(
            *(self._play(t, shard.iteration, s) for t in tasks for s in range(shard.group_size))
        )
        receipt = await asyncio.to_thread(self._write, shard, played)
        return receipt

    async def _play(self, task: Mapping[str, Any], iteration: int, sample: int) -> Played:
        async with self.slots:
            played = await self.player.play(task, iteration=iteration, sample=sample)
        self.progress_counts["episodes"] += 1
        self.progress_counts["turns"] += len(played.turns)
        self.progress_counts["tokens"] += played.episode["num_response_tokens"]
        return played

    def _write(self, shard: Shard, played: list[Played]) -> dict[str, Any]:
        turns = rows_to_table([row for p in played for row in p.turns], TURNS)
        episodes = rows_to_table([p.episode for p in played], EPISODES)
        failed = Counter(
            f"{p.episode['status']}: {p.episode['error']}" for p in played if p.episode["status"] != "ok"
        )
        receipt = {
            "index": shard.index,
            "parts": {
                "turns": shard.sinks["turns"].write_part(shard.index, _sorted(turns)).as_dict(),
                "episodes": shard.sinks["episodes"].write_part(shard.index, _sorted(episodes)).as_dict(),
            },
            "episodes_asked": shard.tasks.parts[shard.index].rows * shard.group_size,
            "failed": dict(failed),
            "response_tokens": sum(p.episode["num_response_tokens"] for p in played),
            "prompt_tokens": sum(p.episode["num_prompt_tokens"] for p in played),
        }
        write_bytes(shard.receipt_uri, json.dumps(receipt, indent=1, sort_keys=True).encode())
        return receipt


def _sorted(table: pa.Table) -> pa.Table:
    keys = [c for c in ("episode_id", "turn_index") if c in table.column_names]
    return table.sort_by([(k, "ascending") for k in keys])


def start_player(spec: PlayerSpec, engines: Mapping[str, Engine], name: str | None = None) -> Any:
    """A started player actor. It holds no CPU in Ray's books: engines do the work it waits for.

    Raises:
        workflows.errors.CadreError: the workflow or a tool could not be loaded there.
    """
    import ray

    threads = {"env_vars": {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}}
    actor: Any = ray.remote(PlayerActor)
    handle = actor.options(
        name=name, num_cpus=0, max_restarts=0, max_task_retries=0, max_concurrency=1024, runtime_env=threads
    ).remote(spec, dict(engines))
    try:
        ray.get(handle.start.remote())
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    return handle
