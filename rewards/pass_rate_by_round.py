"""What each round of a coding team added to the pass rate on tests that it never saw."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from rewards.answers import refuse_unknown
from rewards.base import PlayedEpisode, RewardHooks
from rewards.by_round import gains, next_gain
from workflows.errors import InfraError
from workflows.thinking import after_thinking
from workflows.tools.code.cases import read_tests
from workflows.tools.code.extract import extract_code
from workflows.tools.code.isolation import Sandbox
from workflows.tools.code.judge import CodeJudge, JudgeLimits
from workflows.trajectory import to_json

Tests = Literal["private", "public"]
Give = Literal["gain", "final"]

_VERDICTS_KEPT: Final = 512


@dataclass(frozen=True, slots=True)
class PassRateByRound(RewardHooks):
    """Marginal improvement of the pass rate, by the round in which a turn was taken.

    R_t is the share of tests that the code of round t passes, 0 for a reply without code. The planner
    and the coder of round t get R_t minus the R of the last round before that has one, or R_t itself in
    the first; so the gains of either add up to the last R. A reflection after round t gets
    R_(t+1) - R_t, or 0 if no code followed it. A planner whose coder never ran gets no number: nothing
    says what the plan was worth.

    With `give = "final"` every one of these turns gets the last R instead. With weight 0 that is a metric.

    Source: the turn level code reward of UnityMAS-O, which pays for the tests that its prompts show.

    Options:
        tests: "private" runs each round's code on `gold["private_tests"]`; "public" takes the pass rate
            that the verifier's turn has stored, runs nothing and needs no sandbox.
        give: "gain" or "final", as above.
        sandbox, limits: of the judge, see `workflows.tools.code.judge`; the sandbox is `[sandbox]` of the
            settings, where it is not given.
        plan_step, code_step, reflect_step, verify_step: steps of the workflow.

    Raises:
        UsageError: an option has an unknown value.
        ValueError: the task has no private tests, or no verifier ran ("public"), or a step ran twice in a
            round; the episode is then excluded, not scored 0.
        InfraError: the judge itself failed; likewise.
    """

    tests: Tests = "private"
    give: Give = "gain"
    sandbox: Sandbox | str = "auto"
    limits: Mapping[str, Any] = field(default_factory=dict)
    plan_step: str = "plan"
    code_step: str = "code"
    reflect_step: str = "reflect"
    verify_step: str = "verify"

    def __post_init__(self) -> None:
        refuse_unknown("tests", self.tests, get_args(Tests))
        refuse_unknown("give", self.give, get_args(Give))
        judge_of(self.sandbox, self.limits)  # refuses what it does not know

    def check_ready(self) -> None:
        """Called before a run starts.

        Raises:
            UsageError: private tests need a sandbox, which this machine does not have.
        """
        if self.tests == "private":
            judge_of(self.sandbox, self.limits).check()

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        rates = self._measured(episode) if self.tests == "private" else self._stored(episode)
        added = gains(rates)
        final = rates[max(rates)] if rates else None
        values: list[float | None] = [None] * len(episode.turns)
        for position in episode.trainable():
            turn = episode.turns[position]
            if turn["step"] in (self.plan_step, self.code_step):
                values[position] = added.get(turn["round"])
            elif turn["step"] == self.reflect_step:
                values[position] = next_gain(rates, turn["round"])
            if self.give == "final" and values[position] is not None:
                values[position] = final
        return values

    def _measured(self, episode: PlayedEpisode) -> dict[int, float]:
        """The pass rate of each round's code on the private tests."""
        codes = {round: code_of(turn) for round, turn in _by_round(episode, self.code_step).items()}
        return {
            round: private_pass_rate(episode, code, self.sandbox, self.limits)
            for round, code in codes.items()
        }

    def _stored(self, episode: PlayedEpisode) -> dict[int, float]:
        """The pass rates that the verifier stored: none of a round that it could not grade."""
        rates = {}
        for round, turn in _by_round(episode, self.verify_step).items():
            result = turn["tool_result"] or {}
            if "pass_rate" in result and result.get("verdict") != "not_graded":
                rates[round] = _clamped(result["pass_rate"])
        if not rates and _by_round(episode, self.code_step):
            raise ValueError(
                f"no turn of step {self.verify_step!r} has a pass rate; were there public tests?"
            )
        return rates


def code_of(turn: Mapping[str, Any]) -> str | None:
    """The program in a turn's reply, outside its thoughts; None where there is none."""
    return None if turn["parsed"] == "" else extract_code(after_thinking(turn["response_text"] or ""))


def judge_of(sandbox: Sandbox | str, limits: Mapping[str, Any]) -> CodeJudge:
    """The judge that runs programs.

    Raises:
        UsageError: an isolation or a limit that it does not know.
    """
    return _judge(Sandbox.of(sandbox), to_json(dict(limits)))


def private_pass_rate(
    episode: PlayedEpisode, code: str | None, sandbox: Sandbox | str, limits: Mapping[str, Any]
) -> float:
    """The share of the task's private tests that a program passes; 0 without a program.

    Raises:
        ValueError: the task has no private tests, or they can't be graded.
        InfraError: the judge itself failed.
    """
    encoded = episode.gold.get("private_tests")
    if not encoded:
        raise ValueError(f"gold has no private_tests; it has {sorted(episode.gold) or 'nothing'}")
    task = {key: episode.inputs.get(key) for key in ("fn_name", "time_limit_seconds")}
    return _pass_rate(code, to_json(task | {"tests": encoded}), Sandbox.of(sandbox), to_json(dict(limits)))


def _by_round(episode: PlayedEpisode, step: str) -> dict[int, Mapping[str, Any]]:
    turns: dict[int, Mapping[str, Any]] = {}
    for turn in episode.turns:
        if turn["step"] == step:
            if turn["round"] in turns:
                raise ValueError(f"step {step!r} ran twice in round {turn['round']}; a round has one program")
            turns[turn["round"]] = turn
    return turns


@functools.lru_cache(maxsize=8)
def _judge(sandbox: Sandbox, limits: str) -> CodeJudge:
    return CodeJudge(limits=JudgeLimits.of(json.loads(limits)), sandbox=sandbox)


@functools.lru_cache(maxsize=_VERDICTS_KEPT)
def _pass_rate(code: str | None, task: str, sandbox: Sandbox, limits: str) -> float:
    """Run once for each program: rounds and plays repeat themselves, and a second reward may ask again."""
    asked = json.loads(task)
    tests = read_tests(asked["tests"], fn_name=asked["fn_name"])
    report = _judge(sandbox, limits).grade(code, tests.with_time_limit(asked["time_limit_seconds"]))
    if report.verdict == "infra_error":
        raise InfraError(f"the code sandbox failed: {report.reason}")
    if report.verdict == "not_graded":
        raise ValueError(f"private tests can't be graded: {report.reason or 'there are none'}")
    return _clamped(report.pass_rate)


def _clamped(rate: float) -> float:
    return min(1.0, max(0.0, float(rate)))
