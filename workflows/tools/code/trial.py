"""One program before one case: the processes that this takes, and the verdict.

**Verdicts follow from events.** The first of these that holds decides: the sandbox did not start, or the
machine did not get on, → `infra_error`; CPU time → `time_limit`; memory → `memory_limit`; too much output
→ `output_limit`; all threads asleep for too long → `time_limit`, with the detail "idle"; another end than
a normal one → `runtime_error`; else the output or the value decides, `passed` or `wrong_answer`.

**A script's end is normal** if its interpreter came to its own end with exit code 0: falling off the end,
`exit()`, `sys.exit(0)`. After an exception, another code, a signal or `os._exit` it is not, whatever the
script has written by then.

**A function counts by what it returns.** It may print. What its process does after the answer is not
waited for.

**An assert** runs in a process of its own beside the program's, where the program's functions are
stand-ins: a call crosses to the program as plain values, and its result comes back so (`codec.py`,
`box.py`). A program can neither see the test nor touch the process that it runs in. What is not plain,
such as an object of a class of the program's own, can't be tested this way; a change that a function
makes to its arguments stays on its side.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from workflows.errors import InfraError
from workflows.tools.code.checkers import JSON_DECODERS, check_output, check_value, shown
from workflows.tools.code.codec import decode, encode
from workflows.tools.code.codetests import AssertCase, CallCase, Case, CodeTests, StdioCase
from workflows.tools.code.isolation import Isolation
from workflows.tools.code.limits import End, Limits
from workflows.tools.code.names import defined_names, missing_imports, unbound_names
from workflows.tools.code.report import CaseReport, Verdict, clip
from workflows.tools.code.testcode import program_names, runnable
from workflows.tools.code.watch import run

_STDERR_SHOWN: Final = 500


@dataclass(frozen=True, slots=True)
class Trial:
    """A program and what its tests have in common."""

    isolation: Isolation
    limits: Limits
    code: str
    tests: CodeTests
    cancelled: threading.Event = field(default_factory=threading.Event)

    def run(self, case: Case) -> CaseReport:
        """The verdict on one case, from fresh processes."""
        try:
            if isinstance(case, StdioCase):
                return self._stdio(case)
            if isinstance(case, CallCase):
                return self._call(case)
            return self._assert(case)
        except InfraError as error:
            return _report("infra_error", str(error), 0.0)

    def _stdio(self, case: StdioCase) -> CaseReport:
        stdin = case.input.encode("utf-8", "surrogatepass")
        end = self._run(self.code, "script", stdin=stdin)
        if failed := failure(end, self.limits):
            return failed
        output = end.stdout.decode("utf-8", "replace")
        if self.tests.checker == "custom":
            return self._special(case, output, end)
        return self._judged(check_output(self.tests, case, output), end)

    def _special(self, case: StdioCase, output: str, ended: End) -> CaseReport:
        """Ask the data set's own checker, which is a program too, about the output of one that `ended` so."""
        cpu_seconds = ended.cpu_seconds
        end = self._ask(self.tests.checker_code, "check", (case.input, output, case.output), "exact")
        failed = failure(end, self.limits)
        if failed and failed.verdict == "infra_error":
            return failed
        kind, *content = _read(end)
        if kind == "gone" and end.killed is None:
            return _report("not_graded", f"the checker does not load: {_last_words(end)}", cpu_seconds)
        if failed or kind != "value":
            why = failed.detail if failed else shown(content)
            return _report("wrong_answer", f"the checker fails on this output: {why}", cpu_seconds)
        said = content[0][0] if isinstance(content[0], list) and content[0] else content[0]
        accepted = said is True or (type(said) is int and said == 1)
        return self._judged(None if accepted else f"the checker says {shown(content[0])}", ended)

    def _call(self, case: CallCase) -> CaseReport:
        report = self._called(case, case.args)
        if report.verdict in ("wrong_answer", "runtime_error"):
            # JSON has texts for keys only: {"1": 5} may stand for {1: 5}, as the harness of APPS takes it
            args = tuple(with_whole_keys(argument) for argument in case.args)
            if args != case.args and (again := self._called(case, args)).verdict == "passed":
                return again
        return report

    def _called(self, case: CallCase, args: Sequence[Any]) -> CaseReport:
        end = self._ask(self.code, str(self.tests.fn_name), args, case.form)
        if failed := failure(end, self.limits):
            return failed
        kind, *content = _read(end)
        if kind == "error":
            return _raised(str(content[0]), str(content[1]), end.cpu_seconds)
        if kind != "value":
            return _report("wrong_answer", f"not a plain value: {shown(content[0])}", end.cpu_seconds)
        return self._judged(check_value(case, content[0], self.tests.strict_bool), end)

    def _assert(self, case: AssertCase) -> CaseReport:
        fn_name, setup = self.tests.fn_name, self.tests.setup
        own = {name: name for name in [fn_name, *program_names(case.code)] if name}
        code = runnable(case.code)
        text = f"{setup}\n{code}"
        prelude = missing_imports(text, besides={*own, *defined_names(self.code)})
        names = {name: name for name in unbound_names(f"{prelude}\n{text}")} | own
        if "candidate" in names and fn_name:
            names["candidate"] = fn_name
        asks = {
            "test": code,
            "setup": setup,
            "prelude": prelude,
            "names": names,
            "always": own,
            "limits": [["RLIMIT_AS", self.limits.memory, self.limits.memory]],
        }
        end = self._run(self.code, "test", asks=asks)
        if failed := failure(end, self.limits):
            return failed
        kind, name, text = decode(str(end.answer), JSON_DECODERS)
        match kind:
            case "passed":
                return _report("passed", "", end.cpu_seconds)
            case "error":
                return _raised(name, text, end.cpu_seconds)
            case "broken":
                return _report("not_graded", _words(name, text), end.cpu_seconds)
        return self._judged(_words(name, text) or "a test failed", end)

    def _ask(self, code: str, name: str, args: Sequence[Any], form: str) -> End:
        """Load `code` in a fresh process and call one of its functions once."""
        return self._run(code, "call", asks={"call": (name, list(args), {}, form)})

    def _judged(self, problem: str | None, end: End) -> CaseReport:
        """`passed` without a problem; else the verdict, which is the memory where a thread ran out of it: its
        part of the answer is what is missing."""
        if problem and end.thread_out_of_memory:
            detail = f"more than {self.limits.memory >> 20} MiB of memory, in a thread"
            return _report("memory_limit", detail, end.cpu_seconds)
        return _report("wrong_answer" if problem else "passed", problem or "", end.cpu_seconds)

    def _run(self, code: str, mode: str, **more: Any) -> End:
        job = {"mode": mode, "code": code, "prelude": missing_imports(code, all_names=True)}
        return run(self.isolation, job, self.limits, cancelled=self.cancelled, **more)


