"""What a program in the sandbox can see, call and reach."""

# ruff: noqa: E501  (programs are quoted as they are)

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.benchmarks.hostile import grade_all
from tests.benchmarks.hostile_family import programs
from tests.support.boxes import REPOSITORY, WALLS, open_up, run
from workflows.tools.code.cases import read_tests
from workflows.tools.code.find import find_isolation
from workflows.tools.code.isolation import Sandbox
from workflows.tools.code.judge import CodeJudge

pytestmark = pytest.mark.skipif(WALLS is None, reason="no bubblewrap that works on this machine")


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
        *tops(find_isolation(Sandbox()).python),
    }
    assert set(seen["dev"]) == {"fd", "null", "stderr", "stdin", "stdout", "urandom", "zero"}
    assert seen["visible"] == []
    assert seen["writable"] == []
    assert not {n for n in seen["names"] if n in os.environ} - {"HOME", "LANG", "PATH", "PWD"} - THREADS
    assert seen["host"] == "sandbox"
    assert seen["interfaces"] == ["lo"]
    assert seen["processes"] == ["1", "2"]
    assert seen["uid"] != 0
    assert (seen["tmp"], seen["here"]) == ([], "/tmp")
    assert not [p for p in seen["path"] if "site-packages" in p or "dist-packages" in p]
    assert seen["packages"] == []


THREADS = {
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHASHSEED",
    "PYTHONUTF8",
} | {"LD_LIBRARY_PATH"}


def tops(path: str) -> set[str]:
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


def test_packages_can_be_shown(tmp_path: Path):
    folder = tmp_path / "packages"
    (folder / "shown").mkdir(parents=True)
    (folder / "shown" / "__init__.py").write_text("VALUE = 7\n")
    open_up(tmp_path)
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


def test_hostile_programs_get_nowhere():
    outcome = grade_all(programs(40))
    assert (outcome.wrong, outcome.processes, outcome.files) == ([], [], [])
    assert sum(outcome.verdicts.values()) == 40
