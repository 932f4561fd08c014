"""Which isolation this machine has: the one that the settings name, once a program has run under it."""

from __future__ import annotations

import functools

from workflows.errors import UsageError
from workflows.tools.code.isolation import REMEDY, Isolation, Sandbox, untried
from workflows.tools.code.limits import Limits
from workflows.tools.code.watch import run


@functools.lru_cache(maxsize=8)
def find_isolation(sandbox: Sandbox) -> Isolation:
    """The isolation that `sandbox` names, after a program has run under it.

    Raises:
        UsageError: no bubblewrap, or it does not work here, or no interpreter; what to do about it.
    """
    isolation = untried(sandbox)
    if problem := _try_out(isolation):
        remedy = f". {REMEDY}" if isolation.kind == "bwrap" else ""
        raise UsageError(f"programs can't run under isolation {isolation.kind!r} here: {problem}{remedy}")
    return isolation


def _try_out(isolation: Isolation) -> str | None:
    """Run the smallest program; what went wrong, or None."""
    end = run(isolation, {"mode": "script", "code": "print(6 * 7)", "prelude": ""}, Limits())
    if end.finished and end.stdout.strip() == b"42":
        return None
    said = end.stderr.decode(errors="replace").strip().splitlines()
    return said[-1] if said else f"a trial program ended without a word ({end.killed or end.exit_code})"
