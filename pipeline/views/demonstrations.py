"""Stored turns as a file of demonstrations: chats that end in the reply to imitate."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.store.folder import Folder
from pipeline.store.shelf import Shelf
from pipeline.store.spans import within
from pipeline.views.where import chosen_turns, condition_of, metrics_of
from stages.tables.parquet import write_bytes
from workflows.errors import UsageError
from workflows.vocabulary import NOT_THE_POLICYS_DOING, Event, Status

REPEATED = "the same chat again"


@dataclass(frozen=True, slots=True)
class Written:
    """A file of demonstrations, and what became of the turns that were chosen."""

    file: str
    chats: int
    left_out: Mapping[str, int]  # chosen turns that are not in the file, by reason

    def lines(self) -> Iterator[str]:
        yield f"wrote {self.chats} chats to {self.file}"
        yield from (f"left out {count}: {reason}" for reason, count in self.left_out.items())
        yield f'use: engine = "demonstrations", engine_options = {{ file = {json.dumps(self.file)} }}'


def write_demonstrations(shelf: Shelf, where: str, out: str, iterations: str | None = None) -> Written:
    """Write the turns that a condition chooses as chats, each once, in the order of iterations and keys.

    Args:
        shelf: the iterations, or the evaluations, of a run or of a replay.
        where: a condition as `show --where` takes it.
        out: the file to write, a path or a URL.
        iterations: which ones, `A:B`; None: all.

    Raises:
        UsageError: the file exists, the condition can't be read, or nothing is left to write.
    """
    folder, slash, name = out.rpartition("/")
    if not name or name in Folder(folder or slash or ".").names():
        raise UsageError(f"--out {out!r} is there already; name a new file")
    left_out: Counter[str] = Counter()
    chats: dict[str, None] = {}
    for index in _indices(shelf, iterations):
        tables = shelf.place(index).tables
        metrics = metrics_of(tables)
        for turn in chosen_turns(tables, condition_of(where, metrics), metrics):
            reason = _reason(turn)
            chat = None if reason else _chat(turn)
            if chat in chats:
                reason = REPEATED
            if reason is not None:
                left_out[reason] += 1
            elif chat is not None:
                chats[chat] = None
    if not chats:
        reasons = ", ".join(f"{count} × {reason}" for reason, count in left_out.items())
        raise UsageError(
            f"--where {where!r} leaves no turn to write ({reasons or 'it chooses none'}); `show --where` "
            "lists what a condition chooses"
        )
    try:
        write_bytes(out, "".join(f"{chat}\n" for chat in chats).encode("utf-8"))
    except OSError as error:
        raise UsageError(f"--out {out!r} can't be written ({error.strerror or error})") from None
    return Written(out, len(chats), dict(left_out))


def _reason(turn: Mapping[str, Any]) -> str | None:
    """Why a turn can't be a demonstration; None if it can."""
    if turn["event"] != Event.LLM:
        return f"a turn of kind {turn['event']}, not a reply of a model"
    if turn["status"] in NOT_THE_POLICYS_DOING:
        return f"a turn that failed ({turn['status']})"
    if turn["status"] == Status.TRUNCATED:
        return "a reply that the token limit cut off"
    if not turn["messages"] or not turn["response_text"]:
        return "a turn without a prompt or a reply"
    return None


def _chat(turn: Mapping[str, Any]) -> str:
    answer = {"role": "assistant", "content": turn["response_text"]}
    return json.dumps({"messages": [*json.loads(turn["messages"]), answer]}, ensure_ascii=False)


def _indices(shelf: Shelf, iterations: str | None) -> Sequence[int]:
    if not shelf.indices:
        shelf.chosen(None)  # says that there is none yet
    chosen = [index for index in shelf.indices if within(index, iterations)]
    if not chosen:
        there = f"{shelf.indices[0]} to {shelf.indices[-1]}"
        raise UsageError(f"--iterations {iterations!r} has none of the run's, which are {there}")
    return chosen
