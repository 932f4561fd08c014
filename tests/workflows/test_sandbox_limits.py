"""How programs in the sandbox end: limits, processes that they leave, load and cancellation."""

# ruff: noqa: E501  (programs are quoted as they are)

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.benchmarks.hostile import _processes
from tests.support.boxes import REPOSITORY, WALLS, run
from workflows.tools.code.cases import read_tests
from workflows.tools.code.find import find_isolation
from workflows.tools.code.isolation import Isolation, Sandbox
from workflows.tools.code.judge import CodeJudge, JudgeLimits

pytestmark = pytest.mark.skipif(WALLS is None, reason="no bubblewrap that works on this machine")


@pytest.fixture(params=["bwrap", "none"])
def either(request: pytest.FixtureRequest) -> Isolation:
    return find_isolation(Sandbox(request.param))


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name in the environment of all that the sandbox starts, to find survivors by."""
    name = f"CADRE_MARK_{uuid.uuid4().hex}"
    for kind in ("auto", "bwrap", "none"):
        monkeypatch.setitem(find_isolation(Sandbox(kind)).environment, name, "1")
    return name


@pytest.mark.parametrize(
    ("code", "exit_code", "signal", "finished"),
    [
        ("pass", 0, None, True),
        ("exit()", 0, None, True),
        ("quit(0)", 0, None, True),
        ("raise SystemExit", 0, None, True),
        ("import atexit; atexit.register(print, 1)", 0, None, True),
        ("import threading; threading.Thread(target=print).start()", 0, None, True),
        ("exit(3)", 3, None, True),
        ("1 / 0", 1, None, True),
        ("x = = 1", 1, None, True),
        ("import os; os._exit(0)", 0, None, False),
        ("import atexit, os; atexit.register(os._exit, 0)", 0, None, False),
        ("import os; os.kill(os.getpid(), 9)", None, 9, False),
        ("import os; os.abort()", None, 6, False),
        ("import ctypes; ctypes.string_at(0)", None, 11, False),
        ("import os\nif os.fork() == 0: raise SystemExit\nos.wait()\nos._exit(0)", 0, None, False),
    ],
)
def test_how_a_program_ended(
    code: str, exit_code: int | None, signal: int | None, finished: bool, either: Isolation
):
    end = run(code, isolation=either)
    assert (end.killed, end.exit_code, end.signal, end.finished) == (None, exit_code, signal, finished)


@pytest.mark.parametrize(
    ("code", "killed", "limits"),
    [
        ("while True: pass", "cpu", {"cpu_seconds": 0.3}),
        ("while True:\n  try:\n    while True: pass\n  except BaseException: pass", "cpu", {"cpu_seconds": 0.3}),
        ("import os\nwhile True:\n  if os.fork() == 0:\n    for _ in range(10**5): pass\n    os._exit(0)\n  os.wait()",
         "cpu", {"cpu_seconds": 0.3}),
        ("print('x' * 10**6)", "output", {"output": 1000}),
        ("while True: print('x', flush=True)", "output", {"output": 1000}),
        ("import sys\nwhile True: sys.stderr.write('x' * 99)", "output", {"output": 1000}),
        ("import time; time.sleep(99)", "idle", {"idle_seconds": 0.3}),
        ("import time\nwhile True: time.sleep(0.002)", "idle", {"idle_seconds": 0.3}),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "idle", {"idle_seconds": 0.3}),
        ("import threading as t; [t.Thread(target=t.Event().wait).start() for _ in range(5)]", "idle", {"idle_seconds": 0.3}),
        ("import os, time\nfor _ in range(6):\n  if os.fork() == 0:\n    x = b'x' * (50 << 20); time.sleep(9)\ntime.sleep(9)",
         "memory", {"memory": 150 << 20}),
    ],
)  # fmt: skip
def test_limits_end_a_program(code: str, killed: str, limits: dict[str, Any], either: Isolation, mark: str):
    assert run(code, isolation=either, **limits).killed == killed
    assert list(_processes(mark)) == []


def test_memory_ends_in_an_error_that_is_told(either: Isolation):
    end = run("x = [0] * 10**9", isolation=either, memory=200 << 20)
    assert (end.killed, end.out_of_memory, end.exit_code) == (None, True, 1)


COUNTS = """
import os, time
made = 0
try:
    while made < 500:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        made += 1
