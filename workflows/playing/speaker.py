"""A role and the model that speaks for it: how long its prompts may be, and asking it once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workflows.engine import AnyEngine, ChatEngine, ChatReply, Completion, Message, Sampling
from workflows.errors import InfraError, UsageError
from workflows.models import Model
from workflows.playing.columns import completion_fault
from workflows.prompts import Prompt
from workflows.roles import Role, RoleSettings


@dataclass(frozen=True, slots=True)
class Speaker:
    """A role with everything that its calls need."""

    role: Role
    settings: RoleSettings
    model: Model
    engine: AnyEngine

    @property
    def max_response_tokens(self) -> int:
        return self.settings.max_response_tokens or self.role.max_response_tokens

    @property
    def max_prompt_tokens(self) -> int:
        """What fits beside the response, or less where the settings say so."""
        room = self.engine.max_model_len - self.max_response_tokens
        return min(room, self.settings.max_prompt_tokens or room)

    @property
    def tokenizer_hash(self) -> str:
        return "" if isinstance(self.engine, ChatEngine) else self.engine.tokenizer_hash

    def render(self, messages: Sequence[Message]) -> list[int] | int:
        """The prompt's ids, or how many there are where the model takes messages."""
        engine = self.engine
        return engine.count_tokens(messages) if isinstance(engine, ChatEngine) else engine.render(messages)

    def render_after(self, chat: Sequence[Message], message: Message) -> list[int]:
        """The ids from the end of a reply to `chat` on, where `message` comes next. Not for an API's model.

        Raises:
            UsageError: the engine can't say, so that the role can't keep a conversation.
        """
        engine = self.engine
        assert not isinstance(engine, ChatEngine)
        if not hasattr(engine, "render_after"):
            raise UsageError(
                f"role {self.role.name!r} keeps a conversation, but the engine of model "
                f"{self.model.model_id!r} has no render_after; add it (see workflows.engine.Engine)"
            )
        return engine.render_after(chat, message)

    def check_conversation(self) -> None:
        """Refuse a model that can't continue a conversation.

        Raises:
            UsageError: as `render_after`.
        """
        if not isinstance(self.engine, ChatEngine):
            asked = Message(role="user", content="x")
            self.render_after([*self.role.least_messages()[:-1], asked], asked)

    def special_tokens_in(self, messages: Sequence[Message]) -> int:
        """How many special tokens the contents spell; unknown, so 0, where the model takes messages."""
        engine = self.engine
        return 0 if isinstance(engine, ChatEngine) else engine.special_tokens_in(messages)

    def length(self, messages: Sequence[Message]) -> int:
        """The prompt's length in tokens."""
        rendered = self.render(messages)
        return rendered if isinstance(rendered, int) else len(rendered)

    async def ask(self, prompt: Prompt, sampling: Sampling) -> Completion | ChatReply:
        """One attempt.

        Raises:
            InfraError: it failed, or what came can't be recorded.
        """
        if isinstance(self.engine, ChatEngine):
            return await self.engine.chat(prompt.messages, sampling)
        assert prompt.token_ids is not None
        completion = await self.engine.generate(prompt.token_ids, sampling)
        if fault := completion_fault(completion):
            raise InfraError(fault)
        return completion
