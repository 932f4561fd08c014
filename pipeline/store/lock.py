"""One writer per run folder.

On a local disk the lock is the operating system's (`flock`): it ends with the process, however that
ends. Elsewhere it is a small file with a time that its owner renews. One that was not renewed for
`STALE_SECONDS` belongs to a process that is gone, and so does one of a process of this machine that is
not there any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import IO, Any, Final

from pipeline.store.folder import Folder
from workflows.errors import UsageError
from workflows.processes import started

RENEW_SECONDS: Final = 20.0
STALE_SECONDS: Final = 120.0
SETTLE_SECONDS: Final = 1.0  # for another process that takes over the same lock at the same time
POLL_SECONDS: Final = 0.2
FILE: Final = "lock"


class RunLock:
    """A context manager that holds a run folder for writing.

    A remote lock that another process has taken over (this one was suspended, or cut off, for longer than
    `STALE_SECONDS`) stops this process as SIGTERM does: two writers would mix their tables.

    Raises:
        UsageError: another process holds it; the message says which.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._file: IO[str] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._token = uuid.uuid4().hex

    def __enter__(self) -> RunLock:
        if self.folder.is_local:
            self._hold_local()
        else:
            self._hold_remote()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()
            with contextlib.suppress(Exception):  # a file that stays is stale: we are gone
                if self._is_ours(self.folder.read_text(FILE)):
                    self.folder.remove(FILE)
        if self._file:
            self._file.close()  # the lock goes with the descriptor; the empty file may stay

    def _hold_local(self) -> None:
        path = Path(self.folder.path) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            raise self._refusal(self._file.read()) from None
        self._file.truncate(0)
        self._file.write(self._owner())
        self._file.flush()

    def _hold_remote(self) -> None:
        held = self.folder.read_text(FILE)
        if held is not None and not _is_gone(_parsed(held)):
            raise self._refusal(held)
        if held is None:
            self.folder.create_text(FILE, self._owner())
        else:
            self.folder.write_text(FILE, self._owner())
            time.sleep(SETTLE_SECONDS)
        held = self.folder.read_text(FILE)  # another may have been faster
        if not self._is_ours(held):
            raise self._refusal(held or "")
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            with contextlib.suppress(Exception):  # the network may be back the next time
                held = self.folder.read_text(FILE)
                if held is not None and not self._is_ours(held):
                    sys.stderr.write(f"error: {self._refusal(held)}\n")
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
                self.folder.write_text(FILE, self._owner())

    def _is_ours(self, held: str | None) -> bool:
        return held is not None and _parsed(held).get("token") == self._token

    def _owner(self) -> str:
        return json.dumps(
            {
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "process": _process_key(os.getpid()),
                "token": self._token,
                "renewed_at": time.time(),
            }
        )

    def _refusal(self, held: str) -> UsageError:
        owner = _parsed(held)
        who = f"process {owner['pid']} on {owner['host']}" if "pid" in owner else "another process"
        ends = ""
        if not self.folder.is_local and "renewed_at" in owner:
            left = max(0.0, owner["renewed_at"] + STALE_SECONDS - time.time())
            ends = f" (a lock that nobody renews ends by itself: this one in {left:.0f} s)"
        return UsageError(
            f"run {self.folder.url} is being written by {who}; wait for it{ends}, end it, or use another "
            "name (--set run.name=...)"
        )


def wait_until_free(folder: Folder, seconds: float) -> None:
    """Wait until nobody writes to a run, but no longer than that: for what is about to end."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        with contextlib.suppress(UsageError), RunLock(folder):
            return
        time.sleep(POLL_SECONDS)


def _parsed(held: str) -> dict[str, Any]:
    try:
        owner = json.loads(held)
    except json.JSONDecodeError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _is_gone(owner: dict[str, Any]) -> bool:
    """Whether the owner of a remote lock no longer renews it."""
    if time.time() - owner.get("renewed_at", 0.0) >= STALE_SECONDS:
        return True
    key = owner.get("process")
    mine = _process_key(os.getpid())
    if key is None or mine is None or key["machine"] != mine["machine"]:
        return False  # of another machine: only time tells
    return bool(_process_key(owner["pid"]) != key)


def _process_key(pid: int) -> dict[str, str] | None:
    """What tells a process of this machine from one that later gets its number: the boot and the name
    space of its number, and when it started. None where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
    ticks = started(pid)
    return {"machine": f"{boot} {space}", "started": "ended" if ticks is None else str(ticks)}
