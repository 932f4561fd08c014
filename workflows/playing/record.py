"""The rows of one episode: opened as turns are asked, put in an order that no timing changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workflows import trajectory as t
from workflows.errors import TurnLimit, WorkflowError, describe
from workflows.state import Place, TurnKey
from workflows.structure import topological
from workflows.vocabulary import Act, Event, Origin, Status, StopReason


@dataclass(slots=True)
class Played:
    """One played episode: rows of `TURNS` in `turn_index` order, and its row of `EPISODES`."""

    turns: list[dict[str, Any]]
    episode: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EpisodeId:
    """Where an episode stands in a run."""

    iteration: int
    split: str | None
    task_id: str
    sample: int
    block: int = 0

    def columns(self) -> dict[str, Any]:
        group_id = t.group_id_of(self.iteration, self.task_id, self.block)
        return {
            "iteration": self.iteration,
            "block": self.block,
            "split": self.split,
            "task_id": self.task_id,
            "group_id": group_id,
            "sample": self.sample,
            "episode_id": t.episode_id_of(group_id, self.sample),
        }


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an episode is not ok: the status it gets, a stop reason, and a cause that names the step."""

    key: TurnKey
    status: Status
    stop_reason: StopReason
    error: str


@dataclass(slots=True)
class Turn:
    """A turn in the making. `after` are turns that were over before it was asked, parents among them."""

    key: TurnKey
    parents: frozenset[TurnKey]
    after: frozenset[TurnKey]
    row: dict[str, Any]
    decided_by: TurnKey | None = None
    max_tokens: int | None = None  # of the reply, where a budget says so
    begun: Callable[[], None] | None = None


class Record:
    """All turns and failures of one episode. `order` names steps in the order that lists turns."""

    def __init__(self, identity: EpisodeId, order: Sequence[str], max_turns: int):
        self.identity = identity
        self.failures: list[Failure] = []
        self.modelled_seconds: float | None = None
        self.expired = False  # set before calls are cancelled because the episode's time is over
        self._max_turns = max_turns
        # spawns of one reply stand side by side, before the turns of what they spawned
        self._rank = {Act.SPAWN.value: -1} | {step: i for i, step in enumerate(order)}
        self._turns: dict[TurnKey, Turn] = {}
        self._epoch = time.time()
        self._start = time.monotonic()

    def now(self) -> float:
        """Seconds since the episode's start, by the monotonic clock."""
        return time.monotonic() - self._start

    @property
    def full(self) -> bool:
        return len(self._turns) >= self._max_turns

    def open(self, event: Event, place: Place, *, beyond_limit: bool = False) -> Turn:
        """A new turn, with every column of its row.

        Args:
            beyond_limit: whether it may be one more than an episode may have.

        Raises:
            TurnLimit: `max_turns` are open already.
            WorkflowError: there is such a turn.
        """
        if self.full and not beyond_limit:
            raise TurnLimit(f"the episode has its {self._max_turns} turns")
        key = place.key
        if key in self._turns:
            raise WorkflowError(
                f"step {key.step!r} ran twice in round {key.round}, branch {key.branch!r}; "
                "give another round or branch"
            )
        row: dict[str, Any] = dict.fromkeys(t.TURNS.names)
        row.update(self.identity.columns())
        row.update(step=key.step, round=key.round, branch=key.branch, event=event, origin=Origin.SAMPLED)
        row.update(metrics=[], attempts=0, queued_at=self.now(), instance=place.instance)
        before = frozenset(place.after) | frozenset(place.parents)
        turn = Turn(
            key, frozenset(place.parents), before, row, place.decided_by, place.max_tokens, place.begun
        )
        self._turns[key] = turn
        return turn

    @property
    def keys(self) -> list[TurnKey]:
        """The places of all turns."""
        return list(self._turns)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of all turns, in the order in which they were opened."""
        return [turn.row for turn in self._turns.values()]

    def row(self, key: TurnKey) -> dict[str, Any]:
        """The row of a turn that is open."""
        return self._turns[key].row

    def precedes(self, earlier: TurnKey, place: Place) -> bool:
        """Whether a turn is certain to come before a turn at `place`, directly or by others between them."""
        ahead, seen = {*place.after, *place.parents}, set[TurnKey]()
        while ahead:
            if earlier in ahead:
                return True
            seen |= ahead
            known = [self._turns[key] for key in ahead if key in self._turns]
            ahead = {key for turn in known for key in turn.after} - seen
        return False

    def fault(self, key: TurnKey, what: str, error: Exception, event: Event | None = None) -> None:
        """Note an exception in the workflow's own code; with `event`, as a row of that kind too."""
        message = f"{what}: {describe(error)}"
        if event is not None and not self.full:
            now = self.now()
            row = self.open(event, Place(key)).row
            row.update(status=Status.INFRA_ERROR, status_detail=message, ended_at=now)
        self.failures.append(Failure(key, Status.INFRA_ERROR, StopReason.WORKFLOW_ERROR, message))

    def close(self, stop_reason: StopReason) -> Played:
        """The finished episode. Turns without a status were in flight when it was stopped."""
        keys = sorted(self._turns, key=self._rank_of)
        ordered = topological(keys, {key: turn.after for key, turn in self._turns.items()})
        index = {key: i for i, key in enumerate(ordered)}
        rows = []
        for key in ordered:
            turn = self._turns[key]
            turn.row.update(turn_index=index[key], parents=sorted(index[p] for p in turn.parents))
            turn.row["decided_by"] = None if turn.decided_by is None else index[turn.decided_by]
            if turn.row["status"] is None:
                turn.row.update(status=Status.TIMEOUT, status_detail="the episode's time was over")
            rows.append(_writable(turn.row))
        return Played(rows, _writable(self._episode_row(rows, stop_reason)))

    def _episode_row(self, rows: list[dict[str, Any]], stop_reason: StopReason) -> dict[str, Any]:
        status, error = Status.OK, None
        if self.expired:
            running = [r["step"] for r in rows if r["status"] == Status.TIMEOUT]
            status, stop_reason = Status.TIMEOUT, StopReason.EPISODE_TIMEOUT
            error = f"the episode's time was over in step {', '.join(map(repr, running)) or 'none'}"
        elif self.failures:  # the first in the order of turns, so that timing does not choose
            first = min(self.failures, key=lambda f: (f.status == Status.CANCELLED, self._rank_of(f.key)))
            status, stop_reason, error = first.status, first.stop_reason, first.error
        asked = [row for row in rows if row["origin"] != Origin.COPIED]
        return {
            **self.identity.columns(),
            "status": status,
            "error": error,
            "stop_reason": stop_reason,
            "num_turns": len(rows),
            "num_prompt_tokens": sum(r["num_prompt_tokens"] or 0 for r in asked if r["attempts"]),
            "num_response_tokens": sum(r["num_response_tokens"] or 0 for r in asked),
            "started_at": self._epoch,
            "seconds": self.now(),
            "modelled_seconds": self.modelled_seconds,
            **dict.fromkeys(("base_episode_id", "replay_from_turn", "num_copied_tokens")),
        }

    def _rank_of(self, key: TurnKey) -> tuple[Any, ...]:
        branch = [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in key.branch.split(".") if p]
        return (self._rank.get(key.step, len(self._rank)), key.step, key.round, branch, key.branch)


def _writable(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose texts any file can hold, whatever a plug-in put into them."""
    return {name: t.clean_text(v) if isinstance(v, str) else v for name, v in row.items()}