def with_whole_keys(value: Any) -> Any:
    """A JSON value with whole numbers for the keys of each object whose keys all are such numbers."""
    if isinstance(value, list):
        return [with_whole_keys(item) for item in value]
    if not isinstance(value, dict):
        return value
    whole = bool(value) and all(isinstance(key, str) and _WHOLE.fullmatch(key) for key in value)
    return {int(key) if whole else key: with_whole_keys(item) for key, item in value.items()}


_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]{0,17}")


def failure(end: End, limits: Limits) -> CaseReport | None:
    """The verdict that the end of a program forces; None where its output decides."""

    def report(verdict: Verdict, detail: str) -> CaseReport:
        return _report(verdict, detail, end.cpu_seconds)

    if not end.started:
        return report("infra_error", f"the sandbox did not start: {_last_words(end)}")
    if end.killed in ("backstop", "cancelled"):
        return report("infra_error", f"ended by the judge: {end.killed}")
    if end.killed == "cpu" or end.cpu_seconds > limits.cpu_seconds:
        return report("time_limit", f"more than {limits.cpu_seconds:g} s of CPU time")
    if end.killed == "memory" or end.out_of_memory:
        return report("memory_limit", f"more than {limits.memory >> 20} MiB of memory")
    if end.killed == "output" or end.answer == _TOO_LONG or len(end.stdout) > limits.output:
        return report("output_limit", f"more than {limits.output >> 10} KiB of output")
    if end.killed == "idle":
        return report("time_limit", f"idle: all of it slept for {limits.idle_seconds:g} s")
    if end.killed == "processes":
        return report("runtime_error", f"more than {limits.processes} processes")
    if end.answer is not None and end.answer != _GONE:
        return None
    early = "before it answered: " if end.answer == _GONE else ""
    if end.signal is not None:
        return report("runtime_error", f"{early}ended by signal {end.signal}")
    if end.exit_code is None:
        return report("runtime_error", "its sandbox came down with it")
    if end.exit_code != 0:
        return report("runtime_error", f"{early}exit code {end.exit_code}: {_last_words(end)}")
    if not end.finished:
        return report("runtime_error", f"{early}it left by os._exit, which is no normal end")
    return report("runtime_error", f"{early}it ended") if early else None


_TOO_LONG: Final = encode(("too_long",))
_GONE: Final = encode(("gone",))


def _read(end: End) -> list[Any]:
    """The answer to a call: ["value", v], ["error", type, text], ["not_plain", text] or ["gone"]."""
    try:
        found = decode(str(end.answer), JSON_DECODERS)
    except ValueError as error:
        return ["not_plain", str(error)]
    lengths = {"value": 2, "error": 3, "not_plain": 2, "gone": 1}
    if (
        isinstance(found, list)
        and found
        and isinstance(found[0], str)
        and lengths.get(found[0]) == len(found)
    ):
        return found
    return ["not_plain", "an answer of its own making"]


def _raised(name: str, text: str, cpu_seconds: float) -> CaseReport:
    return _report(
        "memory_limit" if name == "MemoryError" else "runtime_error", _words(name, text), cpu_seconds
    )


def _report(verdict: Verdict, detail: str, cpu_seconds: float) -> CaseReport:
    return CaseReport(verdict, clip(detail), round(cpu_seconds, 4))


def _words(name: str, text: str) -> str:
    return f"{name}: {text}" if name and text else name or text


def _last_words(end: End) -> str:
    lines = end.stderr.decode("utf-8", "replace").strip().splitlines()
    return clip(lines[-1], _STDERR_SHOWN) if lines else "nothing on stderr"
