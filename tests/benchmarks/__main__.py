"""`python -m tests.benchmarks [NAME ...]`: the figures of `docs/results.md`, measured anew.

Every benchmark compares with a peer on the same machine, in turn, so that both see the same noise.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.measure import MIN_PAIRS, Figure, Options, environment, lines

BENCHMARKS = (
    "rollout",
    "update",
    "limit",
    "role_gradients",
    "adapters",
    "iteration",
    "replay",
    "qa_scores",
    "sandbox",
    "hostile",
    "humaneval",
)
# long: run where they are asked for
BY_NAME = ("forecast", "traces", "retrieval", "retrieval:words", "retrieval:meaning", "retrieval:graph")


def main() -> int:
    """Run the named benchmarks, or all but the longest; 0 where every figure meets its goal, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"of {', '.join((*BENCHMARKS, *BY_NAME))}; default all but {', '.join(BY_NAME)}",
    )
    parser.add_argument("--pairs", type=int, default=MIN_PAIRS, help="measured pairs (default %(default)s)")
    parser.add_argument("--checkpoint", default=Options.checkpoint, help="model folder or shipped name")
    parser.add_argument("--json", metavar="PATH", help="also write every measurement to this file")
    parser.add_argument("--keep", metavar="FOLDER", help="keep runs and logs here")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - {*BENCHMARKS, *BY_NAME}):
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join((*BENCHMARKS, *BY_NAME))}")
    if arguments.pairs < 1:
        parser.error("--pairs must be at least 1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    started, machine = time.monotonic(), environment()
    say(
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, {machine['cpu']}, commit {machine['commit']}"
    )
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="cadre-bench-", ignore_cleanup_errors=True) as temporary:
        root = Path(arguments.keep or temporary).absolute()
        for name in arguments.names or BENCHMARKS:
            folder = root / name
            folder.mkdir(parents=True, exist_ok=True)
            options = Options(arguments.pairs, arguments.checkpoint, str(folder))
            say(f"\n{name}")
            module_name, _, part = name.partition(":")
            module = importlib.import_module(f"tests.benchmarks.{module_name}")
            figures += (module.PARTS[part] if part else module.run)(options, lambda text: say(f"  {text}"))
    say(f"\n{time.monotonic() - started:.0f} s in all")
    for figure in figures:
        say("\n".join(lines(figure)))
    if arguments.json:
        _write(Path(arguments.json), machine, figures)
    return 0 if all(figure.passes for figure in figures) else 1


def say(text: str) -> None:
    print(text, flush=True)


def _write(path: Path, machine: dict[str, Any], figures: list[Figure]) -> None:
    content = {"environment": machine, "figures": [figure.as_dict() for figure in figures]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
