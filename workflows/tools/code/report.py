"""What the judge says."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

Verdict = Literal[
    "passed",
    "wrong_answer",
    "time_limit",
    "memory_limit",
    "runtime_error",
    "output_limit",
    "no_code",  # the reply holds no program
    "not_graded",  # there is no test, or none that can run
    "infra_error",  # the sandbox failed, not the program
]
MAX_DETAIL: Final = 2000


@dataclass(frozen=True, slots=True)
class CaseReport:
    """One test: what became of it, a few words for people, and the CPU time that the program took."""

    verdict: Verdict
    detail: str = ""
    cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """All tests of one program.

    `verdict` is `passed` where every graded test passed, else that of the first that did not. `cases` has one
    entry for each test, in order. A test that is too large for the limits, or that can't run itself, is
    `not_graded`: it counts as `skipped`, and neither in `passed` nor in `total`. `reason` says in words
    why the verdict is not `passed`. Without a program there are no cases, and all tests count in `total`.
    """

    verdict: Verdict
    passed: int = 0
    total: int = 0
    cases: tuple[CaseReport, ...] = ()
    skipped: int = 0
    reason: str | None = None

    @property
    def pass_rate(self) -> float:
        """Share of the graded tests that passed; 0 where there is none."""
        return self.passed / self.total if self.total else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "cases": [asdict(case) for case in self.cases],
            "pass_rate": self.pass_rate,
            "all_passed": self.verdict == "passed",
        }


def clip(text: str, most: int = MAX_DETAIL) -> str:
    """The first and the last part of a text that is too long."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} … {text[-(most // 2) :]}"
