"""Hostile programs that use the machine up."""

# ruff: noqa: E501  (programs are quoted as they are)

from __future__ import annotations

from tests.benchmarks.hostile_family import ANY_FAILURE, MARK, STDIO, family, pick


@family(STDIO, *ANY_FAILURE)
def fork_bomb(i: int) -> str:
    again = pick(i, "", "try:\n        os.fork()\n    except OSError: pass", "os.forkpty()")
    return f"import os\nwhile True:\n    {again or 'os.fork()'}\n"


@family(STDIO, *ANY_FAILURE)
def fork_bomb_of_daemons(i: int) -> str:
    return f"""
    import os, time
    for _ in range({20 + i}):
        try:
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep({5 + i % 50})
                os._exit(0)
        except OSError:
            break
    print({i})
    """


@family(STDIO, *ANY_FAILURE)
def thread_bomb(i: int) -> str:
    return f"""
    import threading, time
    while True:
        try:
            threading.Thread(target=time.sleep, args=({60 + i},)).start()
        except RuntimeError:
            {pick(i, "pass", "raise", "break")}
    """


@family(STDIO, "output_limit", "memory_limit")
def endless_stdout(i: int) -> str:
    text = "x" * (1 + 97 * i % 5000)
    return pick(
        i,
        f"while True: print({text!r})",
        f"import sys\nwhile True: sys.stdout.write({text!r} * 1000)",
        f"import os\nwhile True: os.write(1, b'{text}')",
        f"print({text!r} * 10**8)",
    )


@family(STDIO, "output_limit")
def endless_stderr(i: int) -> str:
    return f"import sys\nprint(42)\nwhile True: sys.stderr.write('{i}' * 1000)"


@family(STDIO, "memory_limit")
def endless_memory(i: int) -> str:
    return pick(
        i,
        f"x = [0] * {10 ** (9 + i % 3)}",
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
        "x = 'a'\nwhile True: x += x",
        f"x = {{}}\nfor i in range(10**9): x[i] = 'x' * {100 + i}",
        "import mmap\nx = []\ntry:\n  while True: x.append(mmap.mmap(-1, 1 << 26))\nexcept OSError: raise MemoryError",
        "import threading\nfor _ in range(4): threading.Thread(target=lambda: [bytes(1 << 20) for _ in iter(int, 1)]).start()",
    )


@family(STDIO, *ANY_FAILURE)
def memory_of_many(i: int) -> str:
    return f"""
    import os, time
    for _ in range({10 + i % 15}):
        if os.fork() == 0:
            x = bytearray({100 + i % 50} << 20)
            for at in range(0, len(x), 4096): x[at] = 1
            time.sleep(30)
            os._exit(0)
    time.sleep(30)
    """


@family(STDIO, "time_limit")
def endless_loop(i: int) -> str:
    return pick(
        i,
        "while True: pass",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
        "x = 3\nwhile True: x = x * x % (10**2000)",
        "import signal\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass",
        "import threading\nfor _ in range(4): threading.Thread(target=lambda: sum(1 for _ in iter(int, 1))).start()",
        "import os\nos.nice(19)\nwhile True: pass",
    )


@family(STDIO, "time_limit")
def work_of_children(i: int) -> str:
    ignore = pick(
        i, "", "import signal\ntry: signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nexcept OSError: pass\n"
    )
    return f"""import os, time
{ignore}
while True:
    pid = os.fork()
    if pid == 0:
        end = time.process_time() + {0.01 + i % 7 / 100}
        while time.process_time() < end: pass
        os._exit(0)
    try: os.waitpid(pid, 0)
    except OSError: pass
"""


@family(STDIO, "time_limit")
def endless_sleep(i: int) -> str:
    return pick(
        i,
        f"import time\ntime.sleep({100 + i})",
        "import threading\nthreading.Event().wait()",
        "import os\nr, w = os.pipe()\nos.read(r, 1)",
        "import time\nwhile True: time.sleep(0.01)",
        "import signal\nsignal.pause()",
        "import os, time\nif os.fork() == 0: time.sleep(99)\nos.wait()",
        "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    )


@family(STDIO, *ANY_FAILURE)
def full_disk(i: int) -> str:
    where = pick(i, "/tmp", ".", "/dev/shm", "/var/tmp", "/dev", "/")
    return f"""
    import os
    for n in range(1000):
        with open('{where}/{MARK}-{i}-' + str(n), 'wb') as f:
            f.write(b'x' * (1 << 22))
    """


@family(STDIO, *ANY_FAILURE)
def many_files(i: int) -> str:
    return f"""
    import os
    files = []
    while True:
        files.append(open('/tmp/{MARK}-{i}-' + str(len(files)), 'w'))
    """


@family(STDIO, *ANY_FAILURE)
def kernel_memory(i: int) -> str:
    return f"""
    import ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
    got = []
    for _ in range({50 + i}):
        got.append(libc.shmget(0, 1 << 28, 0o1600))
        try: got.append(os.memfd_create('x'))
        except OSError: got.append(-1)
    print('reached' if max(got) >= 0 else 'refused')
    """
