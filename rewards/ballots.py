"""What each play of a task votes for: plays whose final answers are equal cast equal ballots. Pure.

How answers are compared is decided by the kind of the task, and never by its gold:

- "questions" and tasks of no known kind: equal words after normalising (`rewards.grading.qa`);
- "mathematics": equal as mathematics (`rewards.grading.math`), to the answer that was first given;
- "code": equal outputs on the public tests; without such tests, equal programs.

A play without a readable answer, and one that something else than the policy broke, casts none.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rewards.answers import answer_of, last_turn
from rewards.base import PlayedEpisode
from rewards.grading import qa
from rewards.grading.math import GradingError, equal
from rewards.pass_rate_by_round import code_of, judge_of
from rewards.scoring.by_episode import episodes_of
from rewards.scoring.joined import EPISODES_SEEN, join
from workflows.errors import DataError, InfraError
from workflows.tools.code.cases import read_tests
from workflows.tools.code.isolation import Sandbox
from workflows.trajectory import to_json

_PROGRAMS_KEPT: Final = 4096  # verdicts: independent plays often say the same


@dataclass(frozen=True, slots=True)
class BallotBox:
    """Reads the ballots of a workflow's plays.

    Attributes:
        answer_step: the step that gives the team's answer.
        task: kind of the tasks: "questions", "mathematics", "code", or None.
        sandbox: where programs run, for code.
    """

    answer_step: str
    task: str | None = None
    sandbox: Sandbox | str = "auto"

    def check_ready(self) -> None:
        """Called before a run starts.

        Raises:
            UsageError: the tasks are programs, and this machine has no sandbox for them.
        """
        if self.task == "code":
            judge_of(self.sandbox, {}).check()

    def ballots(self, tasks: pa.Table, turns: pa.Table, episodes: pa.Table) -> dict[str, str]:
        """The ballot of each episode that casts one, by its id.

        Raises:
            InfraError: the sandbox failed.
        """
        joined = join(tasks, turns, episodes.select(EPISODES_SEEN.names))
        part = joined.part
        given: dict[int, list[str]] = {}  # by task: the answers that ballots of mathematics stand for
        cast: dict[str, str] = {}
        for position, episode in episodes_of(part, np.arange(part.num_episodes)):
            turn = last_turn(episode, self.answer_step)
            known = given.setdefault(int(part.task[position]), [])
            if turn is not None and (ballot := self._ballot(episode, turn, known)):
                cast[episode.episode_id] = ballot
        return cast

    def _ballot(self, episode: PlayedEpisode, turn: Mapping[str, Any], known: list[str]) -> str | None:
        if self.task == "code":
            return self._behaviour(episode, code_of(turn))
        try:
            answer = answer_of(turn).strip()
        except ValueError:  # the answer is a mapping or a list: equal if all of it is
            return to_json(turn["parsed"])
        if self.task == "mathematics":
            return _first_equal(answer, known)
        return " ".join(qa.normalised(answer)) or None

    def _behaviour(self, episode: PlayedEpisode, code: str | None) -> str | None:
        """What a program does on the public tests; the program itself where there are none."""
        if not code:
            return None
        task = {key: episode.inputs.get(key) for key in ("fn_name", "time_limit_seconds")}
        encoded = episode.inputs.get("public_tests")
        if not encoded:
            return code.strip()
        return _outputs(code, to_json(task | {"tests": encoded}), Sandbox.of(self.sandbox)) or code.strip()


def _first_equal(answer: str, known: list[str]) -> str | None:
    """The first of the `known` answers that equals this one, which joins them where none does."""
    if not answer:
        return None
    for other in known:
        try:
            if other == answer or equal(answer, other).correct:
                return other
        except GradingError:  # not readable as mathematics: equal only as text
            continue
    known.append(answer)
    return answer


@functools.lru_cache(maxsize=_PROGRAMS_KEPT)
def _outputs(code: str, task: str, sandbox: Sandbox) -> str:
    """The outcome of each public test, with the wrong output where it is one; "" where none could run."""
    public = json.loads(task)
    try:
        tests = read_tests(public["tests"], fn_name=public["fn_name"])
    except DataError:
        return ""
    report = judge_of(sandbox, {}).grade(code, tests.with_time_limit(public["time_limit_seconds"]))
    if report.verdict == "infra_error":
        raise InfraError(f"the code sandbox failed: {report.reason}")
    if report.verdict == "not_graded":
        return ""
    # the words about a wrong answer say what came out; those about an error may name an address or a time
    return to_json([[c.verdict, c.detail if c.verdict == "wrong_answer" else ""] for c in report.cases])
