"""tasks → turns, episodes: plays every episode on the engines, one row per executed step."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stages.base import BASE, Account, Context, StageResult
from stages.lease import Lease
from stages.parts import map_parts
from stages.players.actor import play_shard
from stages.players.shards import SHARDS, Shard, num_failed, read_receipt
from stages.tables.parquet import Part, TableRef, TableSink, aligned_parts
from stages.waiting import LIMITS, Overdue, answers
from workflows.errors import RunFailed
from workflows.trajectory import EPISODES, TASKS, TURNS

POLL_SECONDS = 1.0
PROGRESS_SECONDS = 30.0  # it is for people only, and no reason to fail
CAUSES_SHOWN = 3
BASE_TURNS = f"{BASE}turns"


@dataclass(frozen=True, slots=True)
class RolloutStage:
    """Play `group_size` episodes of every task.

    Each part of `tasks` is a shard that a player plays and commits by itself: after a kill the
    finished shards stay. Several shards are under way at once, so that engines stay full across
    shard borders.

    A failed episode costs no other: its rows are kept and counted, and what it leaves is a *partial*
    group, whose other episodes are compared with each other. A share of failed episodes above
    `max_failed_share` fails the run with the most frequent causes. When an unfinished rollout goes on,
    the failed episodes of its committed shards are played again, whatever their share: what made them
    fail may be over. A finished rollout stays as it is.

    With `suffix`, each episode begins with that of an earlier block for the same task and sample, as far as
    it would be played in the same way today (`workflows.playing.base_episode`): table `base_turns`, whose
    part k is of the tasks of part k.
    """

    group_size: int
    max_in_flight: int
    max_failed_share: float

    name: str = "rollout"
    folder: str = "rollout"
    lease: Lease = "engine"
    stall_seconds: float = LIMITS.player_call_seconds  # in which a player gives no sign of life
    resumable: bool = True  # shards that have a receipt are kept after a kill
    suffix: bool = False
    first_sample: int = 0  # number of each task's first play
    purpose: str | None = None  # what the players play for; None: what the fleet is for

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        return {"tasks": TASKS, **({BASE_TURNS: TURNS} if self.suffix else {})}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        return {"turns": TURNS, "episodes": EPISODES}

    @property
    def places(self) -> dict[str, str]:
        return {"turns": "turns", "episodes": "episodes"}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        tasks, base = inputs["tasks"], inputs.get(BASE_TURNS)
        if base is not None:
            aligned_parts({"tasks": tasks, BASE_TURNS: base})
        receipts_folder = outputs["turns"].folder.rsplit("/", 1)[0] + f"/{SHARDS}"
        size, first, block = self.group_size, self.first_sample, context.block
        shards = [
            Shard(k, context.iteration, size, tasks, outputs, receipts_folder, block, base, first)
            for k in range(len(tasks.parts))
        ]
        committed = [r for s in shards if (r := read_receipt(s.receipt_uri)) is not None]
        whole = {r["index"]: r for r in committed if num_failed(r) == 0}
        waiting = [s for s in shards if s.index not in whole]
        players = context.fleet.players(self.purpose) if waiting else []
        total = tasks.rows * self.group_size
        already = sum(r["episodes_asked"] - num_failed(r) for r in committed)
        with _Ticker(context, players, total, already):
            played = self._play(waiting, players)
        receipts = sorted([*whole.values(), *played], key=lambda r: r["index"])
        return self._result(receipts, total)

    def _play(self, shards: Sequence[Shard], players: Sequence[Any]) -> list[dict[str, Any]]:
        if not shards:
            return []
        by_index = {s.index: s for s in shards}
        episodes_per_shard = max(s.tasks.parts[s.index].rows for s in shards) * self.group_size
        # one more than fills the engines, so that a shard's last slow episodes leave no idle slots
        stall = self.stall_seconds
        at_once = min(8, -(-self.max_in_flight // episodes_per_shard) + 1)

        def play_one(index: int) -> dict[str, Any]:
            return play_shard(players[index % len(players)], by_index[index], stall)

        return map_parts(play_one, sorted(by_index), num_cpus=0.01, retries=0, concurrency=at_once)

    def _result(self, receipts: Sequence[Mapping[str, Any]], asked: int) -> StageResult:
        parts = {t: [Part(**r["parts"][t]) for r in receipts] for t in ("turns", "episodes")}
        failed = merged_failures(r["failed"] for r in receipts)
        lost = sum(kind["count"] for kind in failed)
        self._check_budget(lost, failed, asked)
        groups: Counter[str] = Counter()
        for receipt in receipts:
            groups.update(receipt["groups"])
        episodes = sum(p.rows for p in parts["episodes"])
        metrics = {
            "episodes": float(episodes),
            "episodes_failed": float(lost),
            "groups_partial": float(groups["partial"]),
            "groups_failed": float(groups["failed"]),
            "turns": float(sum(p.rows for p in parts["turns"])),
            "response_tokens": float(sum(r["response_tokens"] for r in receipts)),
            "prompt_tokens": float(sum(r["prompt_tokens"] for r in receipts)),
            "stray_tool_threads": float(max((r["stray_tool_threads"] for r in receipts), default=0)),
        }
        notes = []
        if self.suffix:
            copied = sum(r["copied_tokens"] for r in receipts)
            metrics["copied_tokens"] = float(copied)
            whole = copied + int(metrics["response_tokens"])
            notes.append(
                f"{copied} of {whole} response tokens are those of an earlier block, not sampled again"
            )
        if again := sum(r.get("episodes_again", 0) for r in receipts):
            notes.append(f"{again} episodes that had failed were played again when the rollout went on")
        if failed:
            left = f"{groups['partial']} groups are partial and {groups['failed']} lost"
            notes.append(f"{lost} of {asked} episodes failed, so {left}: {causes(failed)}")
        return StageResult(parts, [Account("rollout", "episode", asked, episodes)], metrics, notes)

    def _check_budget(self, lost: int, failed: Sequence[Mapping[str, Any]], asked: int) -> None:
        if lost > self.max_failed_share * asked:
            raise RunFailed(
                f"{lost} of {asked} episodes failed, more than the {self.max_failed_share:g} that "
                f"max_failed_share allows; most frequent: {causes(failed)}; when the cause is gone, the same "
                "command plays the failed episodes again"
            )


def merged_failures(receipts: Iterable[Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The failures of all receipts by kind, the most frequent first."""
    kinds: dict[str, dict[str, Any]] = {}
    for receipt in receipts:
        for kind, failure in receipt.items():
            kinds.setdefault(kind, {**failure, "count": 0})["count"] += failure["count"]
    return sorted(kinds.values(), key=lambda kind: (-kind["count"], kind["episode_id"]))


