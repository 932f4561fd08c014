"""What runs inside the sandbox. Cadre sends this text there, and never runs it in its own process.

The interpreter that starts here is the keeper, process 1 of the sandbox. It forks; the child sets its
limits and becomes the program; the keeper asks it what there is to ask, waits for its end, reports both
on a pipe that the child does not hold, and ends, upon which the kernel ends all that is left.

    script  the program is `__main__` with real stdin, stdout and stderr. Nothing is asked.
    call    the program is a module. One of its functions is called once; the answer is reported as it is.
    test    the program is a module. A test of the data set runs in the keeper, where the program's
            functions are stand-ins: a call crosses to the child as plain values, and so does its result.

The child can't reach the keeper: the kernel shields process 1 from its namespace's signals, and the
keeper has made its memory and descriptors inaccessible (PR_SET_DUMPABLE). What to ask is read after
the fork, so no copy of it is in the child. The expected value of a call never comes here.

The report: a line with the CPU seconds of the start; for a call or a test a line with the answer or the
test's end; a line with the child's wait status and three flags, for a normal end, for a MemoryError and for
one that ended a thread. The program holds the pipes of its answers and of its marks, and may write anything
there: what is no answer is reported as one "of its own making", which is wrong, and a mark counts with the
secret of this start only.
"""

from __future__ import annotations

import gc
import os
import resource
import sys

from workflows.tools.code.box_cases import run_test
from workflows.tools.code.codec import NotPlain, decode, encode
from workflows.tools.code.lines import Lines, ProgramGone, TooLong, message_of, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FINISHED, NO_MEMORY, NO_MEMORY_IN_THREAD = b"F", b"M", b"T"
SECRET_BYTES = 8
ANSWERS = ('{"t":["value",', '{"t":["error",', '{"t":["not_plain",')
RECURSION_LIMIT = 50_000  # as the harnesses of the benchmarks set it


def keep(job: dict[str, Any], report_fd: int, asks_fd: int) -> None:
    """Fork the program, ask it, report. Returns in the child only, when the program is over."""
    use = resource.getrusage(resource.RUSAGE_SELF)
    os.write(report_fd, f"{use.ru_utime + use.ru_stime:.6f}\n".encode())
    shield(job["process_one"])
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)  # programs and tests print numbers of any size; time is limited anyway
    secret, of_threads = os.urandom(SECRET_BYTES), os.urandom(SECRET_BYTES)
    mark_read, mark_write = os.pipe()
    child_in, keeper_out = os.pipe()
    keeper_in, child_out = os.pipe()
    gc.freeze()  # else the child's collector, at its end, would copy all that it has from here
    child = os.fork()
    if child == 0:
        for fd in (report_fd, asks_fd, mark_read, keeper_in, keeper_out):
            os.close(fd)
        be_program(job, child_in, child_out, mark_write, secret, of_threads)
        return
    for fd in (child_in, child_out, mark_write):
        os.close(fd)
    with os.fdopen(asks_fd, "rb") as file:
        asks = decode(file.read().decode())
    if job["mode"] == "script":
        for fd in (0, 1, 2, keeper_out):
            os.close(fd)
    else:
        ask(asks, Lines(keeper_in, keeper_out, job["longest"]), child, report_fd, job["paths"])
    ended, status = 0, 0
    while ended != child:  # others that end are orphans of the program
        ended, status = os.waitpid(-1, 0)
    os.set_blocking(mark_read, False)
    try:
        marks = os.read(mark_read, 1 << 20)  # all that a pipe holds
    except BlockingIOError:  # an orphan holds the pipe
        marks = b""
    known = (FINISHED + secret, NO_MEMORY + secret, NO_MEMORY_IN_THREAD + of_threads)
    flags = " ".join(str(int(mark in marks)) for mark in known)
    os.write(report_fd, f"{status} {flags}\n".encode())
    if not job["process_one"]:
        end_descendants()
    os._exit(0)


def shield(process_one: bool) -> None:
    """Close this process to others of its user. Without a namespace, also take in and outlive nobody."""
    import _signal  # type: ignore[import-not-found]  # `signal` itself imports much
    from _ctypes import call_cdeclfunction, dlopen, dlsym  # importing `ctypes` takes half a start

    prctl = dlsym(dlopen(None, 2), "prctl")  # type: ignore[arg-type]
    set_pdeathsig, set_dumpable, set_child_subreaper = 1, 4, 36
    call_cdeclfunction(prctl, (set_dumpable, 0, 0, 0, 0))
    if not process_one:
        call_cdeclfunction(prctl, (set_pdeathsig, _signal.SIGKILL, 0, 0, 0))
        call_cdeclfunction(prctl, (set_child_subreaper, 1, 0, 0, 0))


def ask(asks: dict[str, Any], lines: Lines, child: int, report_fd: int, paths: list[str]) -> None:
    """Put the question, report the answer, and end the child unless it has ended before it answered."""
    import _signal

    answer: str | None = None
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Python's handler would let the child interrupt this
    try:
        if "test" in asks:
            sys.path[:] = [*paths, *(path for path in sys.path if path)]
            set_limits(asks["limits"])
            answer = encode(run_test(asks, lines))
        else:
            lines.write(*asks["call"])
            answer = answered(lines.read())
    except TooLong:
        answer = encode(("too_long",))
    except ProgramGone:
        pass
    if answer is None:  # it has ended, or closed its pipes and does not matter any more
        answer = encode(("gone",))
    write_all(report_fd, answer.encode() + b"\n")
    os.close(lines.in_fd)
    os.close(lines.out_fd)
    if answer != '{"t":["gone"]}':
        os.kill(child, _signal.SIGKILL)


