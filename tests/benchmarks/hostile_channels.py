"""Hostile programs that write where only their keeper should, or make the machine look guilty."""

# ruff: noqa: E501  (programs are quoted as they are)

from __future__ import annotations

from tests.benchmarks.hostile_family import ANY_FAILURE, ASSERT, CALL, STDIO, family, pick

_BYTES = (
    "b'x\\n'",
    "b'\\n'",
    "b'\\xff\\x00\\r{\\n'",
    "b'{not json\\n'",
    "b'MMMFFF'",
    "b'0 1 0\\n'",
    """b'{"t":["gone"]}\\n'""",
    """b'{"t":["too_long"]}\\n'""",
    """b'{"t":["value",{"i":"zz"}]}\\n'""",
    "b'[' * 60000 + b'\\n'",
    "b'x' * 60000",
)
_EVERYWHERE = """
import os
def everywhere(data):
    for fd in {descriptors}:
        try: {write}
        except Exception: pass
"""


def _writer(i: int) -> str:
    descriptors = pick(i // 3, "range(3, 64)", "map(int, os.listdir('/proc/self/fd'))", "range(63, 2, -1)")
    write = pick(
        i // 2,
        "os.write(fd, data)",
        "open(f'/proc/self/fd/{fd}', 'wb', 0).write(data)",
        "os.write(os.dup(fd), data)",
        "os.writev(fd, [data, data])",
    )
    return _EVERYWHERE.format(descriptors=descriptors, write=write)


def _attack(i: int) -> str:
    """Writes on loading, in the call, behind the call, from a thread, a fork or at the end."""
    data = pick(i, *_BYTES)
    return _writer(i) + pick(
        i,
        f"everywhere({data})\ndef solve(a, b): return 0",
        f"def solve(a, b):\n    everywhere({data})\n    return 0",
        f"import atexit\natexit.register(everywhere, {data})\ndef solve(a, b): raise SystemExit",
        f"import threading\nthreading.Thread(target=everywhere, args=({data},)).start()\ndef solve(a, b): return 0",
        f"if os.fork() == 0:\n    while True: everywhere({data})\ndef solve(a, b): return 0",
        f"def solve(a, b):\n    everywhere({data})\n    os._exit(0)",
        f"class Late:\n    def __del__(self): everywhere({data})\nlate = Late()\ndef solve(a, b): return None",
    )


@family(CALL, *ANY_FAILURE)
def writes_into_the_channel_of_a_call(i: int) -> str:
    return _attack(i)


@family(ASSERT, *ANY_FAILURE)
def writes_into_the_channel_of_a_test(i: int) -> str:
    return _attack(i)


@family(STDIO, *ANY_FAILURE)
def writes_into_the_channels_of_a_script(i: int) -> str:
    return _attack(i) + "\ntry: solve(1, 2)\nexcept SystemExit: pass"


@family(CALL, *ANY_FAILURE)
def moves_its_descriptors(i: int) -> str:
    return (
        pick(
            i,
            "import os\nfor a in range(3, 12):\n    for b in range(3, 12):\n        try: os.dup2(a, b)\n        except OSError: pass",
            "import os\nos.closerange(3, 64)",
            "import os\nos.closerange(0, 64)",
            "import os\nfor fd in range(3, 12):\n    try: os.dup2(fd, 1)\n    except OSError: pass\nprint('x')",
            "import os\nfor fd in range(3, 12):\n    try: os.set_blocking(fd, False)\n    except OSError: pass",
            "import fcntl\nfor fd in range(3, 12):\n    try: fcntl.fcntl(fd, 1031, 4096)\n    except OSError: pass",
            "import os\nfor fd in range(3, 12):\n    try: os.read(fd, 1 << 20)\n    except OSError: pass",
        )
        + "\ndef solve(a, b): return 0"
    )


@family(STDIO, "time_limit")
def sleeps_so_that_the_machine_looks_slow(i: int) -> str:
    return pick(
        i,
        "import ctypes, time\nif ctypes.CDLL(None).vfork() == 0:\n    time.sleep(1000)",
        "import ctypes, time\nctypes.CDLL(None).vfork() or ctypes.CDLL(None).pause()",
        "import time\nwhile True: time.sleep(0.02)",
        "import os\nos.kill(os.getpid(), 19)",
        "import threading\nthreading.Event().wait()",
    )
