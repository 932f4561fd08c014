"""The graders of rewards over lines of JSON: each line comes back with its verdict.

- qa: `prediction`, `golds` → `f1`, `exact_match`
- math: `prediction`, `gold` → `correct`, `reason`
- code: `code`, `tests` in any encoding, and maybe `fn_name`, `checker`, `checker_code`,
  `time_limit_seconds`, `problem` → `verdict`, `passed`, `total`, `skipped`, `reason`, `cases`

Lines keep their order. A line that can't be graded carries `error`, and stops no other. A prediction of
null is no answer, which is wrong, not an error.
"""

from __future__ import annotations

import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from workflows.data.fields import truth_texts
from workflows.errors import CadreError, DataError, InfraError, UsageError, did_you_mean
from workflows.thinking import after_thinking

if TYPE_CHECKING:
    from workflows.tools.code.codetests import CodeTests

Kind = Literal["qa", "math", "code"]
Grader = Callable[[dict[str, Any]], dict[str, Any]]

MATH_MODES: Final = ("whole", "number", "none")
"""What a text without a marked answer is: its whole line, its last number, or no answer."""


def graded(lines: Iterable[bytes], grader: Grader, num_threads: int) -> Iterator[dict[str, Any]]:
    """Grade lines side by side, in order, with a bounded number of them in memory."""
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    if num_threads == 1:
        yield from (_graded(number, line, grader) for number, line in numbered)
        return
    with ThreadPoolExecutor(num_threads, thread_name_prefix="cadre-grade") as threads:
        ahead: deque[Future[dict[str, Any]]] = deque()
        try:
            for number, line in numbered:
                ahead.append(threads.submit(_graded, number, line, grader))
                while ahead and (len(ahead) >= 4 * num_threads or ahead[0].done()):
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def _graded(number: int, line: bytes, grader: Grader) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if not isinstance(row, dict):
            raise DataError(f"a JSON object is expected, got {row!r:.80}")
    except (ValueError, RecursionError, DataError) as error:
        what = str(error) if isinstance(error, DataError) else f"not JSON: {error}"
        return {"line": number, "error": what}
    try:
        return {**row, **grader(row)}
    except (DataError, InfraError) as error:
        return {**row, "error": str(error)}
    except UsageError:
        raise  # of this machine, not of this line
    except CadreError as error:
        return {**row, "error": str(error)}
    except (ValueError, TypeError, RecursionError) as error:
        return {**row, "error": f"{type(error).__name__}: {error}"}


# --- the graders ------------------------------------------------------------------------------------------


def grader_of(
    kind: Kind, mode: str | None = None, sandbox: str | None = None, exact: bool = False
) -> tuple[Grader, int]:
    """The grader of a kind, and how many threads keep it busy.

    With `exact`, decimals stand for nothing that they only round to (math), and true is not 1 (code).

    Raises:
        UsageError: an unknown mode, an option that the kind does not have, or no sandbox for programs on this
            machine.
    """
    cores = len(os.sched_getaffinity(0))
    if kind != "code" and sandbox is not None:
        raise UsageError(f"grade {kind} has no --sandbox, got {sandbox!r}: it runs no programs")
    if kind == "qa":
        if exact:
            raise UsageError("grade qa has no --exact; exact_match is among what it writes")
        return _qa(mode), 1
    if kind == "math":
        return _math(mode, exact), cores
    if mode is not None:
        raise UsageError(f"grade code has no --mode, got {mode!r}")
    return _code(sandbox, exact), 2 * cores  # the judge runs as many programs as there are cores


def _qa(mode: str | None) -> Grader:
    from rewards.grading import qa

    chosen = _mode(mode, qa.MODES, "strict")

    def grade_qa(row: dict[str, Any]) -> dict[str, Any]:
        golds = _field(row, "golds")
        if not isinstance(golds, list) or not golds:
            raise DataError(f"golds must be a list of answers, got {golds!r:.80}")
        texts = [text for gold in golds for text in _gold_texts(gold)]
        if chosen == "strict" and not any(map(qa.usable, texts)):
            raise DataError("no gold can be matched: nothing is left of them after normalising")
        said = row.get("prediction")
        prediction = json.dumps(said) if isinstance(said, bool) else _prediction(row)
        return {
            "f1": qa.f1(prediction, texts, chosen),
            "exact_match": qa.exact_match(prediction, texts, chosen),
        }

    return grade_qa


def _math(mode: str | None, exact: bool) -> Grader:
    from rewards.grading.math import equal
    from rewards.grading.math_extract import extract_answer

    fallback = _mode(mode, MATH_MODES, "whole")

    def grade_math(row: dict[str, Any]) -> dict[str, Any]:
        gold = extract_answer(_text(_field(row, "gold"), "gold"), "whole")
        verdict = equal(extract_answer(_prediction(row), fallback), gold, exact)
        return {"correct": verdict.correct, "reason": verdict.reason}

    return grade_math


