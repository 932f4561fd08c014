"""One model behind several replicas of its engine, as a player sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from typing import Any

from stages.engines.client import EngineClient, actor_answer
from stages.engines.routing import Router, ask_one
from stages.weights.chat import Renderer
from workflows.engine import TASK, Completion, Sampling, Weighed


@dataclass(slots=True)
class Counts:
    """What one replica has answered, as its callers count it: so its death costs no number."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    response_tokens: int = 0
    asked_again: int = 0  # calls that another replica died under, answered here

    def add(self, other: Mapping[str, int]) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + other[field.name])

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class Routes:
    """The replicas of one engine in one process: which of them serve, their actors, what they answered.

    The models of one engine share it. It pickles without loads and counts: another process has its own.

    Args:
        base_id: of the engine.
        handles: the actor of each replica by its number, from 1; None for one that does not serve.
        slots: calls that a replica decodes together.
    """

    def __init__(self, base_id: str, handles: Mapping[int, Any], slots: int) -> None:
        self.base_id = base_id
        self.handles: dict[int, Any] = dict(handles)
        self.counts = {number: Counts() for number in handles}
        self.router = Router(handles, slots)
        self.set(handles)

    def __reduce__(self) -> tuple[Any, ...]:
        serving = {n: h if n in self.router.serving else None for n, h in self.handles.items()}
        return Routes, (self.base_id, serving, self.router.slots)

    def set(self, handles: Mapping[int, Any]) -> None:
        """Say which replicas serve now, by number: those with an actor."""
        for number, handle in handles.items():
            if handle is None:
                self.router.down(number)  # first: another thread may choose one now
            self.handles[number] = handle
            if handle is not None:
                self.router.up(number)

    async def ask(self, method: str, group: str, tokens: int, *arguments: Any) -> Any:
        """The answer of a method of one replica; where that dies, of another.

        Raises:
            InfraError, UsageError: as `EngineClient.generate`; no replica is left.
        """
        asked: dict[int, Any] = {}

        async def ask(number: int, again: bool) -> Any:
            handle = asked[number] = self.handles[number]
            who = f"engine of {self.base_id!r}, replica {number},"
            answer = await actor_answer(getattr(handle, method).remote(*arguments), who)
            self.counts[number].asked_again += again
            self._count(number, answer, len(arguments[1]))
            return answer

        def gone(number: int, why: str) -> None:
            if self.handles[number] is asked[number]:  # not its successor
                self.router.down(number)

        return await ask_one(self.router, group, tokens, ask, gone, self.base_id)

    def _count(self, number: int, answer: Completion | Weighed, prompt_tokens: int) -> None:
        counts = self.counts[number]
        counts.calls += 1
        counts.prompt_tokens += prompt_tokens
        counts.cached_tokens += answer.num_cached_tokens or 0
        counts.response_tokens += len(answer.token_ids) if isinstance(answer, Completion) else 0


class RoutedEngine(EngineClient):
    """An `EngineClient` whose engine has replicas. What a call returns does not depend on the replica."""

    def __init__(
        self,
        routes: Routes,
        *,
        model_id: str,
        base_id: str,
        description: Mapping[str, Any],
        renderer: Renderer,
        trainable: bool = True,
    ) -> None:
        super().__init__(
            None,
            model_id=model_id,
            base_id=base_id,
            description=description,
            renderer=renderer,
            trainable=trainable,
        )
        self.routes = routes

    async def _generated(self, prompt_token_ids: list[int], sampling: Sampling) -> Completion:
        tokens = len(prompt_token_ids) + sampling.max_tokens
        completion: Completion = await self._routed("generate", tokens, prompt_token_ids, sampling)
        return completion

    async def _weighed(
        self, prompt_token_ids: list[int], options: list[list[int]], temperature: float
    ) -> Weighed:
        tokens = len(prompt_token_ids) + sum(map(len, options))
        weighed: Weighed = await self._routed("weigh", tokens, prompt_token_ids, options, temperature)
        return weighed

    async def _routed(self, method: str, tokens: int, prompt: list[int], *arguments: Any) -> Any:
        group = TASK.get() or _name_of(prompt)
        return await self.routes.ask(method, group, tokens, self.model_id, prompt, *arguments)


def _name_of(prompt: Sequence[int]) -> str:
    """The group of a call outside any episode: that of its prompt."""
    return blake2b(repr(list(prompt)).encode(), digest_size=8).hexdigest()


def totals(parts: Sequence[Mapping[str, Mapping[int, Mapping[str, int]]]]) -> dict[str, dict[int, Counts]]:
    """Counts of several processes added up, by base and number."""
    added: dict[str, dict[int, Counts]] = {}
    for part in parts:
        for base_id, replicas in part.items():
            for number, counts in replicas.items():
                added.setdefault(base_id, {}).setdefault(number, Counts()).add(counts)
    return added
