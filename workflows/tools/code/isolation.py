"""The isolation that a sandbox is given, and the command line that starts an interpreter under it.

With bubblewrap a program sees: an interpreter, its standard library and its shared libraries, all
read-only; a `/proc` of its own processes; `/dev/null`, `zero` and `urandom`; an empty `/tmp` of limited
size. It has no network, no environment but a fixed one, no privilege, and no process to see but its
own. What it may import is the standard library, but for extensions that serve terminals, NIS and
database files, and what `packages` adds.

The kernel counts no processes of root, not even under another number in a user namespace, so root drops
to `nobody` first. The interpreter must be readable by that user: one under `/root` is not, and then
the system's own is taken.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

from workflows.errors import UsageError
from workflows.tools.code import seccomp
from workflows.tools.code.interpreter import Interpreter, find_interpreter

IsolationSetting = Literal["auto", "bwrap", "none"]

_NOBODY: Final = 65534


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What is asked for.

    Args:
        isolation: "auto" and "bwrap" run programs under bubblewrap, or not at all; "none" runs them as this
            machine's user, with limits but without walls.
        python: the interpreter for programs; None for this process's own, or else the system's.
        packages: folders that programs may import from, readable by the user that they run as.
    """

    isolation: IsolationSetting = "auto"
    python: str | None = None
    packages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.isolation not in get_args(IsolationSetting):
            known = ", ".join(get_args(IsolationSetting))
            raise UsageError(f"no isolation {self.isolation!r} for a sandbox; one of {known}")
        object.__setattr__(self, "packages", tuple(self.packages))

    @classmethod
    def of(cls, value: Sandbox | str) -> Sandbox:
        """From the name of an isolation, or as it is.

        Raises:
            UsageError: no such isolation.
        """
        return value if isinstance(value, Sandbox) else cls(value)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Isolation:
    """How to start an interpreter: `command` and then the interpreter's own arguments."""

    kind: Literal["bwrap", "none"]
    command: tuple[str, ...]
    environment: dict[str, str]
    python: str  # the interpreter
    description: str  # one line for `check`
    modules: bytes = field(repr=False)  # what runs inside, compiled, for `process.py`
    packages: tuple[str, ...] = ()  # further folders that programs import from
    seccomp: bytes | None = field(default=None, repr=False)
    user: int | None = None  # who programs run as, where that is not this process's user


def untried(sandbox: Sandbox) -> Isolation:
    """The isolation that `sandbox` names, before any program has run under it; `find.py` tries it out.

    Raises:
        UsageError: bubblewrap, setpriv, an interpreter or a folder of packages is missing, and what to do.
    """
    become = _drop_privileges()
    interpreter = find_interpreter(sandbox.python, become)
    for folder in sandbox.packages:
        if not Path(folder).is_dir():
            raise UsageError(f"[sandbox] packages: there is no folder {folder!r}")
    make = _no_walls if sandbox.isolation == "none" else _bubblewrap
    return make(interpreter, become, sandbox.packages)


REMEDY: Final = (
    "Cadre runs what a model wrote under bubblewrap only. Install it, 0.7 or later (Debian, Ubuntu: apt-get "
    "install bubblewrap; Fedora: dnf install bubblewrap), and where the machine forbids user namespaces, "
    "allow them (sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; "
    'in a container: --security-opt seccomp=unconfined). On a throw-away machine, isolation = "none" under '
    "[sandbox] runs programs without walls"
)


def _drop_privileges() -> tuple[str, ...]:
    if os.getuid() != 0:
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise UsageError(
            "as root, programs are run as the user nobody, and that takes setpriv, which is not here; "
            "install util-linux, or run Cadre as another user"
        )
    return (setpriv, f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--inh-caps=-all")


def _environment(libraries: Sequence[str]) -> dict[str, str]:
    folders = dict.fromkeys(os.path.dirname(_without_linked_top(library)) for library in libraries)
    return {
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
        "LD_LIBRARY_PATH": ":".join(folders),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",  # a program's sets have the same order every time
        "PYTHONUTF8": "1",
    }


def _python(interpreter: Interpreter) -> tuple[str, ...]:
    # not -I: it would ignore PYTHONHASHSEED; the environment is ours and no site folder is looked at (-S)
    return (interpreter.executable, "-s", "-S")


def _bubblewrap(interpreter: Interpreter, become: tuple[str, ...], packages: tuple[str, ...]) -> Isolation:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise UsageError(f"there is no bubblewrap (bwrap) on this machine. {REMEDY}")
    streams = (("--symlink", f"/proc/self/fd/{n}", f"/dev/{name}") for n, name in enumerate(_STREAMS))
    devices = (("--dev-bind", device, device) for device in _DEVICES)
    command = (
        *(*become, bwrap, *_WALLS),
        *("--size", str(TMP_BYTES), "--tmpfs", "/tmp", "--proc", "/proc"),
        *_binds(interpreter, packages),
        *("--dir", "/dev", "--symlink", "/proc/self/fd", "/dev/fd"),
        *(word for words in (*streams, *devices) for word in words),
        *("--remount-ro", "/", "--chdir", "/tmp"),
    )
    version = subprocess.run([bwrap, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    filtered = seccomp.program()
    description = (
        f"{version or 'bubblewrap'}, programs run as {'nobody' if become else 'this user'} with Python "
        f"{interpreter.version} ({interpreter.executable}), "
        f"{'system calls filtered' if filtered else 'no filter of system calls for this processor'}"
    )
    return Isolation(
        kind="bwrap",
        command=(*command, "--", *_python(interpreter)),
        python=interpreter.executable,
        modules=interpreter.modules,
        environment=_environment(interpreter.libraries),
        description=description,
        packages=packages,
        seccomp=filtered,
        user=_NOBODY if become else None,
    )


_WALLS: Final = ("--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "sandbox")
TMP_BYTES: Final = 64 * 2**20
_STREAMS: Final = ("stdin", "stdout", "stderr")
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/urandom")


def _binds(interpreter: Interpreter, packages: Sequence[str]) -> Iterator[str]:
    """Arguments that show the interpreter, its libraries and `packages`, each at its own path."""
    shown = [interpreter.executable, *interpreter.folders, *interpreter.libraries, *packages]
    for top in sorted({"/" + Path(path).parts[1] for path in shown}):
        if os.path.islink(top):  # /lib is usr/lib on most systems
            yield from ("--symlink", os.readlink(top), top)
    for path in shown:
        yield from ("--ro-bind", os.path.realpath(path), _without_linked_top(path))
    for folder in interpreter.folders:
        for inner in ("site-packages", "dist-packages"):
            if os.path.isdir(os.path.join(folder, inner)):
                yield from ("--tmpfs", _without_linked_top(os.path.join(folder, inner)))


def _without_linked_top(path: str) -> str:
    """The path with its first folder resolved: mount points can't lie behind a symlink."""
    top = "/" + Path(path).parts[1]
    return os.path.realpath(top) + path[len(top) :]


def _no_walls(interpreter: Interpreter, become: tuple[str, ...], packages: tuple[str, ...]) -> Isolation:
    return Isolation(
        kind="none",
        command=(*become, *_python(interpreter)),
        python=interpreter.executable,
        modules=interpreter.modules,
        environment=_environment(()),
        description=(
            f"none: programs run as {'nobody' if become else 'this user'} with Python {interpreter.version}, "
            "and can read this machine's files and use its network"
        ),
        packages=packages,
        user=_NOBODY if become else None,
    )
