"""Demonstrations of `qa_decompose` on the shipped training questions, made by a teacher that has their gold.

The teacher plays the workflow itself, so every prompt is the workflow's own, with what the retriever
really finds. It looks up the clue that a question gives and, of two hops, the second thing too; it reads
what the passages say; it answers with the gold answer, in the words of the notes where they have it. Only
the training split is shown; a team that has seen it can know from it what capitals belong to which
countries, but no question or answer of dev.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workflows.data.tasks import choose, load_tasks
from workflows.engine import Message, Sampling
from workflows.loading import load_workflow
from workflows.testing import Reply, play_once

_CLUES = (
    re.compile(r"chemical symbol \w+"),
    re.compile(r"atomic number \d+"),
    re.compile(r"city of (?!the country).+?(?= lies| belongs|\?|\.$)"),
    re.compile(r"(?<=currency is the ).+?(?= registered| belong|\?|\.$)"),
    re.compile(r"(?<=pays with the ).+?(?= registered| belong|\?|\.$)"),
)


def write_demonstrations(
    path: Path, workflow: Mapping[str, Any], seed: int, starts: Sequence[int], count: int
) -> int:
    """Demonstrate the training tasks of a run with this seed and `count` tasks an iteration, which begin at
    `starts`. Returns how many chats the file has, each once."""
    table = load_tasks("facts").tasks
    tasks = [task for start in starts for task in choose(table, "train", seed, start, count).to_pylist()]
    played = load_workflow(workflow["use"], workflow["options"])
    chats: dict[str, None] = {}
    for task in tasks:
        inputs, gold = json.loads(task["inputs"]), json.loads(task["gold"])
        for turn in play_once(played, inputs, teacher(inputs["question"], gold)).turns:
            if turn["event"] == "llm":
                messages = json.loads(turn["messages"])
                answer = {"role": "assistant", "content": turn["response_text"]}
                chats[json.dumps({"messages": [*messages, answer]}, ensure_ascii=False)] = None
    path.write_text("".join(f"{chat}\n" for chat in chats), encoding="utf-8")
    return len(chats)


def teacher(question: str, gold: Mapping[str, Any]) -> dict[str, Reply]:
    """A reply function for each role, for one question of the shipped set."""

    def decompose(messages: Sequence[Message], sampling: Sampling) -> str:
        return json.dumps({"sub_queries": queries(question, gold)}, ensure_ascii=False)

    def read(messages: Sequence[Message], sampling: Sampling) -> str:
        text = messages[-1]["content"].partition("\nTopic: ")[0]
        told = gold["answers"] if gold["subjects"][-1] in text else []
        return f"<answer>{_first_in(text, [*told, *gold['subjects'][1:]]) or 'unknown'}</answer>"

    def answer(messages: Sequence[Message], sampling: Sampling) -> str:
        notes = messages[-1]["content"].partition("\nQuestion: ")[0]
        return f"<answer>{_first_in(notes, gold['answers']) or gold['answers'][0]}</answer>"

    return {"decomposer": decompose, "reader": read, "answerer": answer}


def queries(question: str, gold: Mapping[str, Any]) -> list[str]:
    """What to look up: for one hop the relation of the subject, for two the clue first."""
    last = f"{gold['relations'][-1]} {gold['subjects'][-1]}"
    if gold["hops"] == 1:
        return [last]
    clue = next(found.group() for pattern in _CLUES if (found := pattern.search(question)))
    return [clue, last]


def _first_in(text: str, names: Sequence[str]) -> str | None:
    return next((n for n in names if re.search(rf"(?<!\w){re.escape(n)}(?!\w)", text)), None)
