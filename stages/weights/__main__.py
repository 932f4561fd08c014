"""`python -m stages.weights prepare NAME`: build, copy or fetch a model once, and say what it holds."""

from __future__ import annotations

import argparse
import sys

from stages.weights.checkpoints import describe_checkpoint
from stages.weights.resolve import resolve_checkpoint
from workflows.errors import UsageError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m stages.weights", description=__doc__)
    parser.add_argument("command", choices=["prepare"], help="build, copy or fetch a model once")
    parser.add_argument("name", help="a shipped name, a folder, a URL or a hub id")
    options = parser.parse_args(arguments)
    try:
        folder = resolve_checkpoint(options.name)
        info = describe_checkpoint(folder)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(
        f"{options.name}: {info.architecture}, {info.parameters / 1e6:.1f} M parameters, "
        f"{info.dtype}, {folder}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