def _code(sandbox: str | None, exact: bool) -> Grader:
    from dataclasses import replace

    from workflows.tools.code.cases import read_tests
    from workflows.tools.code.codetests import CheckerType
    from workflows.tools.code.extract import extract_code
    from workflows.tools.code.isolation import IsolationSetting
    from workflows.tools.code.judge import CodeJudge

    setting: IsolationSetting = _mode(sandbox, get_args(IsolationSetting), "auto", "--sandbox")
    judge = CodeJudge(sandbox=setting)
    judge.check()

    def grade_code(row: dict[str, Any]) -> dict[str, Any]:
        code = after_thinking(_text(_field(row, "code"), "code"))
        _field(row, "tests")
        options = {name: row[name] for name in ("fn_name", "checker", "checker_code", "setup") if name in row}
        tests = read_tests({**options, "tests": row["tests"]}, str(row.get("problem") or ""))
        checker: Any = row.get("checker")
        if checker in get_args(CheckerType):  # the line's own word, whatever its tests say
            tests = replace(tests, checker=checker)
        if (limit := row.get("time_limit_seconds")) is not None:
            tests = tests.with_time_limit(_number(limit, "time_limit_seconds"))
        if exact:
            _check_exact(tests)
            tests = replace(tests, strict_bool=True)
        # text without a code block is graded as code, even if it does not parse
        report = judge.grade(extract_code(code) or code, tests)
        values = report.to_json()
        added = {name: values[name] for name in ("verdict", "passed", "total", "skipped", "reason", "cases")}
        ungraded = report.verdict in ("infra_error", "not_graded")
        return {**added, "error": report.reason or report.verdict} if ungraded else added

    return grade_code


def _check_exact(tests: CodeTests) -> None:
    """Refuse tests that decide by themselves whether True is 1.

    Raises:
        DataError: Python that compares on its own, so that --exact would have no effect.
    """
    if tests.kind == "assert" or tests.checker == "custom":
        what = "assertions" if tests.kind == "assert" else "a checker of their own"
        raise DataError(
            f"--exact has no effect on tests that are {what}: they compare by themselves; give calls with "
            "the values that they should return, or leave --exact out"
        )


def _mode(mode: str | None, known: tuple[Any, ...], default: str, option: str = "--mode") -> Any:
    if mode is None:
        return default
    if mode not in known:
        raise UsageError(
            f"{option} {mode!r} is unknown{did_you_mean(mode, known)}; one of {', '.join(known)}"
        )
    return mode


def _field(row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise DataError(f"no {name}{did_you_mean(name, row)}; the line has {', '.join(row) or 'nothing'}")
    return row[name]


def _prediction(row: dict[str, Any]) -> str:
    value = _field(row, "prediction")
    return "" if value is None else after_thinking(_text(value, "prediction"))


def _gold_texts(gold: Any) -> list[str]:
    return truth_texts(gold) if isinstance(gold, bool) else [_text(gold, "a gold")]


def _text(value: Any, what: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"{what} must be a text or a number, got {value!r:.80}")
    return str(value)


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{what} must be a number, got {value!r:.80}")
    return float(value)


# --- what comes out ----------------------------------------------------------------------------------------


class Tally:
    """Counts over graded lines: errors by cause, and verdicts or sums of scores."""

    def __init__(self, kind: Kind):
        self._kind = kind
        self._errors: Counter[str] = Counter()
        self._verdicts: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()
        self._lines = 0

    def add(self, line: dict[str, Any]) -> None:
        self._lines += 1
        if "error" in line:
            self._errors[str(line["error"])[:120]] += 1
        elif self._kind == "code":
            self._verdicts[line["verdict"]] += 1
        else:
            for name in ("f1", "exact_match") if self._kind == "qa" else ("correct",):
                self._sums[name] += float(line[name])  # type: ignore[assignment]

    @property
    def ungraded(self) -> int:
        """How many lines could not be graded."""
        return sum(self._errors.values())

    def summary(self) -> str:
        """One line of counts and scores, and one for what could not be graded."""
        bad = self.ungraded
        good = self._lines - bad
        parts = [f"{name} {total / good:.4f}" for name, total in self._sums.items()]
        parts += [f"{name} {count:,}" for name, count in self._verdicts.most_common()]
        text = f"{good:,} of {self._lines:,} lines graded ({self._kind})" + (
            f": {', '.join(parts)}" if parts else ""
        )
        if bad:
            causes = "; ".join(f"{count:,} x {cause}" for cause, count in self._errors.most_common(3))
            text += f"\n{bad:,} could not be graded: {causes}"
        return text


def encoded(line: dict[str, Any]) -> bytes:
    """A line as JSON in UTF-8, without its newline."""
    try:
        return json.dumps(line, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate has no bytes, but an escape
        return json.dumps(line).encode()
