"""What a program in the sandbox can see and use, and what becomes of it and its children."""

# ruff: noqa: E501  (programs are quoted as they are)

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.assemble import weighted_rewards, workflow_options
from pipeline.settings.reading import parse_settings
from pipeline.settings.schema import Settings
from tests.benchmarks.hostile import _processes, grade_all
from tests.benchmarks.hostile_family import programs
from workflows.errors import UsageError
from workflows.loading import load_workflow
from workflows.tools.code import seccomp
from workflows.tools.code.cases import read_tests
from workflows.tools.code.find import find_isolation
from workflows.tools.code.isolation import Isolation, Sandbox
from workflows.tools.code.judge import CodeJudge, JudgeLimits
from workflows.tools.code.limits import End, Limits
from workflows.tools.code.watch import run as run_box

REPOSITORY = Path(__file__).parents[2]


def _isolation_or_none() -> Isolation | None:
    try:
        return find_isolation(Sandbox())
    except UsageError:
        return None


WALLS = _isolation_or_none()
pytestmark = pytest.mark.skipif(WALLS is None, reason="no bubblewrap that works on this machine")


@pytest.fixture(params=["bwrap", "none"])
def either(request: pytest.FixtureRequest) -> Isolation:
    return find_isolation(Sandbox(request.param))


def run(code: str, stdin: bytes = b"", isolation: Isolation | None = None, **limits: Any) -> End:
    given = {"cpu_seconds": 2.0, "idle_seconds": 5.0, **limits}
    job = {"mode": "script", "code": code, "prelude": ""}
    end = run_box(isolation or find_isolation(Sandbox()), job, Limits(**given), stdin=stdin)
    assert end.started, end
    return end


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name in the environment of all that the sandbox starts, to find survivors by."""
    name = f"CADRE_MARK_{uuid.uuid4().hex}"
    for kind in ("auto", "bwrap", "none"):
        monkeypatch.setitem(find_isolation(Sandbox(kind)).environment, name, "1")
    return name


SEES = """
import glob, json, os, socket, sys
def can(act):
    try:
        return act() or True
    except OSError as error:
        return False
paths = json.loads(input())
print(json.dumps({
    "root": sorted(os.listdir("/")),
    "dev": sorted(os.listdir("/dev")),
    "visible": [p for p in paths if os.path.exists(p)],
    "writable": [p for p in ["/", "/usr", "/usr/lib", "/dev", "/etc", os.path.dirname(os.__file__), "/proc/sys"]
                 if os.access(p, os.W_OK) and can(lambda: open(os.path.join(p, "cadre-x"), "w"))],
    "names": sorted(os.environ),
    "host": socket.gethostname(),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "processes": [p for p in os.listdir("/proc") if p.isdecimal()],
    "uid": os.getuid(),
    "tmp": os.listdir("/tmp"),
    "here": os.getcwd(),
    "path": sys.path,
    "packages": glob.glob("/usr/**/site-packages/*", recursive=True) + glob.glob("/usr/**/dist-packages/*", recursive=True),
}))
"""


def test_a_program_sees_an_interpreter_and_nothing_of_the_host(tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    paths = [
        str(secret),
        str(REPOSITORY),
        "/etc",
        "/etc/passwd",
        "/root",
        "/home",
        "/var",
        "/sys",
        "/run",
        "/bin/sh",
    ]
    end = run(SEES, json.dumps(paths).encode())
    assert end.exit_code == 0, end.stderr
    seen = json.loads(end.stdout)
    assert set(seen["root"]) <= {
        "dev",
        "lib",
        "lib64",
        "proc",
        "tmp",
        "usr",
        *_tops(find_isolation(Sandbox()).python),
    }
    assert set(seen["dev"]) == {"fd", "null", "stderr", "stdin", "stdout", "urandom", "zero"}
    assert seen["visible"] == []
    assert seen["writable"] == []
    assert not {n for n in seen["names"] if n in os.environ} - {"HOME", "LANG", "PATH", "PWD"} - _THREADS
    assert seen["host"] == "sandbox"
    assert seen["interfaces"] == ["lo"]
    assert seen["processes"] == ["1", "2"]
    assert seen["uid"] != 0
    assert (seen["tmp"], seen["here"]) == ([], "/tmp")
    assert not [p for p in seen["path"] if "site-packages" in p or "dist-packages" in p]
    assert seen["packages"] == []


_THREADS = {
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHASHSEED",
    "PYTHONUTF8",
} | {"LD_LIBRARY_PATH"}


def _tops(path: str) -> set[str]:
    return {Path(path).parts[1]}


REFUSED = """
import ctypes, errno, os, signal, threading
libc = ctypes.CDLL(None, use_errno=True)
for call in [lambda: libc.unshare(0x10000000), lambda: libc.shmget(0, 4096, 0o1600), lambda: libc.ptrace(16, 1, 0, 0),
             lambda: libc.mount(b"x", b"/tmp", b"tmpfs", 0, None), lambda: libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)]:
    assert call() == -1 and ctypes.get_errno() == errno.EPERM, call
