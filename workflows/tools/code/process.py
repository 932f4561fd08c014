"""One interpreter under way in the sandbox: started, fed, read, limited, ended. `watch.py` moves it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, Final

from workflows.errors import InfraError
from workflows.tools.code.codec import encode
from workflows.tools.code.isolation import Isolation
from workflows.tools.code.limits import End, Killed, Limits
from workflows.tools.code.tree import children, kill_descendants, look_at, send

_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
READ_BYTES: Final = 1 << 16
_KEPT_STDERR: Final = 8192
_REPORT: Final = re.compile(r"([\d.]+)\n(?:(\{.*)\n)?(?:(\d+ [01] [01] [01])\n)?")
_BOOTSTRAP: Final = """
import marshal, sys
with open(int(sys.argv[1]), "rb") as file:
    modules, job = marshal.load(file), file.read()
for name, code in modules:
    module = sys.modules[name] = type(sys)(name)
    module.job = job
    exec(code, module.__dict__)
"""


class Program:
    """A sandbox with one program under way.

    Args:
        job: of the program (see `box.py`): `mode`, `code`, `prelude`.
        asks: what the keeper asks it: `call`, or `test` with `prelude`, `setup`, `names`, `always`, `limits`.
        stdin: what its standard input holds.

    Raises:
        InfraError: the machine can't start another process.
    """

    def __init__(
        self,
        isolation: Isolation,
        job: Mapping[str, Any],
        limits: Limits,
        *,
        asks: Mapping[str, Any] | None = None,
        stdin: bytes = b"",
    ) -> None:
        self.limits = limits
        self.killed: Killed | None = None
        self.looked_cpu_seconds = 0.0
        self._end: End | None = None
        self._walls = isolation.kind == "bwrap"
        self._stdout, self._stderr, self._report = bytearray(), bytearray(), bytearray()
        self._stderr_bytes = 0
        self._readers: dict[int, Callable[[bytes], None]] = {}
        self.exit_fd = -1
        self._folder = None if self._walls else tempfile.TemporaryDirectory(prefix="cadre-box-")
        try:
            with contextlib.ExitStack() as after_start:
                self._start(isolation, job, asks or {}, stdin, after_start)
        except OSError as error:  # no process, memory or descriptor is left, or the sandbox's command is gone
            self._close()
            raise InfraError(f"a sandbox can't be started: {error}") from error

    def _start(
        self,
        isolation: Isolation,
        job: Mapping[str, Any],
        asks: Mapping[str, Any],
        stdin: bytes,
        after: contextlib.ExitStack,
    ) -> None:
        their_stdin = _memory_file(after, stdin, sealed=True)  # a file, as on the sites: it has a size
        theirs = []
        for keep in (self._keep_stdout, self._keep_stderr, self._keep_report):
            mine, other = _pipe(after)
            self._readers[mine] = keep
            theirs.append(other)
        if isolation.user is not None:  # the programs' user may open /dev/stdin only if the pipe is theirs
            for end in (their_stdin, *theirs[:2]):
                os.fchown(end, isolation.user, isolation.user)
        job_file = _memory_file(after, isolation.modules + encode(self._whole_job(isolation, job)).encode())
        asks_file = _memory_file(after, encode(dict(asks)).encode())
        passed = [job_file, theirs[2], asks_file]
        words = [*isolation.command, "-c", _BOOTSTRAP, *map(str, passed)]
        if isolation.seccomp is not None:
            passed.append(_memory_file(after, isolation.seccomp))
            at = words.index("--")
            words[at:at] = ["--seccomp", str(passed[-1])]
        self._process = subprocess.Popen(
            words,
            stdin=their_stdin,
            stdout=theirs[0],
            stderr=theirs[1],
            pass_fds=passed,
            env=isolation.environment,
            cwd=self._work_folder(isolation),
            start_new_session=True,
        )
        self.exit_fd = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        """Of the outermost process."""
        return self._process.pid

    def _work_folder(self, isolation: Isolation) -> str:
        if self._folder is None:
            return "/"
        if isolation.user is not None:
            os.chown(self._folder.name, isolation.user, isolation.user)
        return self._folder.name

    def _whole_job(self, isolation: Isolation, job: Mapping[str, Any]) -> dict[str, Any]:
        limits = self.limits
        seconds = int(limits.cpu_seconds) + 1
        resources = [
            ("RLIMIT_CPU", seconds, seconds + 1),  # of each process; the sum is looked at from outside
            ("RLIMIT_AS", limits.memory, limits.memory),
            ("RLIMIT_STACK", limits.memory // 8, limits.memory // 8),
            ("RLIMIT_FSIZE", limits.file_size, limits.file_size),
            ("RLIMIT_NOFILE", limits.open_files, limits.open_files),
            ("RLIMIT_CORE", 0, 0),
        ]
        if self._walls:  # without, it would count the user's processes elsewhere
            resources.append(("RLIMIT_NPROC", limits.processes, limits.processes))
        return {
            "process_one": self._walls,
            "paths": list(isolation.packages),
            "limits": [list(resource) for resource in resources],
            "longest": limits.output,
            **job,
        }

    # --- pipes -------------------------------------------------------------------------------------------

    def descriptors(self) -> dict[int, int]:
        """What to poll for: descriptor → events."""
        return {
            **dict.fromkeys(self._readers, select.POLLIN),
            self.exit_fd: select.POLLIN,
        }

    def move(self, fd: int) -> None:
        """Read from a descriptor that is ready."""
        if fd in self._readers:
            self._read(fd)

    def _read(self, fd: int) -> bool:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._readers[fd](data)
        else:
            del self._readers[fd]
            os.close(fd)
        return bool(data)

    def _keep_stdout(self, data: bytes) -> None:
        self._stdout += data
        if len(self._stdout) > self.limits.output:
            self.kill("output")

    def _keep_stderr(self, data: bytes) -> None:
        self._stderr_bytes += len(data)
        self._stderr[:] = (self._stderr + data)[-_KEPT_STDERR:]
        if self._stderr_bytes > self.limits.output:
            self.kill("output")

    def _keep_report(self, data: bytes) -> None:
        self._report += data

    # --- ending ------------------------------------------------------------------------------------------

    def is_gone(self) -> bool:
        """Whether all its processes have ended."""
        poll = select.poll()
        poll.register(self.exit_fd, select.POLLIN)
        return bool(poll.poll(0))

    def kill(self, why: Killed) -> None:
        """End the program and all its processes; `finish` then says how it ended."""
        if self._end is not None or self.killed is not None or self.is_gone():
            return
        self.killed = why
        self.looked_cpu_seconds = look_at(self.pid).cpu_seconds  # the kernel forgets that of who is killed
        if not self._walls:
            kill_descendants(self.pid)
            send(self.pid, signal.SIGKILL)
            return
        # Killing process 1 of the namespace kills all of it, and bubblewrap waits for that. Until there
        # is one, bubblewrap is between two steps: let it come to the next.
        poll = select.poll()
        poll.register(self.exit_fd, select.POLLIN)
        for _ in range(2000):
            if inner := children(self.pid):
                for pid in inner:
                    send(pid, signal.SIGKILL)
                return
            if poll.poll(5):
                return
        send(self.pid, signal.SIGKILL)

    def finish(self) -> End:
        """Wait until it is gone (it is killed, or its `exit_fd` is ready), read what is left, clean up."""
        if self._end is None:
            _, _, usage = os.wait4(self.pid, 0)
            self._process.returncode = 0  # it has been waited for; Popen need not
            for fd in list(self._readers):
                while fd in self._readers and self._read(fd):
                    pass
            self._close()
            self._end = self._ended(max(usage.ru_utime + usage.ru_stime, self.looked_cpu_seconds))
        return self._end

    def _close(self) -> None:
        for fd in {*self._readers, self.exit_fd} - {-1}:
            os.close(fd)
        self._readers.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def _ended(self, cpu_seconds: float) -> End:
        # what comes after a start and can't be read is the end of the program's sandbox, not of the machine
        report = _REPORT.match(self._report.decode("ascii", "replace"))
        start_seconds, answer, last = report.groups() if report else (None, None, None)
        exit_code = signum = None
        status, finished, no_memory, in_thread = map(int, last.split()) if last else (None, 0, 0, 0)
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            exit_code, signum = (code, None) if code >= 0 else (None, -code)
        return End(
            started=start_seconds is not None,
            killed=self.killed,
            exit_code=exit_code,
            signal=signum,
            finished=bool(finished),
            out_of_memory=bool(no_memory),
            thread_out_of_memory=bool(in_thread),
            cpu_seconds=max(0.0, cpu_seconds - float(start_seconds or 0)),
            stdout=bytes(self._stdout),
            stderr=bytes(self._stderr),
            answer=answer,
        )


def _pipe(after: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe: my end to read, which never blocks, and their end to write, closed `after` the start."""
    mine, theirs = os.pipe()
    os.set_blocking(mine, False)
    after.callback(os.close, theirs)
    return mine, theirs


def _memory_file(after: contextlib.ExitStack, content: bytes, *, sealed: bool = False) -> int:
    """A file in memory with this content, at its start; a `sealed` one can't be changed by who gets it."""
    fd = os.memfd_create("cadre", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    after.callback(os.close, fd)
    with open(os.dup(fd), "wb") as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    if sealed:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd
