"""`python -m tests.learning [NAME ...]`: proofs that teams learn, each from a seed, told with its settings.

Every proof prints a line a run and its verdict; `--json` keeps the curves. `questions` takes an hour a
regime, `reading` and `teams` three in all, `study` one and `cliff` two, so they run where they are named;
with `--keep` they go on where they were stopped.
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

from tests.benchmarks.measure import environment

PROOFS = (
    *("signal", "grouping", "falls", "replace", "questions", "reading", "study", "cliff"),
    *("orchestration", "teams", "reward_model"),
)
SHORT = ("signal", "grouping")


def main() -> int:
    """Run the named proofs, or the short ones; 0 where each reaches its goal, 1 where one falls short."""
    parser = argparse.ArgumentParser(prog="python -m tests.learning", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(PROOFS)}; default {', '.join(SHORT)}"
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each setting (default %(default)s)")
    parser.add_argument("--only", "--regime", default="", help="only settings whose name has this text")
    parser.add_argument("--json", metavar="PATH", help="also write every curve to this file")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the runs here")
    parser.add_argument(
        "--learn",
        type=int,
        metavar="N",
        help="questions: so many iterations of learning, on slow machines fewer",
    )
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(PROOFS)):
        parser.error(f"no proof {unknown[0]!r}; there are {', '.join(PROOFS)}")
    if arguments.learn is not None and (arguments.learn < 1 or "questions" not in arguments.names):
        parser.error("--learn is for questions, and at least 1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    started, machine = time.monotonic(), environment()
    print(f"{machine['cores']} cores, {machine['cpu']}, commit {machine['commit']}", flush=True)
    results = []
    with tempfile.TemporaryDirectory(prefix="cadre-learn-", ignore_cleanup_errors=True) as temporary:
        for name in arguments.names or SHORT:
            print(f"\n{name}", flush=True)
            folder = Path(arguments.keep or temporary).absolute() / name
            module = importlib.import_module(f"tests.learning.{name}")
            more = {"learn": arguments.learn} if name == "questions" and arguments.learn else {}
            results += module.run(str(folder), range(arguments.seeds), arguments.only, **more)
    print(f"\n{time.monotonic() - started:.0f} s in all")
    if arguments.json:
        content = {"environment": machine, "results": [result.as_dict() for result in results]}
        Path(arguments.json).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0 if results and all(result.reached for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
