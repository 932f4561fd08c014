"""One episode: calls of roles and tools, each recorded as one row of `TURNS`.

This is the core under every kind of workflow. The graph executor calls it; a workflow that is written
as an async function would call it directly:

    draft = await episode.call("writer", {"question": question}, step="draft")
    found = await episode.tool("search", {"query": draft.value}, step="search", parents=[draft.key])

A malformed or truncated reply and a refused request are outputs, not errors: the parser's verdict
stands, and the workflow goes on. A failure that is not the policy's doing is recorded on its row and
raised as `TurnFailed`.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import math
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from workflows import trajectory as t
from workflows.attempts import CallFailed, PlayLimits, attempt, describe
from workflows.engine import Completion, Engine, Sampling
from workflows.errors import CadreError, InfraError, ToolRefusal, WorkflowError, did_you_mean
from workflows.models import Model
from workflows.parsers import Parsed
from workflows.prompts import Prompt, PromptTooLong, fit_prompt
from workflows.record import Failure, Record, Turn
from workflows.roles import Role, RoleSettings
from workflows.state import Output, TurnKey

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Speaker:
    """A role with everything that its calls need."""

    role: Role
    settings: RoleSettings
    model: Model
    engine: Engine

    @property
    def max_response_tokens(self) -> int:
        return self.settings.max_response_tokens or self.role.max_response_tokens

    @property
    def max_prompt_tokens(self) -> int:
        """What fits beside the response, or less where the settings say so."""
        room = self.engine.max_model_len - self.max_response_tokens
        return min(room, self.settings.max_prompt_tokens or room)


class TurnFailed(CadreError):
    """A turn failed through no doing of the policy. Its row and its cause are on the record already."""


class Episode:
    """The calls of one play.

    Args:
        record: takes the rows.
        speakers: by role.
        versions: model id → the version of its weights that a request sent now is asked of.
    """

    def __init__(
        self,
        record: Record,
        speakers: Mapping[str, Speaker],
        tools: Mapping[str, Callable[[Any], Any]],
        versions: Callable[[], dict[str, int]],
        limits: PlayLimits,
        run_seed: int,
    ):
        self.record = record
        self._speakers = speakers
        self._tools = tools
        self._versions = versions
        self._limits = limits
        self._run_seed = run_seed

    def call(
        self,
        role: str,
        variables: Mapping[str, Any],
        *,
        step: str,
        round: int = 0,
        branch: str = "",
        parents: Iterable[TurnKey] = (),
        after: Iterable[TurnKey] = (),
    ) -> Coroutine[Any, Any, Output]:
        """Ask a role. The turn is opened at once; await the result for its output.

        Args:
            parents: turns whose output `variables` was made from.
            after: further turns that were over before this one was asked.

        Raises:
            WorkflowError, TurnLimit: at once; see `Record.open`.
            TurnFailed: when awaited.
        """
        speaker = _named(role, self._speakers, "role")
        turn = self.record.open("llm", TurnKey(step, round, branch), parents, after)
        return self._guarded(turn, lambda: self._call(turn, speaker, variables))

    def tool(
        self,
        name: str,
        request: Any,
        *,
        step: str,
        round: int = 0,
        branch: str = "",
        parents: Iterable[TurnKey] = (),
        after: Iterable[TurnKey] = (),
    ) -> Coroutine[Any, Any, Output]:
        """Ask a tool; like `call`. A refused request gives an output that is not valid."""
        function = _named(name, self._tools, "tool")
        text = _json(request, f"the request to tool {name!r}")
        turn = self.record.open("tool", TurnKey(step, round, branch), parents, after)
        turn.row.update(tool=name, tool_request=text)
        return self._guarded(turn, lambda: self._tool(turn, function, request))

    def control(
        self,
        value: Any,
        *,
        step: str,
        round: int = 0,
        branch: str = "",
        parents: Iterable[TurnKey] = (),
        after: Iterable[TurnKey] = (),
    ) -> Output:
        """Record a value (JSON) that the workflow computed by itself."""
        text = _json(value, "the computed value")
        turn = self.record.open("control", TurnKey(step, round, branch), parents, after)
        now = self.record.now()
        turn.row.update(parsed=text, status=t.OK, attempts=1, queued_at=now, started_at=now, ended_at=now)
        return Output(value, "", True, turn.key)

    async def _guarded(self, turn: Turn, work: Callable[[], Awaitable[T]]) -> T:
        """Put what goes wrong on the turn's row and on the record, in this one place."""
        try:
            return await work()
        except CallFailed as error:
            raise self._failed(turn, error.status, "call_failed", str(error)) from error
        except asyncio.CancelledError:
            status = t.TIMEOUT if self.record.expired else t.CANCELLED
            self._failed(turn, status, "call_failed", "cancelled while waiting for a reply")
            raise
        except PromptTooLong as error:
            turn.row.update(
                messages=_json(error.messages, "messages"),
                num_prompt_tokens=error.num_tokens,
                cut=t.to_json(error.cut),
            )
            raise self._failed(turn, t.INFRA_ERROR, "call_failed", str(error)) from error
        except Exception as error:  # a parser, a template path: the workflow's own code
            raise self._failed(turn, t.INFRA_ERROR, "workflow_error", describe(error)) from error
        finally:
            turn.row["ended_at"] = self.record.now()

    def _failed(self, turn: Turn, status: str, stop_reason: str, detail: str) -> TurnFailed:
        detail = t.clean_text(detail)
        turn.row.update(status=status, status_detail=detail)
        cause = f"{where(turn.key)}: {detail}"
        self.record.failures.append(Failure(turn.key, status, stop_reason, cause))
        return TurnFailed(cause)

    async def _call(self, turn: Turn, speaker: Speaker, variables: Mapping[str, Any]) -> Output:
        row, model, engine = turn.row, speaker.model, speaker.engine
        row.update(role=speaker.role.name, model_id=model.model_id, base_id=model.base_id)
        row.update(trainable=model.trainable)
        prompt = fit_prompt(
            lambda given: speaker.role.messages(given, demonstrations=speaker.settings.demonstrations),
            variables,
            speaker.role.trim,
            engine.render,
            speaker.max_prompt_tokens,
        )
        sampling = self._sampling(turn, speaker)
        row.update(_prompt_columns(prompt, engine.tokenizer_hash), sampling=t.to_json(sampling.as_dict()))
        asked: dict[str, int] = {}

        async def ask(number: int) -> Completion:
            asked.update(self._versions())
            row.update(attempts=number, queued_at=self.record.now(), team_version=t.to_json(asked))
            completion = await engine.generate(prompt.token_ids, sampling)
            if fault := completion_fault(completion):
                raise InfraError(fault)
            return completion

        completion = await self._attempt(turn, ask, self._limits.call_timeout_seconds)
        asked[model.model_id] = completion.policy_version  # the engine's own word on what was asked
        row.update(_completion_columns(completion, row["queued_at"]), team_version=t.to_json(asked))
        text = row["response_text"]
        parsed = speaker.role.parser.parse(text)
        row.update(parsed=_json(parsed.value, "the parsed value"), format_valid=parsed.valid)
        row["status"], row["status_detail"] = _verdict(parsed, completion, sampling)
        return Output(parsed.value, text, parsed.valid, turn.key)

    async def _tool(self, turn: Turn, function: Callable[[Any], Any], request: Any) -> Output:
        row = turn.row

        async def ask(number: int) -> Any:
            row.update(attempts=number, queued_at=self.record.now(), started_at=self.record.now())
            if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
                return await function(request)
            return await asyncio.to_thread(function, request)

        try:
            result = await self._attempt(turn, ask, self._limits.tool_timeout_seconds)
        except ToolRefusal as refusal:
            row.update(status=t.TOOL_ERROR, status_detail=t.clean_text(str(refusal)))
            return Output(None, "", False, turn.key)
        row.update(tool_result=_json(result, f"the result of tool {row['tool']!r}"), status=t.OK)
        return Output(result, "", True, turn.key)

    async def _attempt(self, turn: Turn, ask: Callable[[int], Awaitable[T]], timeout_seconds: float) -> T:
        def pause(number: int) -> float:
            jitter = self._seed(turn.key, "backoff", number) / 2**63  # in [0, 1)
            return self._limits.backoff_seconds * 2 ** (number - 1) * (0.5 + jitter)

        return await attempt(
            ask, attempts=self._limits.call_attempts, timeout_seconds=timeout_seconds, pause=pause
        )

    def _sampling(self, turn: Turn, speaker: Speaker) -> Sampling:
        settings = speaker.settings
        return Sampling(
            max_tokens=speaker.max_response_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            stop=settings.stop,
            seed=self._seed(turn.key),
        )

    def _seed(self, key: TurnKey, *more: object) -> int:
        identity = self.record.identity
        return t.seed_for(self._run_seed, identity.iteration, identity.task_id, identity.sample, *key, *more)


