"""An engine core, vLLM's child process, does not outlive the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

CHILD = "import stages.engines.vllm.worker, time; print('up', flush=True); time.sleep(600)"
PARENT = f"""
import os, subprocess, sys, time
if sys.argv[1] == "owner":
    os.environ["CADRE_ENGINE_OWNER"] = str(os.getpid())
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def _start(who: str) -> tuple[subprocess.Popen[str], int]:
    """A process and its child's id, once the child has imported the module."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, who], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def _ends(pid: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.1)
    return False


def test_a_killed_owner_takes_its_engine_core_with_it() -> None:
    parent, child = _start("owner")
    assert not _ends(child, 1.5)
    parent.kill()
    parent.wait()
    assert _ends(child, 60)


def test_a_process_that_only_imports_the_module_is_left_alone() -> None:
    parent, child = _start("stranger")
    parent.kill()
    parent.wait()
    assert not _ends(child, 2.5)
    os.kill(child, signal.SIGKILL)
