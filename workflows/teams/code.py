"""`code`: plan, write, run on the public tests, reflect, and again until they pass.

    plan → code → verify → note ─(not solved, a round is left)→ reflect ─→ plan
              └──────────────┘ (no public tests)

The verifier sees public tests only; private ones are gold, which no step can read, and pay the reward
`pass_rate_by_round`. Rounds end when all public tests pass, or with the last one: nobody reflects after
that. With `learned_stop` a role `stopper` decides before each reflection if there is another round. `note`
keeps what a round was, in parts, so that a long history loses whole parts, the oldest first.

A task without public tests has nothing to verify: its one round ends unverified, which is not a pass.

A reply that breaks its format is used as far as it can be read: the first tag with content, else all
of its text; what of that is code is for the judge to find.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from workflows.errors import WorkflowError
from workflows.graph import ControlStep, Edge, LlmStep, Source, Step, ToolStep, Workflow
from workflows.parsers import Parser, StrictTags
from workflows.prompts import Trim
from workflows.roles import Role
from workflows.state import State
from workflows.teams.code_text import NO_TESTS, code_form, execution, public_tests, result_text, shown_tests
from workflows.teams.qa_passages import check_flags
from workflows.teams.stopping import HALT, STOPPER, goes_on, stopper
from workflows.thinking import AfterThinking, Reasoning, after_no_thought, after_thinking, check_reasoning
from workflows.tools.code.isolation import Sandbox
from workflows.tools.code.verifier import CodeVerifier

_NO_REPLY: Final = "(no reply)"
_NONE: Final = "none"
_REFUSED: Final = "the reply could not be run"


def build(
    max_rounds: int = 3,
    stop_on_all_passed: bool = True,
    visible_tests: int = 3,
    max_case_characters: int = 400,
    reflect_without_tests: bool = False,
    starter_code: bool = True,
    reasoning: Reasoning = False,
    learned_stop: bool = False,
    sandbox: Sandbox | str = "auto",
    limits: Mapping[str, Any] | None = None,
) -> Workflow:
    """The workflow.

    Args:
        max_rounds: programs per episode, at most.
        stop_on_all_passed: end when all public tests pass; without, all rounds are played.
        visible_tests: public tests that prompts show; the verifier runs all of them.
        max_case_characters: of each input, output and message in a prompt; longer ones lose their middle.
        reflect_without_tests: play all rounds of a task that has no public tests, without any verdict.
        starter_code: show the coder the task's starter code, where it has one.
        reasoning: replies may begin with thoughts (`<think>…</think>`); nobody else sees them. "opened"
            where the chat template opens the first one: a reply that closes none is then a thought.
        learned_stop: whether a role `stopper` decides, after each round that may be followed by another one,
            if it is.
        sandbox: where the verifier runs code: a `Sandbox`, or the name of an isolation; `[sandbox]` of the
            settings, where it is not given.
        limits: of one test case; see `workflows.tools.code.judge.JudgeLimits`.

    Raises:
        UsageError: an option of the wrong kind or out of range.
    """
    _check_count("max_rounds", max_rounds, 1)
    _check_count("visible_tests", visible_tests, 0)
    _check_count("max_case_characters", max_case_characters, 20)
    check_flags(
        stop_on_all_passed=stop_on_all_passed,
        reflect_without_tests=reflect_without_tests,
        starter_code=starter_code,
        learned_stop=learned_stop,
    )
    if learned_stop and max_rounds < 2:
        raise WorkflowError("option learned_stop has no effect with max_rounds = 1: there is nothing to stop")
    check_reasoning(reasoning)

    def past(state: State) -> list[dict[str, Any]]:
        return earlier_rounds(state) if max_rounds > 1 else []

    def note(state: State) -> list[dict[str, Any]]:
        return [*past(state), this_round(state, max_case_characters)]

    def unsolved(state: State) -> bool:
        if state.round + 1 >= max_rounds:
            return False
        verdict = verdict_of(state)
        if verdict in (None, "not_graded"):
            return reflect_without_tests
        return not (stop_on_all_passed and verdict == "passed")

    def tests(state: State) -> list[str]:
        return shown_tests(state.task, visible_tests, max_case_characters) or [_NONE]

    inputs: dict[str, Source] = {
        "problem": "task.problem",
        "execution": lambda s: execution(s.task),
        "tests": tests,
        "history": lambda s: history(past(s)),
        "round": lambda s: f"{s.round + 1} of {max_rounds}",
    }
    asked = inputs | {
        "plan": lambda s: s["plan"].best or _NO_REPLY,
        "form": lambda s: code_form(s.task),
    }
    if starter_code:
        asked["execution"] = lambda s: execution(s.task) + start_from(s.task)
    steps: list[Step] = [
        LlmStep("plan", "planner", inputs),
        LlmStep("code", "coder", asked),
        ToolStep("verify", "verifier", request),
        ControlStep("note", note),
    ]
    edges = [
        Edge("plan", "code"),
        Edge("code", "verify", when=has_public_tests),
        Edge("code", "note"),
        Edge("verify", "note"),
    ]
    roles = [_planner(reasoning), _coder(reasoning)]
    if max_rounds > 1:
        judged = inputs | {
            "history": lambda s: history(s["note"].value[:-1]),
            "plan": lambda s: s["note"].value[-1]["plan"],
            "code": lambda s: s["note"].value[-1]["code"],
            "result": lambda s: s["note"].value[-1]["result"],
        }
        del judged["tests"]
        roles.append(_reflector(reasoning))
        steps.append(LlmStep("reflect", "reflector", judged))
        ask = HALT if learned_stop else "reflect"
        edges += [Edge("note", ask, when=unsolved), Edge("reflect", "plan", limit=max_rounds - 1)]
        if learned_stop:
            seen = f"{_TASK}{_HISTORY}Code:\n{{code}}\nResult: {{result}}\n"
            roles.append(stopper(seen, [_OLDEST_FIRST]))
            steps.append(LlmStep(HALT, STOPPER, {name: judged[name] for name in judged if name != "plan"}))
            edges.append(Edge(HALT, "reflect", when=lambda state: goes_on(state[HALT])))
    return Workflow(
        "code",
        roles=roles,
        steps=steps,
        edges=edges,
        tools={"verifier": CodeVerifier(sandbox=sandbox, limits=limits)},
        answer_step="code",
    )


def _check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise WorkflowError(f"option {name} must be a whole number of at least {least}, got {value!r}")


def _role(name: str, prompt: str, tag: str, reasoning: Reasoning, **more: Any) -> Role:
    parser: Parser = StrictTags(tag)
    if reasoning:
        parser = AfterThinking(parser, reasoning == "opened")
    shown = [
        (variables, after_no_thought(reply, reasoning)) for variables, reply in more.pop("demonstrations")
    ]
    return Role(name, prompt=prompt, parser=parser, demonstrations=tuple(shown), **more)


_OLDEST_FIRST: Final = Trim("history", drop="first")
_SHOWN: Final = {
    "problem": "Return twice the number n.",
    "execution": "Write the Python function twice.",
    "tests": ["twice(2) → 4"],
    "history": [_NONE],
    "round": "1 of 2",
}
_TASK: Final = "Problem: {problem}\n{execution}\n"
_HISTORY: Final = "Round {round}. Earlier rounds:\n{history}\n"


def _planner(reasoning: Reasoning) -> Role:
    return _role(
        "planner",
        f"{_TASK}Tests:\n{{tests}}\n{_HISTORY}Plan the code.\nReply: <pseudocode>your steps</pseudocode>",
        "pseudocode",
        reasoning,
        demonstrations=((_SHOWN, "<pseudocode>Multiply n by 2. Return the product.</pseudocode>"),),
        trim=(_OLDEST_FIRST, "tests"),
        max_response_tokens=256,
    )


def _coder(reasoning: Reasoning) -> Role:
    shown = _SHOWN | {"plan": "Multiply n by 2. Return the product.", "form": "def twice(…): …"}
    return _role(
        "coder",
        f"{_TASK}Tests:\n{{tests}}\n{_HISTORY}Plan: {{plan}}\nReply: <code>{{form}}</code>",
        "code",
        reasoning,
        demonstrations=((shown, "<code>\ndef twice(n):\n    return n * 2\n</code>"),),
        trim=(_OLDEST_FIRST, "tests"),
        max_response_tokens=512,
    )


def _reflector(reasoning: Reasoning) -> Role:
    shown = {name: value for name, value in _SHOWN.items() if name != "tests"} | {
        "plan": "Return n.",
        "code": "def twice(n):\n    return n",
        "result": "0 of 1 public tests passed. First failure, wrong answer:\n"
        "Input: twice(2)\nExpected: 4\nJudge: expected 4, got 2",
    }
    return _role(
        "reflector",
        f"{_TASK}{_HISTORY}Plan: {{plan}}\nCode:\n{{code}}\nResult: {{result}}\n"
        "Reply: <reflection>what to change</reflection>",
        "reflection",
        reasoning,
        demonstrations=((shown, "<reflection>n comes back as it is. Return n * 2 instead.</reflection>"),),
        trim=(_OLDEST_FIRST,),
        max_response_tokens=256,
    )


def start_from(task: Mapping[str, Any]) -> str:
    """The task's starter code, on lines of its own; nothing where it has none."""
    code = (task.get("starter_code") or "").strip("\n")
    return f"\nStart from:\n{code}" if code.strip() else ""


