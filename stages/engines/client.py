"""The engine as a player sees it: renders here, samples in the engine's Ray actor.

A client is small and pickles, so every player process can hold one for each model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stages.engines.base import EngineGone
from stages.weights.chat import Renderer
from workflows.engine import Completion, Message, Sampling, Weighed
from workflows.errors import CadreError, InfraError, RunFailed, UsageError


class EngineClient:
    """One model behind an engine actor; implements `workflows.engine.Engine`.

    Args:
        handle: the Ray actor that `stages.engines.start.start_engine` returned.
        description: what the actor's `describe()` said.
        renderer: how chats become ids for this model, and ids text.
    """

    def __init__(
        self,
        handle: Any,
        *,
        model_id: str,
        base_id: str,
        description: Mapping[str, Any],
        renderer: Renderer,
        trainable: bool = True,
    ) -> None:
        self.model_id = model_id
        self.base_id = base_id
        self.trainable = trainable
        self.policy_version = int(description["policy_version"])
        self.max_model_len = int(description["max_model_len"])
        self.logprobs_mode = str(description["logprobs_mode"])
        self.renderer = renderer
        self.tokenizer_hash = renderer.tokenizer_hash
        self._handle = handle

    def set_version(self, version: int) -> None:
        """Say which weights the engine now holds. Each completion carries the engine's own word for it."""
        self.policy_version = version

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the chat with the opening of the assistant's turn.

        Raises:
            UsageError: the chat template refuses this sequence of roles.
        """
        return self.renderer.render(messages)

    def render_after(self, chat: Sequence[Message], message: Message) -> list[int]:
        """The ids from the end of a reply to `chat` on, where `message` comes next.

        Raises:
            UsageError: the chat template shows no end of a reply, or the renderer can't say.
        """
        if not hasattr(self.renderer, "render_after"):
            raise UsageError(
                f"a role on model {self.model_id!r} keeps a conversation, but the renderer "
                f"{type(self.renderer).__name__} of its engine has no render_after; add it (see "
                "stages.weights.chat.Renderer)"
            )
        return self.renderer.render_after(chat, message)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `workflows.engine.EngineHooks`."""
        return self.renderer.decode(token_ids)

    def special_tokens_in(self, messages: Sequence[Message]) -> int:
        """How many special tokens the contents of a chat spell; `render` encodes those as text."""
        return self.renderer.special_tokens_in(messages)

    async def generate(self, prompt_token_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample one completion; cancelling this call aborts the request in the engine.

        The text is decoded from the sampled ids without special tokens; a stop string stays in it.

        Raises:
            InfraError: the engine died or failed; worth a retry where it is alive.
            UsageError: the request can't be served, e.g. a prompt longer than `max_model_len`.
        """
        completion = await self._generated(list(prompt_token_ids), sampling)
        return replace(completion, text=self.renderer.decode(completion.token_ids))

    def encode(self, text: str) -> list[int]:
        """The ids of a text as the beginning of a reply.

        Raises:
            UsageError: the renderer can't say.
        """
        return _of_renderer(self, "encode")(text)

    async def weigh(
        self, prompt_token_ids: Sequence[int], options: Sequence[Sequence[int]], temperature: float
    ) -> Weighed:
        """How likely each of several continuations is; nothing is sampled.

        Raises:
            InfraError, UsageError: as `generate`; also an engine that can't weigh options.
        """
        return await self._weighed(list(prompt_token_ids), [list(option) for option in options], temperature)

    async def _generated(self, prompt_token_ids: list[int], sampling: Sampling) -> Completion:
        call = self._handle.generate.remote(self.model_id, prompt_token_ids, sampling)
        completion: Completion = await actor_answer(call, f"engine of {self.base_id!r}")
        return completion

    async def _weighed(
        self, prompt_token_ids: list[int], options: list[list[int]], temperature: float
    ) -> Weighed:
        call = self._handle.weigh.remote(self.model_id, prompt_token_ids, options, temperature)
        weighed: Weighed = await actor_answer(call, f"engine of {self.base_id!r}")
        return weighed


async def actor_answer(reference: Any, who: str) -> Any:
    """What a call of an engine's actor gives; cancelling takes the call back.

    Raises:
        EngineGone: the actor is dead.
        CadreError: as the engine raised it, all else as InfraError.
    """
    import ray
    from ray.exceptions import RayError

    try:
        return await reference
    except asyncio.CancelledError:
        ray.cancel(reference)  # else the engine would go on decoding for nobody
        raise
    except RayError as error:
        raise from_ray(error, who) from None


def _of_renderer(client: EngineClient, name: str) -> Any:
    """What a renderer of one's own may lack.

    Raises:
        UsageError: it does.
    """
    if not hasattr(client.renderer, name):
        raise UsageError(
            f"a role on model {client.model_id!r} chooses among options, but the renderer "
            f"{type(client.renderer).__name__} of its engine has no {name}; add it (see "
            "stages.weights.chat.Renderer)"
        )
    return getattr(client.renderer, name)


def from_ray(error: BaseException, who: str) -> CadreError:
    """Ray's wrapper around a failure as one of our errors: our own kind as itself, a dead actor's as
    EngineGone, all else as InfraError."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, CadreError):
        return cause
    if isinstance(error, CadreError):
        return error  # Ray makes a class that is both where it can
    if cause is not None:
        return InfraError(f"{who} failed: {type(cause).__name__}: {cause}")
    return EngineGone(f"{who} is gone: {last_words(error)}")


def failed_call(error: Exception, who: str) -> CadreError:
    """A call of an actor that Ray says has failed, as one of our errors that end a run."""
    failure = from_ray(error, who)
    return RunFailed(str(failure)) if isinstance(failure, InfraError) else failure


def last_words(error: BaseException) -> str:
    """The lines of Ray's report that say why a worker ended, out of memory above all."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = ("cause", "exit", "killed", "memory", "signal", "oom", "error")
    chosen = [line for line in lines if any(word in line.lower() for word in telling)][:4] or lines[:2]
    text = " ".join(chosen)[:600]
    if "memory" in text.lower() or "oom" in text.lower():
        text += " (most often the machine ran out of memory: fewer engines, a smaller kv_cache_gib)"
    return text or type(error).__name__
