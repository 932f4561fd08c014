"""Files of question-answering rows."""

from __future__ import annotations

import json
from pathlib import Path


def qa_row(number: int, **fields: object) -> dict:
    return {"question": f"Q{number}?", "answer": f"A{number}"} | fields


def write(path: Path, *rows: object) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def splits_of(loaded) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for task in loaded.tasks.to_pylist():
        found.setdefault(task["split"], []).append(json.loads(task["inputs"])["question"])
    return found