for refused in [lambda: os.memfd_create("x"), lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)]:
    try:
        refused()
    except PermissionError:
        continue
    raise SystemExit(f"not refused: {refused}")
assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
thread = threading.Thread(target=print, args=("threads run",))
thread.start()
thread.join()
"""


@pytest.mark.skipif(
    WALLS is None or WALLS.seccomp is None or os.uname().machine != "x86_64", reason="no filter"
)
def test_system_calls_that_programs_have_no_use_for_are_refused():
    end = run(REFUSED)
    assert (end.exit_code, end.stdout) == (0, b"threads run\n"), end.stderr


@pytest.mark.parametrize(
    "read",
    [
        "sys.stdin.read()",
        "sys.stdin.buffer.read().decode()",
        "open(0).read()",
        "open('/dev/stdin').read()",
        "b''.join(iter(lambda: os.read(0, 4096), b'')).decode()",
        "''.join(line for line in sys.stdin)",
        "input() + chr(10) + sys.stdin.read()",
    ],
)
def test_streams_are_real_pipes(read: str):
    text = "\n".join(map(str, range(50_000))) + "\nü\n"
    write = "sys.stdout.buffer.write(text.encode()); sys.stdout.flush(); os.write(1, b'!'); open(1, 'w').write('?')"
    end = run(f"import os, sys\ntext = {read}\n{write}", text.encode())
    assert end.stdout.decode() == text + "!?"
    assert (end.exit_code, end.finished) == (0, True)


@pytest.mark.parametrize("code", ["print(1)", "import sys; sys.stdin.close(); print(1)", "input(); print(1)"])
def test_input_need_not_be_read(code: str):
    end = run(code, b"x\n" * 500_000)
    assert (end.stdout, end.exit_code, end.finished) == (b"1\n", 0, True)


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


REACHES = """
import ctypes, os, signal
def reach(_):
    reached = []
    for path in ("/proc/1/mem", "/proc/1/environ", "/proc/1/maps", "/proc/1/fd"):
        try:
            os.listdir(path) if path.endswith("fd") else open(path, "rb").close()
            reached.append(path)
        except OSError:
            pass
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1):
        os.kill(1, signum)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # or its own memory is closed to it, too
    return reached, [has(word) for word in (b"plain-of-", b"text-of-")]

control = "plain-of-the-test"

def has(word):
    # whether it is somewhere in memory, followed by what is spelt backwards here
    for line in open("/proc/self/maps"):
        start, end = (int(x, 16) for x in line.split()[0].split("-"))
        try:
            with open("/proc/self/mem", "rb", buffering=0) as memory:
                memory.seek(start)
                data = memory.read(end - start)
        except (OSError, OverflowError):
            continue
        at = data.find(word)
        while at >= 0:
            if data[at + len(word):][:8][::-1] == b"tset-eht":
                return True
            at = data.find(word, at + 1)
    return False