def request(state: State) -> dict[str, Any]:
    """What the verifier runs: the coder's reply, in which it looks for the code, and the public tests."""
    task = state.task
    # a reply of thoughts alone reads as nothing; in others the judge looks for the code itself
    reply = "" if state["code"].best == "" else after_thinking(state["code"].text)
    asked = {"code": reply, "tests": task["public_tests"]}
    return asked | {key: task[key] for key in ("fn_name", "time_limit_seconds") if task.get(key) is not None}


def has_public_tests(state: State) -> bool:
    """Whether there is anything to verify."""
    return public_tests(state.task) is not None


def verdict_of(state: State) -> str | None:
    """What became of this round's code on the public tests; None where there are none.

    A reply that the verifier refuses is "refused": the coder's doing, and not passed.
    """
    if not state.ran("verify"):
        return None
    verified = state["verify"]
    return str(verified.value["verdict"]) if verified.valid else "refused"


def this_round(state: State, limit: int) -> dict[str, Any]:
    """This round in parts, as later prompts show them."""
    tests, verdict = public_tests(state.task), verdict_of(state)
    if tests is None or verdict is None:
        result = NO_TESTS
    else:
        result = _REFUSED if verdict == "refused" else result_text(state["verify"].value, tests, limit)
    return {
        "round": state.round + 1,
        "plan": state["plan"].best or _NO_REPLY,
        "code": state["code"].best or _NO_REPLY,
        "result": result,
    }


def earlier_rounds(state: State) -> list[dict[str, Any]]:
    """All rounds before this one, each with the reflection that followed it."""
    if not state.ran("note"):
        return []
    *before, last = state["note"].value
    return [*before, last | {"reflection": state["reflect"].best or _NO_REPLY}]


def history(rounds: list[dict[str, Any]]) -> list[str]:
    """The parts of all rounds in the order of time: what a too long prompt drops stands at the start."""
    parts = [
        part
        for played in rounds
        for part in (
            f"Plan of round {played['round']}: {played['plan']}",
            f"Code of round {played['round']}:\n{played['code']}",
            f"Result of round {played['round']}: {played['result']}",
            f"Reflection on round {played['round']}: {played['reflection']}",
        )
    ]
    return parts or [_NONE]
