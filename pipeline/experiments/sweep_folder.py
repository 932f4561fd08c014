"""A sweep on disk: which runs it is made of, and how each of them stands.

    <root>/<sweep>/
      sweep.toml        the settings that all runs share
      sweep.json        points, seeds, and every run with its state
      <run>.log         what each run printed
      compare/          tables and plots of all of them

The runs themselves are ordinary ones, beside it under the root.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pipeline.store.differences import differences, plain
from pipeline.store.folder import Folder
from pipeline.store.run import Run
from workflows.errors import UsageError

State = Literal["new", "running", "finished", "failed"]


@dataclass(slots=True)
class Child:
    """One run of a sweep. `running` in a file that no process holds means that it was stopped."""

    name: str
    point: str
    seed: int
    state: State = "new"
    iterations: int = 0  # that it had when it ended
    seconds: float = 0.0  # of all processes that worked on it
    cause: str | None = None  # why it failed


class SweepFolder:
    """The stored state of a sweep. Nothing is written before `begin`."""

    def __init__(self, root: str, name: str) -> None:
        self.root, self.name = root, name
        self.folder = Folder(root).child(name)
        text = self.folder.read_text("sweep.json")
        self.data: dict[str, Any] = json.loads(text) if text else {}
        self.children = {c["name"]: Child(**c) for c in self.data.get("runs", ())}

    @property
    def exists(self) -> bool:
        return bool(self.data)

    def begin(self, toml: str, values: Mapping[str, Any], points: Mapping[str, Any]) -> None:
        """Make the folder, or check that the sweep that is there has the same settings. Points may be new.

        Args:
            toml: the settings that all runs share, as the folder keeps them.
            values: the same as plain values.
            points: by label, what makes each point, as plain values.

        Raises:
            UsageError: it has others, or a run has this name.
        """
        shared = _shared(plain(dict(values)))
        if Run(self.root, self.name).exists:
            raise UsageError(
                f"{self.folder.url} is a run, so no sweep can have its name; choose one with --name"
            )
        if self.exists and self.data["settings"] != shared:
            raise UsageError(
                f"sweep {self.name!r} was started with other settings: "
                f"{differences(self.data['settings'], shared)}; set them back, or choose another --name"
            )
        known, points = self.data.get("points", {}), plain(points)
        both = known.keys() & points.keys()
        if moved := differences({k: known[k] for k in both}, {k: points[k] for k in both}):
            raise UsageError(
                f"sweep {self.name!r} was started with other settings at a point: {moved}; set them back, or "
                "choose another --name"
            )
        if not self.exists:
            self.data = {"name": self.name, "created_at": time.time(), "settings": shared, "tracker": {}}
        self.folder.write_text("sweep.toml", toml)
        self.write(points=known | points)

    def write(self, **changes: Any) -> None:
        self.data |= changes
        self.data["runs"] = [asdict(child) for child in self.children.values()]
        self.folder.write_text("sweep.json", json.dumps(self.data, indent=1, sort_keys=True))

    def child(self, name: str, point: str, seed: int) -> Child:
        """The run of this name as it is stored, or a new one."""
        return self.children.setdefault(name, Child(name, point, seed))

    def is_finished(self, child: Child, iterations: int) -> bool:
        """Whether a run has ended well with so many iterations, and they are still there."""
        return child.state == "finished" and finished_iterations(self.root, child.name) >= iterations


def finished_iterations(root: str, name: str) -> int:
    """The number of finished iterations of a run; 0 for a run that does not exist."""
    run = Run(root, name)
    return sum(run.is_finished(index) for index in run.iterations())


def _shared(dumped: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that all runs of a sweep share and that a later call may not change."""
    return {k: v for k, v in dumped.items() if k not in ("run", "tracking", "cluster")} | {
        "run": {k: v for k, v in dumped["run"].items() if k not in ("name", "seed", "root")}
    }
