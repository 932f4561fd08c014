"""One episode: calls of roles and tools, each recorded as one row of `TURNS`.

This is the core under both kinds of workflow: the graph executor calls it, and so does the `Team` of a
workflow that is written as an async function.

    draft = await episode.call("writer", {"question": question}, Place.at("draft"))
    hits = await episode.tool("search", {"query": draft.value}, Place.at("search", parents=[draft.key]))

A malformed or truncated reply and a refused request are outputs, not errors: the parser's verdict
stands, and the workflow goes on. A failure that is not the policy's doing is recorded on its row and
raised as `TurnFailed`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from workflows import trajectory as t
from workflows.engine import ChatReply, Completion, EngineHooks, Sampling
from workflows.errors import TurnFailed, WorkflowError, describe, did_you_mean
from workflows.hooks import hooks_of
from workflows.playing.attempts import CallFailed, PlayLimits
from workflows.playing.base_episode import BaseEpisode
from workflows.playing.columns import (
    OF_THE_REPLY,
    as_json,
    parse_reply,
    prompt_columns,
    reply_columns,
    verdict,
)
from workflows.playing.conversation import Conversations, Seat, first_prompt
from workflows.playing.decision import StopsSaid, decide, kept_columns
from workflows.playing.record import Failure, Record, Turn
from workflows.playing.spans import token_span
from workflows.playing.speaker import Speaker
from workflows.playing.threads import ToolThreads
from workflows.playing.tool_calls import ToolCalls, attempted
from workflows.prompts import Prompt, PromptTooLong
from workflows.state import Output, Place, TurnKey
from workflows.vocabulary import Event, Origin, Status, StopReason

T = TypeVar("T")


class Episode:
    """The calls of one play.

    Args:
        record: takes the rows.
        speakers: by role.
        versions: model id → the version of its weights that a request sent now is asked of.
        threads: where tools that are plain functions run.
        base: the stored episode that this one begins with.
        hold_stops: whether roles that decide on a stop never get it: the episode goes on to its end.
    """

    def __init__(
        self,
        record: Record,
        speakers: Mapping[str, Speaker],
        tools: Mapping[str, Callable[[Any], Any]],
        versions: Callable[[], dict[str, int]],
        limits: PlayLimits,
        run_seed: int,
        threads: ToolThreads,
        base: BaseEpisode | None = None,
        hold_stops: bool = False,
    ):
        self.record = record
        self._hold_stops = hold_stops
        self._stops = StopsSaid()
        self._speakers = speakers
        self._tools = tools
        self._versions = versions
        self._limits = limits
        self._run_seed = run_seed
        self._base = base
        self._conversations = Conversations(record.precedes)
        self._called_off = set[TurnKey]()
        self._not_before = dict[TurnKey, float]()
        self._asks = ToolCalls(record, limits, threads, base, self.seed, self._json, self._not_before)

    @property
    def full(self) -> bool:
        """Whether the episode has as many turns as it may have."""
        return self.record.full

    def call(self, role: str, variables: Mapping[str, Any], place: Place) -> Coroutine[Any, Any, Output]:
        """Ask a role. The turn is opened at once; await the result for its output.

        Args:
            place: the turn's own key, the turns that `variables` was made from, and those before it.

        Raises:
            WorkflowError, TurnLimit: at once; see `Record.open`.
            TurnFailed: when awaited.
        """
        speaker = _named(role, self._speakers, "role")
        self._stops.asked(speaker.role, place)
        if self._base is not None:
            variables = self._base.inputs(place.key, variables)
        if not speaker.role.conversation:
            turn = self.record.open(Event.LLM, place)
            return self._guarded(turn, lambda: self._call(turn, speaker, variables))
        self._conversations.check(role, place)
        turn = self.record.open(Event.LLM, place)
        seat = self._conversations.seat(role, place.key)
        return self._guarded(turn, lambda: self._call_in_turn(turn, speaker, variables, seat))

    def tool(self, name: str, request: Any, place: Place) -> Coroutine[Any, Any, Output]:
        """Ask a tool; like `call`. A refused request gives an output that is not valid."""
        function = _named(name, self._tools, "tool")
        text = self._json(request, f"the request to tool {name!r}")
        turn = self.record.open(Event.TOOL, place)
        self._stops.pass_on(place)
        turn.row.update(tool=name, tool_request=text)
        return self._guarded(turn, lambda: self._asks.ask(turn, function, request))

    def control(self, value: Any, place: Place, columns: Mapping[str, Any] = MappingProxyType({})) -> Output:
        """Record a value (JSON) that the workflow computed by itself.

        Args:
            columns: what an act's row says beside its value: see `workflows.acts`.
        """
        text = self._json(value, "the computed value")
        turn = self.record.open(Event.CONTROL, place)
        turn.row.update(columns)
        self._stops.pass_on(place)
        if self._base is not None and self._base.computed(turn.key, text):
            turn.row["origin"] = Origin.COPIED
        now = self.record.now()
        turn.row.update(
            parsed=text, status=Status.OK, attempts=1, queued_at=now, started_at=now, ended_at=now
        )
        output = Output(value, "", True, turn.key)
        return output if self._base is None else self._base.handed_over(output)

    @property
    def replays(self) -> bool:
        """Whether the episode begins with a stored one."""
        return self._base is not None

    def tokens(self, key: TurnKey) -> tuple[int, int]:
        """Tokens of the prompt and of the reply of a turn; 0 where they are not known."""
        row = self.record.row(key)
        return row["num_prompt_tokens"] or 0, row["num_response_tokens"] or 0

    def modelled(self, key: TurnKey, at: float) -> None:
        """Note when a turn was over, in modelled time."""
        self.record.row(key)["modelled_at"] = at

    def stored_at(self, key: TurnKey) -> float | None:
        """When the base's turn at a place was over, in modelled time; None where there is no such turn."""
        row = None if self._base is None else self._base.turns.get(key)
        return None if row is None else row["modelled_at"]

    @property
    def stored_end(self) -> float:
        """When the base's last turn was over, in modelled time."""
        rows = () if self._base is None else self._base.turns.values()
        return max((row["modelled_at"] or 0.0 for row in rows), default=0.0)

    def not_before(self, key: TurnKey) -> float:
        """When the base's turn was called off that was asked the same: its reply comes later than that."""
        return self._not_before.get(key, -math.inf)

    def call_off(self, key: TurnKey, at: float | None) -> None:
        """The team ends the play that waits for this reply, of which the row says nothing even if it came.

        So rows do not depend on how far a call had come when it was ended.
        """
        row = self.record.row(key)
        row.update(dict.fromkeys(OF_THE_REPLY), status=Status.CALLED_OFF, modelled_at=at)
        row.update(status_detail="its own team ended the play that waited for it", attempts=1)
        row["origin"] = Origin.SAMPLED
        self.record.failures = [failure for failure in self.record.failures if failure.key != key]
        self._called_off.add(key)

    def took(self, seconds: float | None) -> None:
        """Note how long the episode was, in modelled time."""
        self.record.modelled_seconds = seconds

    def span(self, key: TurnKey, characters: tuple[int, int]) -> tuple[int, int] | None:
        """The tokens [first, end) of a reply that say characters of its text; None where it can't be told."""
        row = self.record.row(key)
        ids, speaker = row["response_token_ids"], self._speakers.get(row["role"] or "")
        if not ids or speaker is None:
            return None
        return token_span(hooks_of(speaker.engine, EngineHooks).decode, ids, *characters)

    async def close(self) -> None:
        """Close the tools that this episode opened. One that can't be closed is a fault of the episode."""
        await self._asks.close()

    def compact(self, role: str, branch: str) -> tuple[str, str, str] | None:
        """Begin a role's conversation in a branch anew; see `Conversations.compact`."""
        return self._conversations.compact(role, branch)

    async def _guarded(self, turn: Turn, work: Callable[[], Awaitable[T]]) -> T:
        """Put what goes wrong on the turn's row and on the record, in this one place."""
        try:
            return await work()
        except CallFailed as error:
            raise self._failed(turn, error.status, StopReason.CALL_FAILED, str(error)) from error
        except asyncio.CancelledError:
            if turn.key in self._called_off:
                raise
            status = Status.TIMEOUT if self.record.expired else Status.CANCELLED
            self._failed(turn, status, StopReason.CALL_FAILED, "cancelled while waiting for a reply")
            raise
        except PromptTooLong as error:
            turn.row.update(
                messages=as_json(error.messages, "messages"),
                num_prompt_tokens=error.num_tokens,
                cut=t.to_json(error.cut),
            )
            raise self._failed(turn, Status.INFRA_ERROR, StopReason.PROMPT_TOO_LONG, str(error)) from error
        except Exception as error:  # a parser, a template path: the workflow's own code
            raise self._failed(
                turn, Status.INFRA_ERROR, StopReason.WORKFLOW_ERROR, describe(error)
            ) from error
        finally:
            turn.row["ended_at"] = self.record.now()
            if turn.key in self._called_off:
                self.call_off(turn.key, turn.row["modelled_at"])

    def _failed(self, turn: Turn, status: Status, stop_reason: StopReason, detail: str) -> TurnFailed:
        turn.row.update(status=status, status_detail=detail)
        cause = f"{where(turn.key)}: {detail}"
        self.record.failures.append(Failure(turn.key, status, stop_reason, cause))
        return TurnFailed(cause)

    async def _call_in_turn(
        self, turn: Turn, speaker: Speaker, variables: Mapping[str, Any], seat: Seat
    ) -> Output:
        try:
            return await self._call(turn, speaker, variables, seat)
        finally:
            seat.leave()

    async def _call(
        self, turn: Turn, speaker: Speaker, variables: Mapping[str, Any], seat: Seat | None = None
    ) -> Output:
        row, model = turn.row, speaker.model
        row.update(role=speaker.role.name, model_id=model.model_id, base_id=model.base_id)
        row.update(trainable=model.trainable)
        if seat is None:
            prompt = first_prompt(speaker, variables)
        else:
            prompt = await seat.prompt(speaker, variables)
            row.update(seat.columns(prompt))
        sampling = self._sampling(turn, speaker)
        row.update(prompt_columns(prompt, speaker.tokenizer_hash), sampling=t.to_json(sampling.as_dict()))
        if spelled := speaker.special_tokens_in(prompt.messages):
            row["metrics"].append({"name": t.SPECIAL_TOKENS_AS_TEXT, "value": float(spelled)})
        if self._base is not None:
            off = self._base.called_off_at(turn.key, speaker, row["context_hash"], sampling)
            self._not_before[turn.key] = off
        if turn.begun is not None:
            turn.begun()
        completion = self._kept_reply(turn, speaker, sampling)
        if completion is None:
            completion = await self._asked(turn, speaker, prompt, sampling)
        text = row["response_text"]
        if seat is not None:
            seat.spoke(prompt, text, row["response_token_ids"] or ())
        parsed = parse_reply(speaker.role, text, variables)
        row.update(parsed=self._json(parsed.best, "the parsed value"), format_valid=parsed.valid)
        row["status"], row["status_detail"] = verdict(speaker.role, parsed, completion, sampling)
        output = Output(parsed.value, text, parsed.valid, turn.key, parsed.lenient)
        return output if self._base is None else self._base.delivered(output, speaker.role, variables)

    def _kept_reply(self, turn: Turn, speaker: Speaker, sampling: Sampling) -> Completion | ChatReply | None:
        """The reply of the base's turn at this place, in the row of this one, if nothing of it is another."""
        stored = self._base and self._base.reply(turn.key, speaker, turn.row["context_hash"], sampling)
        if not stored:
            return None
        completion, as_asked = stored
        turn.row.update(reply_columns(completion, self.record.now()), **as_asked, origin=Origin.COPIED)
        if speaker.role.options:
            assert self._base is not None
            turn.row.update(kept_columns(self._base.turns[turn.key]))
        return completion

    async def _asked(
        self, turn: Turn, speaker: Speaker, prompt: Prompt, sampling: Sampling
    ) -> Completion | ChatReply:
        row, asked = turn.row, dict[str, int]()

        async def ask(number: int) -> Completion | ChatReply:
            asked.update(self._versions())
            row.update(attempts=number, queued_at=self.record.now(), team_version=t.to_json(asked))
            return await self._attempted(turn, speaker, prompt, sampling)

        seconds = self._limits.call_timeout_seconds
        completion = await attempted(turn, ask, seconds, self._limits, self.seed)
        asked[speaker.model.model_id] = completion.policy_version  # the engine's own word on what was asked
        row.update(reply_columns(completion, row["queued_at"]), team_version=t.to_json(asked))
        return completion

    async def _attempted(
        self, turn: Turn, speaker: Speaker, prompt: Prompt, sampling: Sampling
    ) -> Completion | ChatReply:
        """One attempt of a call."""
        if not speaker.role.options:
            return await speaker.ask(prompt, sampling)
        completion, columns = await decide(speaker, prompt, sampling, hold_back=self._hold_stops)
        turn.row.update(columns)
        return completion

    def _sampling(self, turn: Turn, speaker: Speaker) -> Sampling:
        settings = speaker.settings
        return Sampling(
            max_tokens=min(speaker.max_response_tokens, turn.max_tokens or speaker.max_response_tokens),
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p,
            stop=settings.stop,
            seed=self._sampling_seed(turn.key),
        )

    def _sampling_seed(self, key: TurnKey) -> int:
        """The seed of one reply; of an alternative to a stored episode another one in each."""
        if self._base is None:
            return self._seed(key)
        number, stored = self._base.number_at(key), self._base.seed_of(key)
        if number == 0 and stored is not None:
            return stored
        return self.seed(*((f"alternative {number}",) if number else ()), *key)

    def _seed(self, key: TurnKey, *more: object) -> int:
        return self.seed(*key, *more)

    def seed(self, *parts: object) -> int:
        """A seed of this episode: it depends on the run's seed, the episode and `parts` only.

        One that begins with a stored episode has the seeds of that.
        """
        identity = self.record.identity if self._base is None else self._base.seeds
        block = (f"block {identity.block}",) if identity.block else ()  # block 0 keeps its seeds of version 2
        return t.seed_for(
            self._run_seed, identity.iteration, identity.task_id, identity.sample, *block, *parts
        )

    def _json(self, value: Any, what: str) -> str:
        """A value as JSON text that fits a row.

        Raises:
            WorkflowError: it is not JSON, or too large.
        """
        text = as_json(value, what)
        if (size := len(text.encode())) > self._limits.max_value_bytes:
            raise WorkflowError(
                f"{what} has {size} bytes as JSON, more than {self._limits.max_value_bytes}; pass on less"
            )
        return text


def where(key: TurnKey) -> str:
    """`step 'read' (round 1, branch 2)`, without what is zero or empty."""
    parts = [f"round {key.round}"] * bool(key.round) + [f"branch {key.branch}"] * bool(key.branch)
    return f"step {key.step!r}" + (f" ({', '.join(parts)})" if parts else "")


def _named(name: str, known: Mapping[str, T], what: str) -> T:
    if name not in known:
        raise WorkflowError(f"there is no {what} {name!r}{did_you_mean(name, known)}")
    return known[name]
