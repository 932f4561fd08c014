"""What a replacement has done so far: `replacement.json` in its run's folder, which a resume reads.

<run>/replacement/
  replacement.json     what was asked, every rung and step as measured, the outcome
  plays/<team>/        the probe, played by each team
  tables/              stored turns as the newcomer reads them, and their scores
  newcomer/            its weights after they were taught
  before/              checkpoints, settings and run.json of the parent: what a rollback puts back
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pipeline.store.differences import differences, plain
from pipeline.store.folder import Folder
from pipeline.store.run import Run
from workflows.errors import UsageError

FOLDER: Final = "replacement"
FILE: Final = "replacement.json"


class State:
    """The steps of a replacement that are finished, by name, kept after each of them."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.folder: Folder = run.folder.child(FOLDER)
        text = self.folder.read_text(FILE)
        self.data: dict[str, Any] = json.loads(text) if text else {}

    def begin(self, asked: Mapping[str, Any]) -> None:
        """Note what was asked, or refuse to go on with something else.

        Raises:
            UsageError: another replacement was begun under this name.
        """
        asked = plain(asked)
        if "asked" not in self.data:
            self.write(asked=asked, steps={})
        elif (before := self.data["asked"]) != asked:
            raise UsageError(
                f"{self.folder.url} holds another replacement: {differences(before, asked)}; use another "
                "--name, or ask for the same again to go on with it"
            )

    def step(self, name: str) -> dict[str, Any] | None:
        """What a finished step has found."""
        found: dict[str, Any] | None = self.data["steps"].get(name)
        return found

    def keep(self, name: str, found: Mapping[str, Any]) -> dict[str, Any]:
        """Note a finished step."""
        self.data["steps"][name] = plain(dict(found))
        self.write()
        return dict(self.data["steps"][name])

    def write(self, **changes: Any) -> None:
        self.data.update(changes)
        self.folder.write_text(FILE, json.dumps(plain(self.data), indent=1, ensure_ascii=False))

    @property
    def outcome(self) -> str | None:
        """`accepted` or `rolled back`, once it is decided."""
        decided: str | None = self.data.get("outcome")
        return decided
