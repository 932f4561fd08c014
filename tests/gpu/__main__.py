"""`python -m tests.gpu`, or `make gpu-check`: the whole loop on this machine's GPUs, in at most 10 minutes.

Every check says what it expects and what it found; a failure ends none of the others. The exit code is 0
where all of them are ok, 1 where one failed, and 3 where none failed and one could not run: that is not ok.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from stages.process.devices import device_memory_here
from tests.gpu.checks import CHECKS, NOT_BUILT
from tests.gpu.outcome import SECONDS, STATES, Outcome, exit_code, one, run_all


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only checks whose name has this text")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of all checks (default %(default)s)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(one(arguments.one))
        return 0
    checks = [c for c in CHECKS if not arguments.names or any(name in c.name for name in arguments.names)]
    if not checks:
        parser.error(f"no check has {' or '.join(arguments.names)} in its name")
    devices = device_memory_here()
    print(f"{len(devices)} GPUs: {', '.join(f'{gib:.1f} GiB' for gib in devices) or 'none'}\n", flush=True)
    outcomes = run_all(
        checks, len(devices), lambda outcome: print(outcome.line(), flush=True), arguments.seconds
    )
    for name, why in NOT_BUILT.items():
        print(Outcome(name, "not built", "nothing: today's code does not have it", why).line())
    counts = Counter(outcome.state for outcome in outcomes) + Counter({"not built": len(NOT_BUILT)})
    print("\n" + ", ".join(f"{counts[state]} {state}" for state in STATES))
    return exit_code(outcomes)


if __name__ == "__main__":
    sys.exit(main())
