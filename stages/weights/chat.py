"""Chats to ids and ids to text, with a model folder's own tokenizer and chat template.

`tokenizers` and Jinja do all of it: `transformers` would add five seconds and torch to every
process that plays episodes. `tests/stages/test_engines.py` holds the two to the same ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from stages.weights.control import ControlTokens
from stages.weights.template import chat_template_of, compile_template, special_tokens_of
from workflows.engine import Message
from workflows.errors import UsageError
from workflows.trajectory import clean_text


class Renderer(Protocol):
    """How the messages of a chat become prompt ids, and sampled ids become text. Pickles."""

    @property
    def tokenizer_hash(self) -> str: ...

    def render(self, messages: Sequence[Message]) -> list[int]: ...

    def render_after(self, chat: Sequence[Message], message: Message) -> list[int]: ...

    def special_tokens_in(self, messages: Sequence[Message]) -> int: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def encode(self, text: str) -> list[int]: ...


class ChatRenderer:
    """Renders with the `tokenizer.json` and the chat template of a model folder, loaded where first used.

    `options` are variables of the template, such as Qwen3's `enable_thinking`.

    Raises:
        UsageError: the folder has no fast tokenizer (at once), or no usable template (when rendering).
    """

    def __init__(self, folder: str, options: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self.options = dict(options or {})
        if not (Path(folder) / "tokenizer.json").is_file():
            raise UsageError(
                f"tokenizer.json is missing in {folder}; save the model's tokenizer there with "
                "transformers' AutoTokenizer.save_pretrained"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return (ChatRenderer, (self.folder, self.options))  # the tokenizer is loaded again where it is used

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the chat with the opening of the assistant's turn.

        The template writes the special tokens, so the tokenizer adds none: no second BOS. What contents
        spell of them is text (`stages.weights.control`).
        """
        control = self._control
        if any(control.spelled_in(message["content"]) for message in messages):
            chat, stand_ins = control.escaped(messages)
            return control.encode(self._text(chat), stand_ins)
        return self._plain_ids(self._text(messages))

    def render_after(self, chat: Sequence[Message], message: Message) -> list[int]:
        """Ids from the end of an assistant's reply to `chat` on, where `message` comes next.

        Rendered by the template around a stand-in for the reply, so what the reply says has no part in
        them. A special token begins them: no tokenizer merges across one, so they are the ids that the
        whole chat has there.

        Raises:
            UsageError: the template refuses the chat, leaves the reply out, or writes no special token
                after it.
        """
        control = self._control
        around = [*chat, message]
        stand_ins: dict[str, str] = {}
        if any(control.spelled_in(each["content"]) for each in around):
            around, stand_ins = control.escaped(around)
        digest = hashlib.blake2b(json.dumps(around).encode(), digest_size=10)
        reply = f"x{digest.hexdigest()}x"
        said = self._text([*around[:-1], Message(role="assistant", content=reply), around[-1]])
        _, shown, tail = said.rpartition(reply)
        if not shown:
            raise UsageError(
                f"the chat template of {self.folder} leaves an earlier reply out of a chat, so that no role "
                "can keep a conversation with it"
            )
        tail = tail.lstrip()  # some templates write a space before the end of a turn, which no model samples
        ids = control.encode(tail, stand_ins) if stand_ins else self._plain_ids(tail)
        if not ids or ids[0] != self.end_of_turn:
            raise UsageError(
                f"the chat template of {self.folder} continues a reply with {tail[:40]!r}, which does not "
                "begin with the end of its turn, so that no role can keep a conversation with it"
            )
        return ids

    def special_tokens_in(self, messages: Sequence[Message]) -> int:
        """How many special tokens the contents of a chat spell, which are encoded as text."""
        return self._control.count(messages)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled ids without special tokens. For reading only: ids are never rebuilt from it."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Ids of a reply's text, without the end of its turn. Special tokens that it spells are text."""
        text = clean_text(text)
        if self._control.spelled_in(text):
            return self._control.encode_as_text(text)
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    @property
    def vocab_size(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    @cached_property
    def end_of_turn(self) -> int:
        """The id that the template writes after an assistant's reply, with which models end theirs.

        Raises:
            UsageError: the template writes no special token there, so no engine would stop at one.
        """
        said = self._text([_ASKED, _ANSWERED], opened=False)
        tail = said[said.rindex("y") + 1 :]
        ids = self._tokenizer.encode(tail.strip(), add_special_tokens=False).ids
        special = {i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        if not ids or ids[0] not in special:
            raise UsageError(
                f"the chat template of {self.folder} writes no special token after a reply, but {tail!r}, so "
                "how a turn ends can't be demonstrated"
            )
        return int(ids[0])

    @cached_property
    def tokenizer_hash(self) -> str:
        """Of `tokenizer.json`, the template and its options: equal where equal chats become equal ids."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update((Path(self.folder) / "tokenizer.json").read_bytes())
        digest.update((self.chat_template or "").encode())
        if self.options:
            digest.update(json.dumps(self.options, sort_keys=True).encode())
        return digest.hexdigest()

    @cached_property
    def chat_template(self) -> str | None:
        """`chat_template.jinja`, or what tokenizer_config.json says (the default one of several)."""
        return chat_template_of(Path(self.folder))

    def _plain_ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _text(self, messages: Sequence[Message], opened: bool = True) -> str:
        return clean_text(self._template(messages, opened, self.options))

    @cached_property
    def _control(self) -> ControlTokens:
        file = Path(self.folder) / "tokenizer.json"
        return ControlTokens(file, self._tokenizer, self._around_messages())

    def _around_messages(self) -> set[int]:
        """Ids that the template writes around messages; those of a chat that it refuses are left out."""
        ids: set[int] = set()
        for chat, opened in (([_ASKED], True), ([_ASKED, _ANSWERED], False)):
            with suppress(UsageError):
                ids.update(self._tokenizer.encode(self._text(chat, opened), add_special_tokens=False).ids)
        return ids

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(Path(self.folder) / "tokenizer.json"))
        # A saved tokenizer may carry the truncation and padding of whoever saved it.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def _template(self) -> Callable[[Sequence[Mapping[str, Any]], bool, Mapping[str, Any]], str]:
        if self.chat_template is None:
            raise UsageError(f"the tokenizer of {self.folder} has no chat template; use an instruct model")
        return compile_template(self.chat_template, special_tokens_of(Path(self.folder)), self.folder)


_ASKED = Message(role="user", content="x")
_ANSWERED = Message(role="assistant", content="y")
