"""The player actor: a workflow with its tools, kept warm, that plays many episodes at once."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from stages.engines.client import failed_call
from stages.engines.routed import RoutedEngine, Routes
from stages.players.counterfactuals import Job, play_job
from stages.players.probes import ProbeJob, play_probes
from stages.players.shards import Kept, Shard, bases_of, kept_of
from stages.tables.filesystem import remove_files
from stages.tables.parquet import write_bytes
from stages.waiting import LIMITS, Limits, Overdue, answer, answers
from workflows.engine import AnyEngine, EngineHooks
from workflows.errors import RunFailed, SchemaError
from workflows.hooks import hooks_of
from workflows.loading import load_workflow
from workflows.models import ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.playing.base_episode import BaseEpisode
from workflows.playing.play import Player
from workflows.playing.record import Played
from workflows.roles import RoleSettings
from workflows.trajectory import EPISODES, TURNS, rows_to_table
from workflows.vocabulary import Status

LOOK_SECONDS: Final = 30.0  # a player that is busy is asked so often whether it lives
_CAUSE_CHARACTERS: Final = 400
_NUMBERS: Final = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?")


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
    hold_stops: bool = False  # roles that decide on a stop never get it
    returns: str = "last"  # which round's answer the workflow gives


class PlayerActor:
    """Runs in an async Ray actor (`player_process`), and in tests as it is."""

    def __init__(self, spec: PlayerSpec, engines: Mapping[str, AnyEngine] | None = None) -> None:
        self.spec = spec
        self.engines = dict(engines or {})
        self.progress_counts: Counter[str] = Counter()

    async def start(self, engines: Mapping[str, AnyEngine] | None = None) -> None:
        """Build the workflow, let its tools load what they need, and see that each API answers.

        Args:
            engines: by model id, where they were not up when the process was started.

        Raises:
            workflows.errors.CadreError: the workflow, a role's prompt or a tool can't work here.
        """
        spec = self.spec
        self.engines.update(engines or {})
        workflow = load_workflow(spec.use, spec.options, spec.returns)
        self.player = Player(
            workflow, self.engines, spec.models, spec.roles, spec.limits, spec.run_seed, spec.hold_stops
        )
        await self.player.start()
        for engine in self.engines.values():
            await hooks_of(engine, EngineHooks).reach()
        self.slots = asyncio.Semaphore(self.spec.max_in_flight)

    async def set_versions(self, versions: Mapping[str, int]) -> None:
        """Which weights a request sent from now on is asked of, by model id."""
        for model_id, version in versions.items():
            self.engines[model_id].policy_version = version

    async def set_replicas(self, replicas: Mapping[str, Mapping[int, Any]]) -> None:
        """Which replicas of an engine serve from now on: by its base and their number the actor, or None."""
        for base_id, routes in self._routes().items():
            routes.set(replicas.get(base_id, {}))

    async def replica_counts(self) -> dict[str, dict[int, dict[str, int]]]:
        """What each replica has answered to this player, by base and number."""
        routes = self._routes().items()
        return {base: {n: counts.as_dict() for n, counts in each.counts.items()} for base, each in routes}

    def _routes(self) -> dict[str, Routes]:
        """The routes of engines with replicas, by base: models of one engine share them."""
        routed = (engine for engine in self.engines.values() if isinstance(engine, RoutedEngine))
        return {engine.base_id: engine.routes for engine in routed}

    async def progress(self) -> dict[str, int]:
        """Episodes, turns and response tokens since the actor started."""
        return dict(self.progress_counts)

    async def play_shard(self, shard: Shard) -> dict[str, Any]:
        """Play every episode of the shard, write its two tables, then its receipt, and return it.

        Of a shard that was committed before, only the failed episodes are played, again.

        Raises:
            workflows.errors.SchemaError: two tasks of one id, whose episodes would have one key.
        """
        rows = shard.tasks.read_part(shard.index, ["task_id", "split", "inputs"]).to_pylist()
        tasks = [{**row, "inputs": json.loads(row["inputs"])} for row in rows]
        _refuse_twins(task["task_id"] for task in tasks)
        kept = await asyncio.to_thread(kept_of, shard)
        bases, there = await asyncio.to_thread(bases_of, shard), kept.plays
        try:
            async with asyncio.TaskGroup() as playing:  # one that can't be played ends the others too
                plays = [
                    playing.create_task(self._play(task, shard, sample, bases.get((task["task_id"], sample))))
                    for task in tasks
                    for sample in shard.samples
                    if (task["task_id"], sample) not in there
                ]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return await asyncio.to_thread(self._write, shard, kept, [play.result() for play in plays])

    async def play_counterfactuals(self, job: Job) -> dict[str, Any]:
        """Play the episodes of a part of stored tables otherwise: see `players.counterfactuals`."""
        return await play_job(self.player, job, self.slots, self._text_of)

    def _text_of(self, model_id: str, token_ids: Sequence[int]) -> str | None:
        """The text of ids of a model, for the places of characters; None where its engine can't say."""
        return hooks_of(self.engines[model_id], EngineHooks).decode(token_ids)

    async def play_probes(self, job: ProbeJob) -> dict[str, Any]:
        """Play the probes of a part of an iteration's episodes: see `players.probes`."""
        return await play_probes(self.player, job, self.slots)

    async def _play(
        self, task: Mapping[str, Any], shard: Shard, sample: int, base: BaseEpisode | None
    ) -> Played:
        async with self.slots:
            played = await self.player.play(
                task, iteration=shard.iteration, sample=sample, block=shard.block, base=base
            )
        self.progress_counts["episodes"] += 1
        self.progress_counts["turns"] += len(played.turns)
        self.progress_counts["tokens"] += played.episode["num_response_tokens"]
        return played

    def _write(self, shard: Shard, kept: Kept, played: list[Played]) -> dict[str, Any]:
        """Write the tables under new names, then the receipt that names them: a kill leaves the old ones."""
        turns = pa.concat_tables([kept.turns, rows_to_table([row for p in played for row in p.turns], TURNS)])
        episodes = pa.concat_tables([kept.episodes, rows_to_table([p.episode for p in played], EPISODES)])
        times = kept.times_played
        parts = {
            table: shard.sinks[table].write_part(shard.index, _sorted(rows), again=times).as_dict()
            for table, rows in (("turns", turns), ("episodes", episodes))
        }
        ends = episodes.select(["episode_id", "group_id", "status", "stop_reason", "error"]).to_pylist()
        receipt = {
            "index": shard.index,
            "parts": parts,
            "episodes_asked": shard.num_episodes,
            "failed": failures(ends),
            "groups": whole_groups(ends),
            "stray_tool_threads": self.player.stray_threads,
            "response_tokens": sum(episodes["num_response_tokens"].to_pylist()),
            "prompt_tokens": sum(episodes["num_prompt_tokens"].to_pylist()),
            **({"copied_tokens": _sum(episodes["num_copied_tokens"])} if shard.base is not None else {}),
            "times_played": times + 1,
            "episodes_again": len(played) if times else 0,
        }
        write_bytes(shard.receipt_uri, json.dumps(receipt, indent=1, sort_keys=True).encode())
        remove_files(kept.files)
        return receipt


