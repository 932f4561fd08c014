"""Play a workflow without a model: for tests of workflows, rewards and whole runs.

    def test_the_answer_is_the_last_word():
        played = play_once(build(), {"question": "…"}, {"solver": "<answer>Paris</answer>"})
        assert played.turns[-1]["parsed"] == '"Paris"'

A scripted model is a reply function behind a real (small) tokenizer and chat template, so ids, logprobs,
length limits and seeds are what they are with any other engine. Same prompt and seed, same bits.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import string
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from workflows.engine import Completion, Message, Sampling, Weighed
from workflows.errors import InfraError, UsageError
from workflows.models import Model, ModelMap
from workflows.parsers import first_json_object
from workflows.playing.attempts import PlayLimits
from workflows.playing.play import Player
from workflows.playing.record import Played
from workflows.roles import RoleSettings
from workflows.script import AnyWorkflow
from workflows.steps import Tool
from workflows.trajectory import clean_text

Reply = Callable[[Sequence[Message], Sampling], str]
"""What a scripted model says to a chat. It may use `sampling.seed`, and nothing else that varies."""

Before = Callable[[Sequence[Message], Sampling], Awaitable[None]]
"""Awaited before a scripted engine answers. It may sleep, to answer late, or raise, to fail."""

SURE: Final = 20.0  # nats by which a scripted choice is likelier than the others

_BEGIN, _END = 256, 257  # ids below are bytes, ids above are pairs of characters
_LETTERS: Final = " " + string.ascii_lowercase
_PAIRS: Final = {a + b: 258 + i for i, (a, b) in enumerate((a, b) for a in _LETTERS for b in _LETTERS)}
_PIECES: Final = {id_: pair.encode() for pair, id_ in _PAIRS.items()}
_TURN_TIMES: Final = frozenset({"queued_at", "started_at", "first_token_at", "ended_at"})
_EPISODE_TIMES: Final = frozenset({"started_at", "seconds"})
VOCAB_SIZE: Final = 258 + len(_PAIRS)  # 987


class ScriptedModel:
    """A reply function with a tokenizer, a chat template and log-probabilities.

    The tokenizer has 987 ids: bytes, pairs of small letters and spaces, and two marks around each
    message. Every text survives `decode(encode(text))`, and no text can spell a mark.
    """

    tokenizer_hash = "scripted-1"
    logprobs_mode = "processed_logprobs"

    def __init__(self, reply: Reply, *, max_model_len: int = 8192):
        self._reply = reply
        self.max_model_len = max_model_len

    def encode(self, text: str) -> list[int]:
        text, ids, i = clean_text(text), [], 0
        while i < len(text):
            if (pair := _PAIRS.get(text[i : i + 2])) is not None:
                ids.append(pair)
                i += 2
            else:
                ids.extend(text[i].encode())
                i += 1
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text, without marks. A character that was cut in half becomes U+FFFD."""
        pieces = (bytes([i]) if i < 256 else _PIECES.get(i, b"") for i in token_ids)
        return b"".join(pieces).decode("utf-8", "replace")

    def render(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            ids += [_BEGIN, *self.encode(f"{message['role']}\n{message['content']}"), _END]
        return [*ids, _BEGIN, *self.encode("assistant\n")]

    def render_after(self, chat: Sequence[Message], message: Message) -> list[int]:
        return [_END, *self.render([message])]

    def special_tokens_in(self, messages: Sequence[Message]) -> int:
        """None: no text can spell a mark."""
        return 0

    def messages(self, prompt_token_ids: Sequence[int]) -> list[Message]:
        """The chat that was rendered to these ids."""
        chat: list[Message] = []
        for part in _split(prompt_token_ids, _BEGIN)[1:-1]:
            role, _, content = self.decode(part).partition("\n")
            chat.append({"role": role, "content": content})  # type: ignore[typeddict-item]
        return chat

    def weigh(
        self,
        prompt_token_ids: Sequence[int],
        options: Sequence[Sequence[int]],
        temperature: float = 1.0,
        *,
        policy_version: int = 0,
    ) -> Weighed:
        """How likely each option is: by a hash of the prompt and the option, or, where the reply function
        says one of them, that one by a log-odds of `SURE`. The temperature changes nothing."""
        said = self._reply(self.messages(prompt_token_ids), Sampling(1, temperature, seed=0))
        logprobs = [_logprobs(prompt_token_ids, option) for option in options]
        if said in (texts := [self.decode(option) for option in options]):
            chosen = texts.index(said)
            logprobs = [
                [-1e-3 if i == chosen else -SURE / len(option)] * len(option)
                for i, option in enumerate(options)
            ]
        return Weighed(logprobs, policy_version, self.logprobs_mode, 0)

    def complete(
        self, prompt_token_ids: Sequence[int], sampling: Sampling, *, policy_version: int = 0
    ) -> Completion:
        """One completion, as an engine returns it.

        Raises:
            InfraError: prompt and response do not fit `max_model_len`.
        """
        if len(prompt_token_ids) + sampling.max_tokens > self.max_model_len:
            raise InfraError(
                f"{len(prompt_token_ids)} + {sampling.max_tokens} tokens exceed {self.max_model_len}"
            )
        text = clean_text(self._reply(self.messages(prompt_token_ids), sampling))
        ends = [text.index(s) + len(s) for s in sampling.stop if s in text]
        ids = self.encode(text[: min(ends)]) if ends else [*self.encode(text), _END]
        cut = len(ids) > sampling.max_tokens
        ids = ids[: sampling.max_tokens]
        return Completion(
            token_ids=ids,
            logprobs=_logprobs(prompt_token_ids, ids),
            text=self.decode(ids),
            finish_reason="length" if cut else "stop",
            policy_version=policy_version,
            logprobs_mode=self.logprobs_mode,
            num_cached_tokens=0,
        )


def _split(ids: Sequence[int], mark: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for i in ids:
        if i == mark:
            parts.append([])
        else:
            parts[-1].append(i)
    return parts


def _logprobs(prompt_ids: Sequence[int], ids: Sequence[int]) -> list[float]:
    """Made-up log-probabilities in [-2, 0): they depend on the prompt, the place and the id only."""
    state = hashlib.blake2b(repr(list(prompt_ids)).encode(), digest_size=8)
    logprobs = []
    for i in ids:
        state.update(i.to_bytes(4, "little"))
        logprobs.append(-(int.from_bytes(state.digest()[:4], "little") + 1) / 2**31)
    return logprobs


class ScriptedEngine:
    """A scripted model as a player's engine, in this process.

    Args:
        before: awaited before each completion with the chat and the sampling.
    """

    def __init__(
        self,
        reply: Reply,
        *,
        model_id: str = "scripted",
        base_id: str | None = None,
        max_model_len: int = 8192,
        trainable: bool = True,
        before: Before | None = None,
    ):
        self.model = ScriptedModel(reply, max_model_len=max_model_len)
        self.model_id = model_id
        self.base_id = base_id or model_id
        self.trainable = trainable
        self.policy_version = 0
        self.max_model_len = max_model_len
        self.logprobs_mode = self.model.logprobs_mode
        self.tokenizer_hash = self.model.tokenizer_hash
        self.completions: list[Completion] = []  # all that it returned, in the order of return
        self._before = before

    def render(self, messages: Sequence[Message]) -> list[int]:
        return self.model.render(messages)

    def render_after(self, chat: Sequence[Message], message: Message) -> list[int]:
        return self.model.render_after(chat, message)

    def special_tokens_in(self, messages: Sequence[Message]) -> int:
        return self.model.special_tokens_in(messages)

    async def generate(self, prompt_token_ids: Sequence[int], sampling: Sampling) -> Completion:
        asked_of = self.policy_version
        if self._before is not None:
            await self._before(self.model.messages(prompt_token_ids), sampling)
        completion = self.model.complete(prompt_token_ids, sampling, policy_version=asked_of)
        self.completions.append(completion)
        return completion

    def encode(self, text: str) -> list[int]:
        return self.model.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.model.decode(token_ids)

    async def weigh(
        self, prompt_token_ids: Sequence[int], options: Sequence[Sequence[int]], temperature: float
    ) -> Weighed:
        asked_of = self.policy_version
        if self._before is not None:
            await self._before(self.model.messages(prompt_token_ids), Sampling(1, temperature))
        return self.model.weigh(prompt_token_ids, options, temperature, policy_version=asked_of)


def replies(table: Mapping[str, str]) -> Reply:
    """A reply function from regular expressions: the first that occurs in the last message answers.

    Raises:
        UsageError: from the reply, when none occurs.
    """

    def reply(messages: Sequence[Message], sampling: Sampling) -> str:
        for pattern, text in table.items():
            if re.search(pattern, messages[-1]["content"]):
                return text
        raise UsageError(f"no reply is scripted for {messages[-1]['content']!r}; patterns: {list(table)}")

    return reply


def play_once(
    workflow: AnyWorkflow,
    inputs: Mapping[str, Any],
    reply: Reply | Mapping[str, str | Reply] | None = None,
    *,
    tools: Mapping[str, Tool] | None = None,
    before: Before | None = None,
    role_settings: Mapping[str, RoleSettings] | None = None,
    limits: PlayLimits | None = None,
    seed: int = 0,
    sample: int = 0,
) -> Played:
    """Play one episode with scripted models, one for each role, and return its rows.

    Args:
        reply: one reply function for all roles, or by role a text or a reply function; `echo_qa` if None.
        tools: stand-ins for tools of the workflow, by name.
        before: makes the models late or lets them fail; see `ScriptedEngine`.

    Raises:
        UsageError: a role without a reply.
    """
    if tools:
        workflow = workflow.with_tools(tools)
    engines = {
        role: ScriptedEngine(_reply_of(role, reply or echo_qa), model_id=role, before=before)
        for role in workflow.roles
    }
    models = ModelMap({r: Model(r, r, "scripted") for r in engines}, {r: r for r in engines})
    player = Player(workflow, engines, models, role_settings or {}, limits or PlayLimits(), seed)
    task = {"task_id": "task", "split": "train", "inputs": inputs}
    return asyncio.run(player.play(task, iteration=0, sample=sample))


def _reply_of(role: str, reply: Reply | Mapping[str, str | Reply]) -> Reply:
    if callable(reply):
        return reply
    if role not in reply:
        raise UsageError(f"no reply for role {role!r}; replies are given for: {', '.join(reply)}")
    said = reply[role]
    return said if callable(said) else lambda messages, sampling: said


def without_times(played: Played) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows without what a clock decides: two plays of one episode are equal in all of it."""
    turns = [{k: v for k, v in row.items() if k not in _TURN_TIMES} for row in played.turns]
    return turns, {k: v for k, v in played.episode.items() if k not in _EPISODE_TIMES}


def late(order: int) -> Before:
    """Completions come back in an order that `order` alone decides: turns of the event loop, no clock."""
    luck = random.Random(order)

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        for _ in range(luck.randrange(12)):
            await asyncio.sleep(0)

    return before


def echo_qa(messages: Sequence[Message], sampling: Sampling) -> str:
    """Plays every role of the built-in QA workflows: it fills in the form that a prompt asks for.

    What it fills in are words of the prompt, as the seed has it: something that the passages or notes
    name and the question does not, so with retrieval some answers are right. Without passages all are
    wrong, and only the format tells good from bad. Three replies in ten break the format, and three
    searches in ten end.
    """
    luck = random.Random(sampling.seed)
    prompt = messages[-1]["content"]
    broken = luck.random() < 0.3
    if "sub_queries" in prompt:
        words = re.findall(r"\w+", _question(prompt))
        queries = [" ".join(words[-5:]), " ".join(w for w in words[1:] if w[0].isupper())]
        listed = ", ".join(f'"{q}"' for q in queries if q)
        return f"I would look up {listed}" if broken else f'{{"sub_queries": [{listed}]}}'
    name = luck.choice(_names(prompt, near=luck.random() < 0.75))
    if broken:
        return name
    form = prompt.rsplit("Reply: ", 1)[-1]
    if "<end>" in form and luck.random() < 0.3:
        return "<end>"
    return _filled(form.split(" or ")[0], name, luck)


def _filled(form: str, name: str, luck: random.Random) -> str:
    """A form with `name` for its texts; ids such as t1 stay, and numbers are one from 1 to 3."""
    if shown := first_json_object(form):
        (key, value), *_ = shown.items()
        if isinstance(value, list):
            return json.dumps({key: [name if isinstance(v, str) else luck.randint(1, 3) for v in value]})
        return json.dumps({key: name})
    tags = re.findall(r"<(\w+)>([^<]*)</\1>", form) or [(t, "") for t in re.findall(r"<(\w+)>", form)[:1]]
    return "".join(f"<{tag}>{_content(tag, shown, name)}</{tag}>" for tag, shown in tags or [("answer", "")])


def _content(tag: str, shown: str, name: str) -> str:
    if re.fullmatch(r"t\d+", shown):
        return shown
    return f"{name}, {tag}?" if re.fullmatch(r"q\d+", tag) else name  # sub-questions differ


def _question(prompt: str) -> str:
    lines = [line for line in prompt.splitlines() if line.startswith("Question: ")]
    return lines[-1].removeprefix("Question: ") if lines else prompt


def _names(prompt: str, near: bool) -> list[str]:
    """What the text above the question names and the question does not; else "unknown".

    `near`: only in the sentence that shares the most words with the question.
    """
    question = _question(prompt)
    lines = [line for line in prompt.splitlines() if not line.startswith(("Question: ", "Topic: "))]
    sentences = re.split(r"(?<=[.!?])\s+", "\n".join(line for line in lines if "<" not in line))
    if near:
        words = set(re.findall(r"\w{4,}", question))
        sentences = [max(sentences, key=lambda sentence: sum(word in sentence for word in words))]
    # a capital that only begins a sentence names nothing
    names = re.findall(r"(?<=[a-z,:?] )[A-Z]\w+(?: [A-Z]\w+)*|\+\d+", "\n".join(sentences))
    return [name for name in dict.fromkeys(names) if name not in question] or ["unknown"]
