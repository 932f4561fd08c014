"""Control tokens that stand in the content of messages are text, and never become control ids.

A retrieved passage, a tool's result or another role's reply may spell `<|im_end|>`. Encoded with the rest
of the prompt, it would close the turn that it stands in and could open a system turn of its own. So the
control tokens that the template writes and those that contents spell are told apart before anything is
encoded, and only where a content spells one: all other chats take the way that they always took.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from workflows.engine import Message
from workflows.errors import UsageError

# Marks stand for control tokens in the second tokenizer: characters that no standard will ever assign.
_FIRST_MARK: Final = 0xF0000
_MAX_MARKS: Final = 0xFFFD
# Added tokens that are not special and stand inside a turn, as Qwen3's <think>: they are no turn's border.
_WITHIN_TURNS: Final = re.compile(r"think|reason|tool", re.IGNORECASE)


class ControlTokens:
    """The control tokens of one tokenizer.

    Args:
        file: its tokenizer.json.
        written: ids of added tokens that the chat template writes around messages. Some tokenizers do
            not call those special (DeepSeek's turn marks).
    """

    def __init__(self, file: Path, tokenizer: Any, written: Iterable[int] = ()) -> None:
        self._file = file
        added = tokenizer.get_added_tokens_decoder()
        borders = set(written)
        self.ids: dict[str, int] = {
            token.content: number
            for number, token in added.items()
            if token.content and _is_control(token, number in borders)
        }
        longest_first = sorted(self.ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._plain: Any = None
        self._marks: dict[str, str] = {}

    def count(self, messages: Sequence[Message]) -> int:
        """How many control tokens the contents of a chat spell."""
        pattern = self._pattern
        return 0 if pattern is None else sum(len(pattern.findall(m["content"])) for m in messages)

    def spelled_in(self, text: str) -> bool:
        """Whether a text spells a control token."""
        return self._pattern is not None and self._pattern.search(text) is not None

    def escaped(self, messages: Sequence[Message]) -> tuple[list[Message], dict[str, str]]:
        """The chat with a stand-in for each control token that its contents spell, and what they stand for.

        Stand-ins are made of letters and digits, so that what a template does to a content (trimming,
        JSON) does nothing to them, and of a hash of the chat, so that no content can hold one.
        """
        digest = hashlib.blake2b(digest_size=10)
        for message in messages:
            digest.update(message["content"].encode("utf-8", "surrogatepass") + b"\0")
        key, order = digest.hexdigest(), list(self.ids)
        spelled = {token: f"x{key}x{number}x" for number, token in enumerate(order)}
        assert self._pattern is not None
        chat = [
            Message(
                role=message["role"],
                content=self._pattern.sub(lambda match: spelled[match[0]], message["content"]),
            )
            for message in messages
        ]
        return chat, {stand_in: token for token, stand_in in spelled.items()}

    def encode(self, text: str, stand_ins: Mapping[str, str]) -> list[int]:
        """Ids of a rendered chat: control tokens that it holds are themselves, stand-ins are their text."""
        plain, marks = self._second_tokenizer()
        known = {**marks, **stand_ins, **dict.fromkeys(marks.values(), "\ufffd")}
        pattern = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
        replaced = re.sub(pattern, lambda match: known[match[0]], text)
        return list(plain.encode(replaced, add_special_tokens=False).ids)

    def encode_as_text(self, text: str) -> list[int]:
        """Ids of a text in which nothing is a control token."""
        plain, marks = self._second_tokenizer()
        safe = text.translate({ord(mark): "\ufffd" for mark in marks.values()})
        return list(plain.encode(safe, add_special_tokens=False).ids)

    def _second_tokenizer(self) -> tuple[Any, dict[str, str]]:
        """A tokenizer that knows control tokens by their marks only, and the mark of each."""
        if self._plain is None:
            self._plain, self._marks = _by_marks(self._file, self.ids)
        return self._plain, self._marks


def _is_control(token: Any, written: bool) -> bool:
    return bool(token.special) or (written and not _WITHIN_TURNS.search(token.content))


def _by_marks(file: Path, ids: Mapping[str, int]) -> tuple[Any, dict[str, str]]:
    """The tokenizer of a file, its control tokens renamed to marks under the same ids.

    Raises:
        UsageError: it does not keep their ids, or has more of them than there are marks.
    """
    from tokenizers import Tokenizer

    marks = {token: chr(_FIRST_MARK + number) for number, token in enumerate(ids)}
    if len(marks) > _MAX_MARKS:
        raise UsageError(f"{file} has {len(marks)} special tokens; at most {_MAX_MARKS} can be told apart")
    content = json.loads(file.read_text(encoding="utf-8"))
    for token in content["added_tokens"]:
        token["content"] = marks.get(token["content"], token["content"])
    model = content["model"]
    if isinstance(model.get("vocab"), dict):
        model["vocab"] = {marks.get(piece, piece): number for piece, number in model["vocab"].items()}
    elif isinstance(model.get("vocab"), list):
        model["vocab"] = [[marks.get(piece, piece), score] for piece, score in model["vocab"]]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = marks.get(model["unk_token"], model["unk_token"])
    if model.get("merges"):
        model["merges"] = [merge for merge in model["merges"] if not _concerns(merge, marks)]
    content["post_processor"] = content["truncation"] = content["padding"] = None
    tokenizer = Tokenizer.from_str(json.dumps(content, ensure_ascii=False))
    for token, mark in marks.items():
        if tokenizer.token_to_id(mark) != ids[token]:
            raise UsageError(
                f"a message spells the special token {token!r}, and {file} can't encode it as text: its id "
                f"is {ids[token]}, and under another name {tokenizer.token_to_id(mark)}; leave such text "
                "out of the data, or save the tokenizer anew"
            )
    return tokenizer, marks


def _concerns(merge: Any, marks: Mapping[str, str]) -> bool:
    """Whether a merge of a BPE model takes or makes a control token: as text, there is none."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in marks or right in marks or left + right in marks
