"""The engine as a player sees it: renders here, samples in the engine's Ray actor.

A client is small and pickles, so every player process can hold one for each model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stages.ray_errors import from_ray
from stages.weights.chat import Renderer
from workflows.engine import Completion, Message, Sampling


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
        import ray
        from ray.exceptions import RayError

        reference = self._handle.generate.remote(self.model_id, list(prompt_token_ids), sampling)
        try:
            completion: Completion = await reference
        except asyncio.CancelledError:
            ray.cancel(reference)  # else the engine would go on decoding for nobody
            raise
        except RayError as error:
            raise from_ray(error, f"engine of {self.base_id!r}") from None
        return replace(completion, text=self.renderer.decode(completion.token_ids))