def failures(episodes: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Why episodes failed, by kind of cause: how many, and the first of them as an example.

    Causes that differ in numbers only (a turn, a token count, an address) are of one kind.
    """
    kinds: dict[str, dict[str, Any]] = {}
    for episode in sorted(episodes, key=lambda e: str(e["episode_id"])):
        if episode["status"] == Status.OK:
            continue
        cause = f"{episode['status']}, {episode['stop_reason']}: {str(episode['error'])[:_CAUSE_CHARACTERS]}"
        first = {"count": 0, "cause": cause, "episode_id": episode["episode_id"]}
        kinds.setdefault(_NUMBERS.sub("#", cause), first)["count"] += 1
    return kinds


def whole_groups(episodes: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many groups lost no episode, some, or all of them."""
    lost: dict[str, list[bool]] = {}
    for episode in episodes:
        lost.setdefault(episode["group_id"], []).append(episode["status"] != Status.OK)
    kinds = Counter("failed" if all(ends) else "partial" if any(ends) else "whole" for ends in lost.values())
    return {kind: kinds[kind] for kind in ("whole", "partial", "failed")}


def _refuse_twins(task_ids: Iterable[str]) -> None:
    for task_id, count in Counter(task_ids).items():
        if count > 1:
            raise SchemaError(f"task {task_id!r} stands {count} times in a shard; its episodes would be one")


def _sum(column: pa.ChunkedArray) -> int:
    return sum(value or 0 for value in column.to_pylist())


def _sorted(table: pa.Table) -> pa.Table:
    keys = [c for c in ("episode_id", "turn_index") if c in table.column_names]
    return table.sort_by([(k, "ascending") for k in keys])


def player_process(spec: PlayerSpec, name: str | None = None) -> Any:
    """A player actor without engines, whose process comes up by itself. It holds no CPU in Ray's books:
    engines do the work it waits for."""
    import ray

    threads = {"env_vars": {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}}
    actor: Any = ray.remote(PlayerActor)
    return actor.options(
        name=name, num_cpus=0, max_restarts=0, max_task_retries=0, max_concurrency=1024, runtime_env=threads
    ).remote(spec)


def start_players(
    handles: Sequence[Any], spec: PlayerSpec, engines: Mapping[str, AnyEngine], limits: Limits = LIMITS
) -> None:
    """Give `player_process`es their engines, and wait until they can play.

    Raises:
        workflows.errors.CadreError: the workflow or a tool could not be loaded there, or an actor died.
    """
    import ray

    try:
        answers(
            [handle.start.remote(dict(engines)) for handle in handles],
            f"the start of a player of workflow {spec.use!r} with its tools",
            limits.player_start_seconds,
            setting="cluster.player_start_seconds",
        )
    except ray.exceptions.RayError as error:
        raise failed_call(error, "the player") from None


def play_shard(
    player: Any, shard: Shard, stall_seconds: float = LIMITS.player_call_seconds
) -> dict[str, Any]:
    """Let a player actor play a shard; its receipt.

    Raises:
        workflows.errors.CadreError: as `PlayerActor.play_shard`, or the player died, or it answered
            nothing for `stall_seconds`: its time limits can't end a plain function that never returns.
    """
    return _answered(player, player.play_shard.remote(shard), f"shard {shard.index}", stall_seconds)


def play_counterfactuals(player: Any, job: Job, stall_seconds: float) -> dict[str, Any]:
    """Let a player actor play a part of stored tables otherwise; its receipt.

    Raises:
        workflows.errors.CadreError: as `play_shard`.
    """
    work = player.play_counterfactuals.remote(job)
    return _answered(player, work, f"part {job.index}", stall_seconds)


def play_part_of_probes(player: Any, job: ProbeJob, stall_seconds: float) -> dict[str, Any]:
    """Let a player actor play the probes of a part; its receipt.

    Raises:
        workflows.errors.CadreError: as `play_shard`.
    """
    return _answered(player, player.play_probes.remote(job), f"probes of part {job.index}", stall_seconds)


def _answered(player: Any, work: Any, what: str, stall_seconds: float) -> dict[str, Any]:
    import ray

    try:
        while not ray.wait([work], timeout=min(stall_seconds, LOOK_SECONDS))[0]:
            answer(player.progress.remote(), "a sign of life", stall_seconds)
        receipt: dict[str, Any] = ray.get(work)
    except Overdue:
        raise RunFailed(
            f"the player of {what} has not answered for {stall_seconds:g} s "
            "(cluster.player_call_seconds): a parser, a condition or another plain function of the workflow "
            "does not return"
        ) from None
    except ray.exceptions.RayError as error:
        failure = failed_call(error, f"the player of {what}")
        failure.add_note("finished shards are kept: run the same settings again to go on")
        raise failure from None
    return receipt
