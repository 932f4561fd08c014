"""What Linux says of a process under `/proc`: its state, and when it started."""

from __future__ import annotations


def started(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine did; None where it has ended, reaped or not.

    A process number is used again after a while; number and start together name one process.
    """
    fields = stat(f"/proc/{pid}/stat")
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def stat(path: str) -> list[str] | None:
    """The fields of a stat file behind the name, from the state on; None where the process is gone."""
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError:
        return None
    return text[text.rindex(b")") + 2 :].decode("ascii").split()
