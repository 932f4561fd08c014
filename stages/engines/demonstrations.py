"""An engine that says what was demonstrated: a warm start is a run whose team speaks from a file.

The file has one chat a line, `{"messages": [...]}` as other trainers take it, whose last message is the
assistant's. The workflow makes its prompts itself, so a prompt is answered by the demonstrations of exactly
that chat; several take turns, chosen by the request's seed. A prompt that nobody demonstrated is a failure
that is counted, never an empty answer. Everything after it is as ever: the rewards judge the plays,
`rejection` credit keeps those that are good enough, the supervised loss imitates them.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import fsspec

from stages.engines.base import EngineSpec, check_request, logprobs_mode_of
from stages.engines.weightless import Weightless
from stages.weights.chat import ChatRenderer
from workflows.engine import Completion, Message, Sampling
from workflows.errors import NotDemonstrated, UsageError
from workflows.plugins import content_hash
from workflows.trajectory import clean_text

_OPTIONS = ("file",)


class DemonstrationServer(Weightless):
    """`EngineServer` over a file of demonstrations, in the ids of the checkpoint's own tokenizer.

    The logprob of a demonstrated id is 0: whoever demonstrates is certain. So no policy gradient can be
    taken from these turns, only imitation.

    Raises:
        UsageError: options, file or a line of it are not as they should be.
    """

    is_sampled = False

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self.chat = ChatRenderer(spec.checkpoint, spec.template_options)
        self.end = self.chat.end_of_turn
        self.answers: dict[tuple[int, ...], list[str]] = {}
        for messages, answer in read_demonstrations(spec):
            self.answers.setdefault(tuple(self.chat.render(messages)), []).append(answer)

    @classmethod
    def check_spec(cls, spec: EngineSpec) -> None:
        """Refuse what can't work before anything starts.

        Raises:
            UsageError: as the class.
        """
        read_demonstrations(spec)
        assert ChatRenderer(spec.checkpoint, spec.template_options).end_of_turn >= 0

    @classmethod
    def memory_estimate(cls, spec: EngineSpec) -> float:
        return 0.3  # GiB of a Ray worker with a tokenizer and the file

    @classmethod
    def said_by(cls, options: Mapping[str, Any]) -> str | None:
        if "file" not in options:
            return None  # refused by check_spec
        with fsspec.open(options["file"], "rb") as file:
            return content_hash(file.read())

    async def generate(
        self, model_id: str, prompt_token_ids: Sequence[int], sampling: Sampling
    ) -> Completion:
        """The demonstrated answer, cut at `max_tokens` as any other.

        Raises:
            NotDemonstrated: nobody demonstrated this prompt; another attempt would not help.
        """
        started = time.monotonic()
        check_request(
            prompt_token_ids,
            sampling,
            max_model_len=self.spec.max_model_len,
            vocab_size=self.chat.vocab_size,
        )
        answers = self.answers.get(tuple(prompt_token_ids))
        if not answers:
            ending = self.chat.decode(prompt_token_ids)[-160:]
            raise NotDemonstrated(
                f"{self.spec.options['file']} demonstrates no answer to a prompt of {model_id!r} that ends "
                f"in {ending!r}"
            )
        text = answers[0] if len(answers) == 1 else random.Random(sampling.seed).choice(answers)
        ends = [text.index(s) + len(s) for s in sampling.stop if s in text]
        ids = self.chat.encode(text[: min(ends)] if ends else text)
        if not ends:
            ids.append(self.end)
        cut = len(ids) > sampling.max_tokens
        ids = ids[: sampling.max_tokens]
        completion = Completion(
            token_ids=ids,
            logprobs=[0.0] * len(ids),
            text="",  # the client decodes the ids
            finish_reason="length" if cut else "stop",
            policy_version=self.version_of(model_id),
            logprobs_mode=logprobs_mode_of(sampling),
            num_cached_tokens=0,
        )
        self.count(prompt_token_ids, completion, started)
        return completion


def read_demonstrations(spec: EngineSpec) -> list[tuple[list[Message], str]]:
    """Every line's chat without its last message, and that message's text.

    Raises:
        UsageError: no such option or file, or the first line that is not a demonstration, by its number.
    """
    path = spec.options.get("file")
    if set(spec.options) != set(_OPTIONS) or not isinstance(path, str):
        raise UsageError(
            f'engine "demonstrations" of {spec.base_id!r} takes one option, got {dict(spec.options)}; set '
            'engine_options = { file = "demonstrations.jsonl" }'
        )
    try:
        with fsspec.open(path, "rb") as file:
            text = file.read().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError, ImportError) as error:
        raise UsageError(f"the demonstrations in {path} can't be read: {error}") from None
    lines = enumerate(text.split("\n"), 1)
    demonstrations = [_demonstration(line, f"{path}, line {n}") for n, line in lines if line.strip()]
    if not demonstrations:
        raise UsageError(f"{path} has no demonstrations; expected one chat a line: {_EXPECTED}")
    return demonstrations


_EXPECTED = '{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}'


def _cleaned(content: Any) -> Any:
    """Text without lone surrogates, as prompts and task rows are; any other value as it is."""
    return clean_text(content) if isinstance(content, str) else content


def _demonstration(line: str, where: str) -> tuple[list[Message], str]:
    try:
        messages = json.loads(line)["messages"]
        *before, last = [{"role": m["role"], "content": _cleaned(m["content"])} for m in messages]
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{where} is not a chat: {line[:120]!r}; expected {_EXPECTED}") from None
    if not all(isinstance(v, str) for m in (*before, last) for v in m.values()):
        raise UsageError(f"{where} has a role or content that is not text; expected {_EXPECTED}")
    if not before or last["role"] != "assistant" or not last["content"]:
        raise UsageError(
            f"{where} does not end in an answer: its last of {len(messages)} messages is of "
            f"{last['role']!r}; expected {_EXPECTED}"
        )
    return before, last["content"]  # type: ignore[return-value]