def causes(failed: Sequence[Mapping[str, Any]]) -> str:
    """The most frequent causes, each with its number and the episode that the text is from."""
    shown = [f"{f['count']} × {f['cause']} (as in {f['episode_id']})" for f in failed[:CAUSES_SHOWN]]
    more = [f"and {len(failed) - CAUSES_SHOWN} other causes"] if len(failed) > CAUSES_SHOWN else []
    return "; ".join(shown + more)


class _Ticker:
    """Asks the players how far they are, once a second, while Ray Data waits for whole shards."""

    def __init__(self, context: Context, players: Sequence[Any], total: int, already: int) -> None:
        self.progress, self.players = context.progress, players
        self.seen: Counter[str] = Counter()
        self.progress.start("rollout", total, "episode")
        self.progress.advance(already)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> None:
        self.seen = self._counts()
        self.thread.start()

    def __exit__(self, error: object, *_: object) -> None:
        self.stop.set()
        self.thread.join(0.1 if error else None)  # one that asks a silent player must not hold up a stop
        if not error:
            self._advance()
        self.progress.finish()

    def _poll(self) -> None:
        while not self.stop.wait(POLL_SECONDS):
            self._advance()

    def _advance(self) -> None:
        now = self._counts()
        new = Counter({name: now[name] - self.seen[name] for name in now})
        if new["episodes"] or new["tokens"]:
            self.progress.advance(new["episodes"], tokens=new["tokens"], turns=new["turns"])
            self.seen = now

    def _counts(self) -> Counter[str]:
        import ray

        total: Counter[str] = Counter()
        if not self.players:
            return total
        try:
            asked = [p.progress.remote() for p in self.players]
            for counts in answers(asked, "the players' progress", PROGRESS_SECONDS):
                total.update(counts)
        except (ray.exceptions.RayError, Overdue):
            return Counter(self.seen)  # a dead player is reported by the shard it was playing
        return total
