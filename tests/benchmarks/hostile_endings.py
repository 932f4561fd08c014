"""Hostile programs that end in every way but the normal one."""

# ruff: noqa: E501  (programs are quoted as they are)

from __future__ import annotations

from tests.benchmarks.hostile_family import ANY_FAILURE, STDIO, family, pick


@family(STDIO, "runtime_error")
def early_exit(i: int) -> str:
    return f"import os, sys\nprint(42)\nsys.stdout.flush()\nos._exit({pick(i, '0', '0', '1', str(i % 256))})"


@family(STDIO, "runtime_error")
def bad_exit_after_right_output(i: int) -> str:
    return "print(42, flush=True)\n" + pick(
        i,
        "raise SystemExit(1)",
        "exit(3)",
        "raise KeyboardInterrupt",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "import os\nos.abort()",
        "assert False",
        "import ctypes\nctypes.string_at(0)",
        "import atexit, os\natexit.register(lambda: os._exit(0))",
        "import sys\nsys.exit('time limit exceeded')",
        "import os\nos.kill(0, 15)",
    )


@family(STDIO, *ANY_FAILURE)
def signals(i: int) -> str:
    return "import os, signal, time\n" + pick(
        i,
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "os.kill(-1, signal.SIGKILL)\nprint('alone')",
        "os.kill(1, signal.SIGKILL)\nos.kill(os.getppid(), signal.SIGSTOP)\nprint('alive')",
        "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\nwhile True: pass",
        "signal.signal(signal.SIGXCPU, lambda *_: None)\nwhile True: pass",
        "os.killpg(0, signal.SIGTERM)",
        "signal.alarm(1)\ntime.sleep(5)",
        "for p in range(1, 3000):\n    try: os.kill(p, 9)\n    except OSError: pass",
    )


@family(STDIO, *ANY_FAILURE)
def survivors(i: int) -> str:
    return f"""
    import os, sys, time, signal
    for _ in range({1 + i % 5}):
        if os.fork() == 0:
            os.setsid()
            for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(s, signal.SIG_IGN)
            if os.fork() == 0:
                {pick(i, "os.closerange(0, 64)", "pass")}
                time.sleep(1000)
            os._exit(0)
    print('done')
    """


@family(STDIO, *ANY_FAILURE)
def deep_recursion(i: int) -> str:
    return pick(
        i,
        "def f(): f()\nf()",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
        "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __getattr__(self, n): return getattr(self, n + 'x')\nA().x",
        "x = []\nfor _ in range(10**6): x = [x]\nprint(x == x.copy())\nrepr(x)",
        "import sys\nsys.setrecursionlimit(10**9)\nfrom functools import lru_cache\n@lru_cache(None)\ndef f(n): return f(n + 1)\nf(0)",
    )


@family(STDIO, *ANY_FAILURE)
def closed_streams(i: int) -> str:
    return "import os, sys\n" + pick(
        i,
        "sys.stdout.close()",
        "os.close(1)\nprint(42)",
        "os.closerange(0, 1024)",
        "sys.stdin.close()\ninput()",
        "os.dup2(0, 1)\nprint(42)",
        "sys.stdout = None\nprint(42)",
    )


@family(STDIO, *ANY_FAILURE)
def ends_by_atexit(i: int) -> str:
    return "import atexit, os\n" + pick(
        i,
        "print(42)\natexit.register(lambda: print(43))",
        "atexit.register(lambda: [0 for _ in iter(int, 1)])",
        "atexit._clear()\nprint(42)\nos._exit(0)",
        "atexit._clear()\natexit.register(lambda: os.abort())\nprint(42)",
    )
