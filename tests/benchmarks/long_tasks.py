"""Tasks whose prompts have about 240 tokens: shipped questions behind passages, gold ones and others."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stages.weights.chat import ChatRenderer
from stages.weights.resolve import resolve_checkpoint
from workflows.data import shipped_file
from workflows.engine import Message
from workflows.loading import load_workflow

TOKENS = range(225, 256)  # of the whole prompt, as `single` renders it


def write_tasks(path: Path, count: int, checkpoint: str, seed: int = 0) -> None:
    """Write `count` tasks of split train in the cadre format.

    Raises:
        RuntimeError: the shipped set has not that many questions that can be brought to this length.
    """
    renderer = ChatRenderer(resolve_checkpoint(checkpoint))
    rows = []
    for task in _long_tasks(renderer, seed):
        rows.append(json.dumps(task))
        if len(rows) == count:
            path.write_text("\n".join(rows) + "\n", encoding="utf-8")
            return
    raise RuntimeError(
        f"only {len(rows)} of {count} questions came to {TOKENS.start} to {TOKENS.stop - 1} tokens"
    )


def messages_of(question: str) -> list[Message]:
    """The chat that `single` asks for a question."""
    return load_workflow("single", {}).roles["solver"].messages({"question": question})


def _long_tasks(renderer: ChatRenderer, seed: int) -> Iterator[dict[str, Any]]:
    passages = {row["id"]: row["text"] for row in _rows("corpus")}
    generator = random.Random(seed)
    for task in _rows("tasks"):
        if task["split"] != "train":
            continue
        shown = [passages[i] for i in task["gold"]["passages"]]
        others = generator.sample(list(passages.values()), 12)
        generator.shuffle(shown)
        for other in [None, *others]:
            if other is not None:
                shown.insert(generator.randrange(len(shown) + 1), other)
            question = "\n".join([*shown, task["inputs"]["question"]])
            length = len(renderer.render(messages_of(question)))
            if length in TOKENS:
                yield {**task, "inputs": {"question": question}}
            if length >= TOKENS.start:
                break


def _rows(kind: Any) -> list[dict[str, Any]]:
    with open(shipped_file("facts", kind), encoding="utf-8") as file:
        return [json.loads(line) for line in file]