"""


def test_a_program_can_not_reach_the_process_that_tests_it():
    tests = read_tests(
        ["# text-of-the-test\nassert reach(0) == reach(1) == ([], [True, False])"], fn_name="reach"
    )
    report = CodeJudge().grade(REACHES, tests)
    assert (report.verdict, report.reason) == ("passed", None)


def test_a_state_does_not_reach_the_next_case():
    keep = "import builtins, os\nprint(getattr(builtins, 'kept', 0), os.listdir('/tmp'))\nbuiltins.kept = 1\nopen('/tmp/x', 'w')"
    assert run(keep).stdout == run(keep).stdout == b"0 []\n"


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


def _open_up(folder: Path) -> None:
    """Let the programs' user in: pytest's folders are closed to others."""
    for path in (folder, *folder.parents[:3]):
        if path.stat().st_uid == os.getuid() and path.parent != path:
            path.chmod(path.stat().st_mode | 0o055)


def test_without_bubblewrap_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for tool in ("setpriv", "ldd"):
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"no bubblewrap.*apt-get install bubblewrap.*isolation = \"none\""):
        find_isolation.__wrapped__(Sandbox())
    broken = tmp_path / "bwrap"
    broken.write_text("#!/usr/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    _open_up(tmp_path)
    with pytest.raises(UsageError, match=r"No permissions to create new namespace.*user namespaces"):
        find_isolation.__wrapped__(Sandbox("bwrap"))


def test_no_isolation_is_said_and_warned_of(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "cadre.sandbox"):
        said = CodeJudge(sandbox="none").check()
    assert "none" in said
    assert "network" in said
    with pytest.raises(UsageError, match="one of auto, bwrap, none"):
        CodeJudge(sandbox="docker")
    with pytest.raises(UsageError, match="no Python"):
        find_isolation(Sandbox(python="/no/such/python"))


def test_without_walls_there_are_still_limits_and_a_folder_of_its_own():
    isolation = find_isolation(Sandbox("none"))
    end = run(
        "import os; print(os.getcwd(), os.listdir('.'), sorted(os.environ)); open('x', 'w')",
        isolation=isolation,
    )
    folder, rest = end.stdout.decode().split(" ", 1)
    assert not Path(folder).exists()
    assert rest.startswith("[]")
    assert "VIRTUAL_ENV" not in rest


def test_packages_can_be_shown(tmp_path: Path):
    folder = tmp_path / "packages"
    (folder / "shown").mkdir(parents=True)
    (folder / "shown" / "__init__.py").write_text("VALUE = 7\n")
    _open_up(tmp_path)
    isolation = find_isolation(Sandbox(packages=(str(folder),)))
    assert run("import shown; print(shown.VALUE)", isolation=isolation).stdout == b"7\n"
    assert run("import shown").exit_code == 1


AS_NOBODY = """
import sys
sys.path.insert(0, sys.argv[1])
from workflows.tools.code.cases import read_tests
from workflows.tools.code.judge import CodeJudge, JudgeLimits
judge = CodeJudge()
print(judge.check())
print(judge.grade("print(int(input()) * 2)", read_tests([{"input": "2", "output": "4"}])).verdict)
print(judge.grade("def f(x): return x", read_tests(["assert f(1) == 1"], fn_name="f")).verdict)
judge = CodeJudge(JudgeLimits(cpu_seconds=0.3, idle_seconds=0.3))
for code in ("while True: pass", "import time; time.sleep(9)", "import os\\nwhile True: os.fork()"):
    print(judge.grade(code, read_tests([{"input": "", "output": ""}])).verdict)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_user_without_privileges_has_the_same_sandbox():
    python = find_isolation(Sandbox()).python
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]
    readable = subprocess.run(
        [*become, "test", "-r", str(REPOSITORY / "workflows" / "errors.py")], check=False
    )
    if readable.returncode:
        pytest.skip("that user can't read the checkout")
    found = subprocess.run(
        [*become, python, "-c", AS_NOBODY, str(REPOSITORY)],
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
    said = ["passed", "passed", "time_limit", "time_limit"]
    assert found.stdout.splitlines()[1:5] == said, found.stderr
    assert found.stdout.splitlines()[5] in ("runtime_error", "time_limit")
    assert "this user" in found.stdout


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


def test_hostile_programs_get_nowhere():
    outcome = grade_all(programs(40))
    assert (outcome.wrong, outcome.processes, outcome.files) == ([], [], [])
    assert sum(outcome.verdicts.values()) == 40


def test_the_filter_knows_two_processors_and_refuses_to_guess():
    for machine in ("x86_64", "aarch64"):
        filtered = seccomp.program(machine)
        assert filtered is not None
        assert len(filtered) % 8 == 0
    assert seccomp.program("sparc") is None


def test_settings_give_the_sandbox_to_who_takes_one(scripted: Callable[..., dict[str, Any]]):
    def of(workflow: dict[str, Any], **more: Any) -> Settings:
        return parse_settings({**scripted(), "workflow": workflow, **more})

    rewards = [{"use": "rewards.pass_rate_by_round:PassRateByRound"}]
    settings = of({"use": "workflows.teams.code:build"}, rewards=rewards, sandbox={"isolation": "none"})
    options = workflow_options(settings)
    assert options == {"sandbox": Sandbox("none")}
    workflow = load_workflow(settings.workflow.use, options)
    verifier: Any = workflow.tools["verifier"]
    assert verifier.judge.sandbox == Sandbox("none")
    (item,) = weighted_rewards(settings, workflow, settings.rewards).items
    reward: Any = item.reward
    assert reward.sandbox == Sandbox("none")
    given = of({"use": "workflows.teams.code:build", "options": {"sandbox": "bwrap"}})
    assert workflow_options(given)["sandbox"] == "bwrap"
    assert workflow_options(of({"use": "qa_decompose"})) == {}
