"""The passages that come with HotpotQA's questions, as a corpus for the retriever.

    python -m workflows.data.hotpot_corpus hotpot_dev_distractor_v1.json corpus.jsonl

Reads the published JSON and the hub's Parquet, writes `{id, title, text}`, one line for each passage. A
passage that several questions bring is there once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import fsspec

from workflows.data.files import data_files
from workflows.data.makers.shipping import jsonl
from workflows.data.rows import read_rows
from workflows.errors import DataError, UsageError


def passages(path: str) -> Iterator[dict[str, str]]:
    """The passages of a HotpotQA file or folder, in the order of their first question.

    Raises:
        DataError: it can't be read, a row has no `context`, or one of another shape.
    """
    seen: dict[tuple[str, str], None] = {}
    for file in data_files(path):
        for number, row in read_rows(file.path):
            try:
                for title, sentences in _paragraphs(row["context"]):
                    seen.setdefault((title, "".join(sentences).strip()))
            except (TypeError, KeyError, ValueError) as error:
                raise DataError(
                    f"{file.path!r}, row {number}: no passages of HotpotQA: expected context = [[title, "
                    f"[sentence, …]], …] ({type(error).__name__}: {error})"
                ) from error
    for number, (title, text) in enumerate(seen):
        yield {"id": f"hotpot-{number}", "title": title, "text": text}


def _paragraphs(context: Any) -> Iterator[tuple[str, list[str]]]:
    if isinstance(context, Mapping):  # as on the hub
        context = zip(context["title"], context["sentences"], strict=True)
    for title, sentences in context:
        if not isinstance(title, str) or not isinstance(sentences, list):
            raise TypeError(f"got {title!r:.40} and {sentences!r:.40}")
        yield title, sentences


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m workflows.data.hotpot_corpus HOTPOTQA_FILE CORPUS.jsonl\n")
        return 2
    try:
        content = jsonl(passages(arguments[0]))
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    with fsspec.open(arguments[1], "wb") as file:
        file.write(content)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