def where(key: TurnKey) -> str:
    """`step 'read' (round 1, branch 2)`, without what is zero or empty."""
    parts = [f"round {key.round}"] * bool(key.round) + [f"branch {key.branch}"] * bool(key.branch)
    return f"step {key.step!r}" + (f" ({', '.join(parts)})" if parts else "")


def completion_fault(completion: Completion) -> str | None:
    """What makes a completion unfit to be recorded, or None. Such a row could poison an update."""
    ids, logprobs = completion.token_ids, completion.logprobs
    if completion.finish_reason == "abort":
        return "the engine aborted the request"
    if not ids:
        return "the engine returned no tokens"
    if len(logprobs) != len(ids):
        return f"the engine returned {len(logprobs)} logprobs for {len(ids)} tokens"
    if not all(map(math.isfinite, logprobs)):
        return "the engine returned a logprob that is not finite"
    return None


def _verdict(parsed: Parsed, completion: Completion, sampling: Sampling) -> tuple[str, str | None]:
    if completion.finish_reason == "length":
        return t.TRUNCATED, f"stopped at the limit of {sampling.max_tokens} tokens"
    return (t.OK, None) if parsed.valid else (t.MALFORMED, parsed.problem)


def _prompt_columns(prompt: Prompt, tokenizer_hash: str) -> dict[str, Any]:
    context = hashlib.blake2b(tokenizer_hash.encode(), digest_size=16)
    context.update(array("i", prompt.token_ids).tobytes())
    return {
        "messages": _json(prompt.messages, "messages"),
        "prompt_token_ids": prompt.token_ids,
        "num_prompt_tokens": len(prompt.token_ids),
        "context_hash": context.hexdigest(),
        "cut": t.to_json(prompt.cut) if prompt.cut else None,
    }


def _completion_columns(completion: Completion, asked_at: float) -> dict[str, Any]:
    def later(seconds: float | None) -> float | None:
        return None if seconds is None else asked_at + seconds

    return {
        "policy_version": completion.policy_version,
        "response_token_ids": list(completion.token_ids),
        "behaviour_logprobs": list(completion.logprobs),
        "logprobs_mode": completion.logprobs_mode,
        "num_cached_tokens": completion.num_cached_tokens,
        "response_text": t.clean_text(completion.text),
        "finish_reason": completion.finish_reason,
        "started_at": later(completion.started_after),
        "first_token_at": later(completion.first_token_after),
    }


def _json(value: Any, what: str) -> str:
    try:
        return t.clean_text(t.to_json(value))
    except (TypeError, ValueError) as error:
        raise WorkflowError(f"{what} is not JSON: {error}") from None


def _named(name: str, known: Mapping[str, T], what: str) -> T:
    if name not in known:
        raise WorkflowError(f"there is no {what} {name!r}{did_you_mean(name, known)}")
    return known[name]
