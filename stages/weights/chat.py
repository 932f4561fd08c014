"""Chats to ids and ids to text, with a model folder's own tokenizer and chat template.

`tokenizers` and Jinja do all of it: `transformers` would add five seconds and torch to every
process that plays episodes. `tests/stages/test_engines.py` holds the two to the same ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, Protocol

from workflows.engine import Message
from workflows.errors import UsageError


class Renderer(Protocol):
    """How the messages of a chat become prompt ids, and sampled ids become text. Pickles."""

    @property
    def tokenizer_hash(self) -> str: ...

    def render(self, messages: Sequence[Message]) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


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

        The template writes the special tokens, so the tokenizer adds none: no second BOS.
        """
        from jinja2 import TemplateError

        try:
            text = self._template.render(
                {**self.options, "messages": list(messages), "add_generation_prompt": True}
            )
        except TemplateError as error:
            roles = ", ".join(m["role"] for m in messages)
            raise UsageError(
                f"the chat template of {self.folder} refuses a chat of roles [{roles}]: {error}"
            ) from None
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled ids without special tokens. For reading only: ids are never rebuilt from it."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Ids of a reply's text, without the end of its turn."""
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
        user: Message = {"role": "user", "content": "x"}
        said = self._template.render(
            {**self.options, "messages": [user, {"role": "assistant", "content": "y"}]}
        )
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
        file = Path(self.folder) / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        template = self._settings.get("chat_template")
        if isinstance(template, list):
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        return template

    @cached_property
    def _settings(self) -> dict[str, Any]:
        file = Path(self.folder) / "tokenizer_config.json"
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(Path(self.folder) / "tokenizer.json"))
        # A saved tokenizer may carry the truncation and padding of whoever saved it.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def _template(self) -> Any:
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        if self.chat_template is None:
            raise UsageError(f"the tokenizer of {self.folder} has no chat template; use an instruct model")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        special = {name: _content(self._settings.get(name)) for name in _SPECIAL_TOKENS}
        environment.globals.update(
            {name: token for name, token in special.items() if token is not None},
            raise_exception=_raise_exception,
            strftime_now=lambda form: datetime.now().strftime(form),
        )
        return environment.from_string(self.chat_template)


_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def _content(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)  # Jinja's own escapes HTML characters


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)