except OSError:
    pass
print(made)
"""


def test_processes_are_limited_for_root_too():
    end = run(COUNTS, processes=16)
    assert 8 <= int(end.stdout) <= 16


@pytest.mark.parametrize(
    "code",
    [
        "f = [open('/tmp/x', 'w') for _ in range(200)]",
        "open('/tmp/x', 'wb').write(b'x' * (40 << 20))",
        "for n in range(9): open(f'/tmp/{n}', 'wb').write(b'x' * (20 << 20))",
    ],
)
def test_files_are_limited(code: str):
    assert run(code).exit_code != 0


SURVIVORS = """
import os, signal, time
for number in range(3):
    if os.fork() == 0:
        os.setsid()
        for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(s, signal.SIG_IGN)
        if os.fork() == 0:
            if number: os.closerange(0, 64)
            time.sleep(1000)
        os._exit(0)
print('done')
"""


def test_no_process_outlives_its_program(either: Isolation, mark: str):
    end = run(SURVIVORS, isolation=either)
    assert (end.exit_code, end.stdout) == (0, b"done\n")
    assert list(_processes(mark)) == []


BURN = (
    "import time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: pass\nprint('done')"
)


@pytest.fixture
def busy_machine() -> Iterator[None]:
    burners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(3 * len(os.sched_getaffinity(0)))
    ]
    yield
    for burner in burners:
        burner.kill()
        burner.wait()


def test_verdicts_do_not_depend_on_load(busy_machine: None):
    """A wall clock of a second, or of a third of the idle limit, would end these beside six others."""
    working = run(BURN.format(seconds=0.5), cpu_seconds=1.0, idle_seconds=0.5)
    assert (working.killed, working.stdout) == (None, b"done\n")
    assert run(BURN.format(seconds=9), cpu_seconds=0.5, idle_seconds=0.5).killed == "cpu"
    assert run("import time; time.sleep(99)", cpu_seconds=0.5, idle_seconds=0.5).killed == "idle"


def test_many_threads_judge_as_one_does():
    tests = read_tests([{"input": "3", "output": "9"}])
    judge = pickle.loads(pickle.dumps(CodeJudge()))
    codes = [f"print({n} * int(input()))" for n in range(12)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda code: judge.grade(code, tests).verdict, codes))
    assert together == ["passed" if n == 3 else "wrong_answer" for n in range(12)]


def test_cancelling_ends_the_programs(mark: str):
    judge = CodeJudge(JudgeLimits(idle_seconds=60))
    tests = read_tests([{"input": "", "output": ""}] * 4)

    async def cancelled() -> None:
        grading = asyncio.create_task(judge.agrade("import time; time.sleep(60)", tests))
        while not list(_processes(mark)):
            await asyncio.sleep(0.02)
        grading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await grading

    asyncio.run(cancelled())
    while list(_processes(mark)):  # it hangs here if they stay
        time.sleep(0.05)


def test_the_sandbox_of_a_deserted_judge_ends(mark: str):
    """A judge's process that is killed takes its programs along."""
    code = (
        "from workflows.tools.code.find import *; from workflows.tools.code.watch import *; "
        f"i = find_isolation(Sandbox()); i.environment[{mark!r}] = '1'; "
        "run(i, {'mode': 'script', 'code': 'import time; time.sleep(60)', 'prelude': ''}, Limits(idle_seconds=60))"
    )
    judge = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY)
    while len(list(_processes(mark))) < 3:
        assert judge.poll() is None
        time.sleep(0.05)
    judge.kill()
    judge.wait()
    while list(_processes(mark)):  # it hangs here if they stay
        time.sleep(0.05)
