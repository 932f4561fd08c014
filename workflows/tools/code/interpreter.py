"""The interpreter that programs run under, and what it needs to run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from workflows.errors import UsageError

_MIN_VERSION: Final = (3, 10)
_PROBE: Final = """
import sys, sysconfig, glob, os
if not os.access(sys.executable, os.R_OK):
    sys.exit("that user can't read it")  # root's rights last until it starts
paths = sysconfig.get_paths()
dynload = os.path.join(paths["platstdlib"], "lib-dynload")
print(sys.version.split()[0], os.path.realpath(sys.executable), sep="\\n")
print(paths["stdlib"], paths["platstdlib"], sep="\\n")
print(*glob.glob(os.path.join(dynload, "*.so")), sep="\\n")
"""
# Compiled once by the interpreter that will run them: compiling anew would take as long as starting it.
_COMPILE: Final = """
import marshal, sys
texts = eval(sys.stdin.read())
sys.stdout.buffer.write(marshal.dumps([(name, compile(text, name, "exec")) for name, text in texts]))
"""
# In this order, each may import those before it; all go by the names that they have here.
_MODULES: Final = ("codec", "lines", "box_cases", "box")
# for terminals, NIS and database files: programs do without, and their libraries are many
_LEFT_OUT: Final = ("readline", "_curses", "nis", "_dbm", "_gdbm", "_tkinter", "_uuid")
_LIBRARY: Final = re.compile(r"(/\S+) \(0x")


@dataclass(frozen=True, slots=True)
class Interpreter:
    version: str
    executable: str
    folders: tuple[str, ...]  # of the standard library
    modules: bytes = field(repr=False)
    libraries: tuple[str, ...]  # shared libraries, by the names that the loader looks for


def find_interpreter(python: str | None, become: Sequence[str]) -> Interpreter:
    """The first of the possible interpreters that the programs' user can start.

    Args:
        python: the only one to try; None for this process's own, and then the system's.
        become: the command that changes to the programs' user, empty where that is this one.

    Raises:
        UsageError: none of them, with the reason for each.
    """
    own = os.path.join(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    possible = [python] if python else [own, "/usr/bin/python3", "/usr/local/bin/python3"]
    problems = []
    for path in possible:
        try:
            found = subprocess.run(
                [*become, path, "-I", "-S", "-c", _PROBE],
                capture_output=True,
                text=True,
                check=False,
                env={},
                cwd="/",
                timeout=60,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            problems.append(f"{path}: {error}")
            continue
        if found.returncode != 0:
            problems.append(f"{path}: {(found.stderr.strip().splitlines() or ['it fails'])[-1]}")
            continue
        version, executable, *rest = found.stdout.split("\n")
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < _MIN_VERSION:
            problems.append(f"{path}: Python {version}, 3.10 or later is needed")
            continue
        folders = dict.fromkeys(rest[:2])
        extensions = [f for f in rest[2:] if f and not os.path.basename(f).startswith(_LEFT_OUT)]
        libraries = _shared_libraries([executable, *extensions])
        return Interpreter(version, executable, tuple(folders), _compile([*become, path]), libraries)
    who = "the user nobody, as whom root runs programs," if become else "this user"
    raise UsageError(
        f"no Python that {who} can start: {'; '.join(problems)}. Install one (Debian: apt-get install "
        "python3), or name one as [sandbox] python"
    )


def _compile(python: Sequence[str]) -> bytes:
    folder = Path(__file__).parent
    names = ["__main__" if module == "box" else f"workflows.tools.code.{module}" for module in _MODULES]
    texts = [(folder / f"{module}.py").read_text("utf-8") for module in _MODULES]
    found = subprocess.run(
        [*python, "-I", "-S", "-c", _COMPILE],
        input=repr(list(zip(names, texts, strict=True))).encode(),
        capture_output=True,
        check=True,
        env={},
        cwd="/",
        timeout=60,
    )
    return found.stdout


def _shared_libraries(files: Sequence[str]) -> tuple[str, ...]:
    ldd = shutil.which("ldd")
    if ldd is None:
        raise UsageError(
            "the sandbox asks ldd which libraries an interpreter needs, and there is no ldd here"
        )
    found = subprocess.run([ldd, *files], capture_output=True, text=True, check=False, timeout=60)
    return tuple(sorted(set(_LIBRARY.findall(found.stdout))))