def answered(line: str | None) -> str | None:
    """The line of an answer; one that `serve` can't have written is an answer of the program's own making."""
    if line is None or (line.startswith(ANSWERS) and line.isascii()):
        return line
    return encode(("not_plain", "an answer of its own making"))


# --- the program -------------------------------------------------------------------------------------------


def be_program(
    job: dict[str, Any], in_fd: int, out_fd: int, mark_fd: int, secret: bytes, of_threads: bytes
) -> None:
    import atexit

    os.setsid()
    set_limits(job["limits"])
    sys.setrecursionlimit(RECURSION_LIMIT)
    sys.path[:] = [*job["paths"], *(path for path in sys.path if path)]
    sys.argv[:] = ["program.py"]
    for name in [name for name in sys.modules if name.startswith("workflows")]:
        del sys.modules[name]
    me = os.getpid()

    def finished() -> None:
        if os.getpid() == me:  # not in a fork of the program
            os.write(mark_fd, FINISHED + secret)

    atexit.register(finished)  # the first to be registered is the last to run
    mark_threads(mark_fd, NO_MEMORY_IN_THREAD + of_threads)
    if job["mode"] == "script":
        os.close(in_fd)
        os.close(out_fd)
    try:
        space = load_program(job)
    except MemoryError:
        os.write(mark_fd, NO_MEMORY + secret)
        raise
    if job["mode"] != "script":
        serve(space, Lines(in_fd, out_fd))


def mark_threads(mark_fd: int, mark: bytes) -> None:
    """Write a mark where a MemoryError ends a thread: the program goes on, and may end as if all were well.

    The mark has a secret of its own: a program can read it off the hook, and would hurt itself alone.
    """
    import _thread  # `threading` takes its hook from here, when the program imports it

    me = os.getpid()

    def marking(usual: Callable[[Any], object]) -> Callable[[Any], None]:
        def hook(args: Any) -> None:
            if issubclass(args.exc_type, MemoryError) and os.getpid() == me:
                os.write(mark_fd, mark)
            usual(args)

        return hook

    _thread._excepthook = marking(_thread._excepthook)
    sys.unraisablehook = marking(sys.unraisablehook)  # of threads that are started without `threading`


def set_limits(limits: list[tuple[str, int, int]]) -> None:
    for name, soft, hard in limits:
        number = getattr(resource, name)
        most = resource.getrlimit(number)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(number, (soft, hard))


def load_program(job: dict[str, Any]) -> dict[str, Any]:
    """Run the program's text. Its module is `__main__` as a script, else it has a name of its own."""
    import builtins
    from _sitebuiltins import Quitter  # what `site` would add; its other work takes as long as a start

    vars(builtins).update({name: Quitter(name, "the end of input") for name in ("exit", "quit")})
    name = "__main__" if job["mode"] == "script" else "program"
    module = sys.modules[name] = type(sys)(name)
    space: dict[str, Any] = module.__dict__
    space["__builtins__"] = builtins
    for line in job["prelude"].split("\n"):
        try:
            exec(line, space)
        except ImportError:  # a name that this version of Python has not
            continue
    exec(compile(job["code"], "program.py", "exec", dont_inherit=True), space)
    return space


def serve(space: dict[str, Any], lines: Lines) -> None:
    """Answer calls until the other side closes its pipe."""
    while (line := lines.read()) is not None:
        try:
            name, args, kwargs, form = decode(line)
            lines.write("value", call(space, name, args, kwargs, form))
        except NotPlain as error:
            lines.write("not_plain", str(error))
        except BaseException as error:  # also SystemExit: a function has no business to end the program
            lines.write("error", type(error).__name__, message_of(error))


def call(space: dict[str, Any], name: str, args: list[Any], kwargs: dict[str, Any], form: str) -> Any:
    function = space.get(name)
    if function is None:
        kinds = [space.get("Solution"), *(v for v in space.values() if isinstance(v, type))]
        owner = next((kind for kind in kinds if name in getattr(kind, "__dict__", ())), None)
        function = owner and getattr(owner(), name)
    if function is None:
        raise NameError(f"the program does not define {name!r}")
    return function(*shaped(function, args, form), **kwargs)


def shaped(function: Any, args: list[Any], form: str) -> list[Any]:
    """The arguments, where their writing leaves open whether a list is one of them or all of them.

    `line`: one list, which is spread unless the function takes exactly one argument. `list`: a list of
    arguments, which is one argument if the function takes one and the list has another length.
    """
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if form == "exact" or code is None:
        return args
    takes_one = code.co_argcount - hasattr(function, "__func__") == 1 and not code.co_flags & 0x04
    if form == "line" and len(args) == 1 and isinstance(args[0], list) and not takes_one:
        return args[0]
    if form == "list" and len(args) != 1 and takes_one:
        return [args]
    return args


def end_descendants() -> None:
    import signal

    me = os.getpid()
    while True:
        with open(f"/proc/{me}/task/{me}/children") as file:
            children = file.read().split()
        for pid in children:
            os.kill(int(pid), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    keep(decode(globals()["job"].decode()), *map(int, sys.argv[2:4]))
