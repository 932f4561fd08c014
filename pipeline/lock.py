"""One writer per run folder.

On a local disk the lock is the operating system's (`flock`): it ends with the process, however that
ends. Elsewhere it is a small file with a time that its owner renews; one that was not renewed for
`STALE_SECONDS` belongs to a process that is gone.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import IO

from pipeline.store import Folder
from workflows.errors import UsageError

RENEW_SECONDS = 20.0
STALE_SECONDS = 120.0


class RunLock:
    """A context manager that holds a run folder for writing.

    Raises:
        UsageError: another process holds it; the message says which.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._file: IO[str] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

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
            self.folder.remove("lock")
        if self._file:
            self._file.close()  # the lock goes with the descriptor; the empty file may stay

    def _hold_local(self) -> None:
        path = Path(self.folder.path) / "lock"
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
        held = self.folder.read_text("lock")
        if held and time.time() - json.loads(held)["renewed_at"] < STALE_SECONDS:
            raise self._refusal(held)
        self.folder.write_text("lock", self._owner())
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            self.folder.write_text("lock", self._owner())

    def _owner(self) -> str:
        return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "renewed_at": time.time()})

    def _refusal(self, held: str) -> UsageError:
        try:
            owner = json.loads(held)
            who = f"process {owner['pid']} on {owner['host']}"
        except (json.JSONDecodeError, KeyError):
            who = "another process"
        return UsageError(
            f"run {self.folder.url} is being written by {who}; wait for it, end it, or use another "
            "name (--set run.name=...)"
        )
