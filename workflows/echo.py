"""Scripted replies to teams whose prompts end with a form of tags, for mathematics and code.

Some of them are right: for tests of whole runs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Final

from workflows.engine import Message, Sampling

_BODIES: Final = (
    "a[0]", "a[0] + a[-1]", "a[0] * a[-1]", "a[0] * 2", "len(a[0])", "sum(a[0])", "max(a)", "a[0][::-1]",
)  # fmt: skip


def echo_form(messages: Sequence[Message], sampling: Sampling) -> str:
    """Fills in the form at the end of the prompt, as the seed has it; three replies in ten break it.

    A tag whose choices the prompt lists gets one of them, an answer is made of the first numbers of the
    problem, code is a function of one expression, and any other tag gets a few words.
    """
    luck = random.Random(sampling.seed)
    prompt = messages[-1]["content"]
    form = re.findall(r"<(\w+)>.*?</\1>", prompt[prompt.rfind("Reply:") :])
    reply = "\n".join(f"<{tag}>{_filled(tag, prompt, luck)}</{tag}>" for tag in form)
    return reply.replace(">", ": ", 1) if luck.random() < 0.3 else reply


def _filled(tag: str, prompt: str, luck: random.Random) -> str:
    if tag == "code":
        return _code(prompt, luck)
    if tag.upper().endswith("ANSWER"):
        numbers = [int(number) for number in re.findall(r"\d+", prompt)][:2] or [0]
        return str(luck.choice([sum(numbers), numbers[0] * numbers[-1], numbers[0] - numbers[-1]]))
    choices = re.search(rf"^{tag}: (.+)$", prompt, re.MULTILINE)
    return luck.choice(choices[1].split(", ")) if choices else f"step {luck.randrange(9)}"


def _code(prompt: str, luck: random.Random) -> str:
    name = re.search(r"Write the Python function (\w+)", prompt)
    if name is None:
        return "\nprint(input())\n"
    return f"\ndef {name[1]}(*a):\n    return {luck.choice(_BODIES)}\n"
