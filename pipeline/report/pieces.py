"""Token ids → the text of each token, with the very tokenizer that the rows were made with.

A row's `context_hash` covers the tokenizer, so the right one is recognised and no other is used. Only
what lies on this machine is looked at: nothing is built, fetched or run for a report.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow.compute as pc

from pipeline.store.finished import Finished
from pipeline.store.run import Run
from stages.weights.chat import ChatRenderer
from stages.weights.resolve import default_cache_dir
from stages.weights.shipped import SHIPPED
from workflows.errors import UsageError
from workflows.playing.columns import context_hash
from workflows.testing import ScriptedModel

Pieces = Callable[[Sequence[int]], list[str]]
"""The text of each token; a character that several tokens make is at the last of them."""

UNFINISHED: Final = "\ufffd"  # bytes at the end that make no character
_SEEN: Final = ["model_id", "messages", "prompt_token_ids", "context_hash"]


class _Tokenizer(Protocol):
    @property
    def tokenizer_hash(self) -> str: ...


def pieces_by_model(run: Run, settings: Mapping[str, Any], places: Sequence[Finished]) -> dict[str, Pieces]:
    """The pieces of every model whose tokenizer is at hand; a model whose is not has none."""
    pieces_of: dict[str, Pieces] = {}
    for model, row in _a_row_of_each_model(places).items():
        for tokenizer, pieces in _candidates(run, settings, model):
            same = context_hash(tokenizer.tokenizer_hash, row["messages"], row["prompt_token_ids"])
            if same == row["context_hash"]:
                pieces_of[model] = pieces
                break
    return pieces_of


def stream_pieces(tokenizer: Any, token_ids: Sequence[int]) -> list[str]:
    """Pieces by a `tokenizers.Tokenizer`, special tokens spelled out. Joined, they are the decoded text."""
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=False)
    pieces = [stream.step(tokenizer, token) for token in token_ids]
    if pieces and pieces[-1] is None:
        pieces[-1] = UNFINISHED
    return [piece or "" for piece in pieces]


def scripted_pieces(token_ids: Sequence[int]) -> list[str]:
    """Pieces of the scripted engine's tokenizer, whose first ids are bytes; its marks have no text."""
    model = ScriptedModel(lambda messages, sampling: "")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    parts = [bytes([i]) if i < 256 else model.decode([i]).encode() for i in token_ids]
    return [decoder.decode(part, final=n == len(parts)) for n, part in enumerate(parts, 1)]


def _a_row_of_each_model(places: Sequence[Finished]) -> dict[str, dict[str, Any]]:
    """A turn with prompt ids of every model, from the first part of each place that has turns."""
    row_of: dict[str, dict[str, Any]] = {}
    for place in places:
        turns = place.tables.get("turns")
        index = next((i for i, part in enumerate(turns.parts) if part.rows), None) if turns else None
        if turns is None or index is None:
            continue
        rows = turns.read_part(index, _SEEN)
        rows = rows.filter(pc.is_valid(rows["prompt_token_ids"]))
        for model in pc.unique(rows["model_id"]).to_pylist():
            if model is not None and model not in row_of:
                row_of[model] = rows.filter(pc.equal(rows["model_id"], model)).slice(0, 1).to_pylist()[0]
    return row_of


def _candidates(run: Run, settings: Mapping[str, Any], model: str) -> Iterator[tuple[_Tokenizer, Pieces]]:
    """Tokenizers that the model may have been read with: the scripted one, its own and its base's."""
    yield ScriptedModel(lambda messages, sampling: ""), scripted_pieces
    sections = settings.get("models", {})
    section = sections.get(model, {})
    base = sections.get(section.get("base") or model, section)
    for folder in _folders(run, model, str(base.get("checkpoint", ""))):
        if (folder / "tokenizer.json").is_file():
            renderer = ChatRenderer(str(folder), base.get("template_options") or None)
            yield renderer, _pieces_of(folder)


def _pieces_of(folder: Path) -> Pieces:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda ids: stream_pieces(tokenizer, ids)


def _folders(run: Run, model: str, checkpoint: str) -> Iterator[Path]:
    """Where the model's files may lie on this machine: its checkpoints, and what it started from."""
    if run.folder.is_local:
        weights = Path(run.folder.path) / "checkpoints" / model
        yield from (path / "weights" for path in sorted(weights.glob("[0-9]*"), reverse=True))
    if checkpoint in SHIPPED:
        version, _ = SHIPPED[checkpoint]
        with suppress(UsageError):  # its package is not installed: then it isn't here either
            yield default_cache_dir() / f"{checkpoint}-{version()}"
    elif checkpoint and "://" not in checkpoint:
        yield Path(checkpoint).expanduser()
