"""The package names are generic, so a user's own folder can shadow one of them. Say so at the start."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGES = ("stages", "rewards", "workflows")


def check_packages() -> None:
    """Exit with code 2 and one sentence where one of the packages does not lie beside `pipeline`."""
    home = Path(__file__).resolve().parent.parent
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        found = Path(spec.origin).resolve().parent if spec and spec.origin else None
        if found != home / package:
            where = found or _namespace(package) or "nowhere"
            sys.stderr.write(
                f"error: package {package!r} comes from {where}, but Cadre's own lies in {home}; a folder "
                f"named {package!r} shadows it: rename that folder, or run from another one\n"
            )
            sys.exit(2)


def _namespace(package: str) -> str | None:
    spec = importlib.util.find_spec(package)
    locations = list(spec.submodule_search_locations or []) if spec else []
    return locations[0] if locations else None
