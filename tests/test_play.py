"""The player: what every row says, what fails how, and what is refused.

Which step runs when is the matter of test_execution.py.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from workflows.engine import Completion, Message, Sampling
from workflows.errors import InfraError, ToolRefusal, UsageError
from workflows.graph import ControlStep, Edge, LlmStep, Step, Tool, ToolStep, Workflow
from workflows.models import Model, ModelMap
from workflows.parsers import JsonKey, Parsed, Tag
from workflows.play import STOP_REASONS, Played, Player, PlayLimits
from workflows.roles import Role, RoleSettings
from workflows.state import State
from workflows.testing import Reply, ScriptedEngine, ScriptedModel, play_once
from workflows.trajectory import EPISODES, STATUSES, TURNS, rows_to_table, seed_for

TIMES = {"queued_at", "started_at", "first_token_at", "ended_at"}
SAYER = Role("sayer", "{text}", Tag("a"))


def without_times(played: Played) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    turns = [{k: v for k, v in row.items() if k not in TIMES} for row in played.turns]
    return turns, {k: v for k, v in played.episode.items() if k not in {"started_at", "seconds"}}


def visits(played: Played) -> list[tuple[str, int, str]]:
    return [(t["step"], t["round"], t["branch"]) for t in played.turns]


def named(played: Played, step: str) -> list[dict[str, Any]]:
    return [t for t in played.turns if t["step"] == step]


def say(name: str, text: Any = "task.question", **options: Any) -> LlmStep:
    return LlmStep(name, "sayer", {"text": text}, **options)


def note(name: str, compute: Callable[[State], Any] = lambda s: None, **options: Any) -> ControlStep:
    return ControlStep(name, compute, **options)


def workflow(
    steps: Sequence[Step], edges: Sequence[Edge] = (), tools: Mapping[str, Tool] | None = None
) -> Workflow:
    return Workflow(
        "w", [SAYER] if any(isinstance(s, LlmStep) for s in steps) else [], steps, edges, tools=tools
    )


def seeded(messages: Sequence[Message], sampling: Sampling) -> str:
    """Well-formed four times in five, and different for each seed."""
    luck = random.Random(sampling.seed)
    return f"<a>{luck.randrange(100)}</a>" if luck.random() < 0.8 else "no tag"


def play(w: Workflow, reply: Reply = seeded, **options: Any) -> Played:
    return play_once(w, {"question": "?"}, reply, **options)


NO_MODELS = ModelMap({}, {})


def test_gold_never_reaches_a_workflow() -> None:
    w = workflow([say("a")])
    player = Player(w, {"m": ScriptedEngine(seeded)}, MAP, {}, PlayLimits(), 0)
    task = {"task_id": "t", "inputs": {"question": "?"}, "gold": {"answers": ["x"]}}
    with pytest.raises(UsageError, match="gold"):
        asyncio.run(player.play(task, iteration=0, sample=0))


MAP = ModelMap({"m": Model("m", "b", "scripted")}, {"sayer": "m"})


def test_a_parser_that_raises_is_named_and_its_tokens_are_kept() -> None:
    class Bad:
        def parse(self, text: str) -> Parsed:
            raise KeyError("oops")

    w = Workflow("w", [Role("sayer", "{text}", Bad())], [say("a")])
    played = play(w)
    assert played.episode["stop_reason"] == "workflow_error"
    assert "KeyError: 'oops' (test_play.py:" in played.turns[0]["status_detail"]
    assert played.turns[0]["response_token_ids"]


# --- failures that are not the policy's, and what is --------------------------------------------


def test_a_call_that_fails_at_first_is_asked_again_with_the_same_seed() -> None:
    seeds = []

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        seeds.append(sampling.seed)
        if len(seeds) < 3:
            raise InfraError("busy")

    played = play(workflow([say("a")]), before=before, limits=PlayLimits(backoff_seconds=0))
    assert played.turns[0]["attempts"] == 3
    assert len(set(seeds)) == 1
    assert without_times(played)[0] == [
        {**row, "attempts": 3} for row in without_times(play(workflow([say("a")])))[0]
    ]


def test_a_programming_error_in_an_engine_is_not_asked_again() -> None:
    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        raise TypeError("wrong argument")

    played = play(workflow([say("a")]), before=before)
    assert (played.turns[0]["attempts"], played.turns[0]["status"]) == (1, "infra_error")
    assert "TypeError: wrong argument (test_play.py:" in played.episode["error"]


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize(("limits", "stop"), [
    (PlayLimits(call_timeout_seconds=0.5), "call_failed"),
    (PlayLimits(episode_timeout_seconds=0.5), "episode_timeout"),
])  # fmt: skip
def test_a_time_limit_keeps_what_was_finished_and_marks_what_was_not(limits: PlayLimits, stop: str) -> None:
    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        if messages[-1]["content"] == "hang":
            await never()

    w = workflow(
        [note("a"), say("b", lambda s: "hang"), say("c", lambda s: "go")], [Edge("a", "b"), Edge("a", "c")]
    )
    played = play(w, before=before, limits=limits)
    assert {t["step"]: t["status"] for t in played.turns} | {"c": ""} == {"a": "ok", "b": "timeout", "c": ""}
    assert named(played, "c")[0]["status"] in ("ok", "malformed")
    assert (played.episode["status"], played.episode["stop_reason"]) == ("timeout", stop)
    assert "step 'b'" in played.episode["error"]


def test_cancelling_a_play_cancels_its_calls_and_is_not_an_answer() -> None:
    cancelled = []

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        try:
            await never()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def run() -> None:
        player = Player(
            workflow([say("a")]), {"m": ScriptedEngine(seeded, before=before)}, MAP, {}, PlayLimits(), 0
        )
        task = asyncio.create_task(
            player.play({"task_id": "t", "inputs": {"question": "?"}}, iteration=0, sample=0)
        )
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert cancelled == [True]


def test_a_call_that_the_engine_cancels_is_a_cancelled_turn() -> None:
    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        raise asyncio.CancelledError

    played = play(workflow([say("a")]), before=before)
    assert (played.turns[0]["status"], played.episode["status"]) == ("cancelled", "cancelled")


BAD_COMPLETIONS: dict[str, dict[str, Any]] = {
    "no tokens": {"token_ids": [], "logprobs": []},
    "1 logprobs for 2 tokens": {"logprobs": [-1.0]},
    "not finite": {"logprobs": [-1.0, float("nan")]},
    "aborted": {"finish_reason": "abort"},
}


@pytest.mark.parametrize("fault", BAD_COMPLETIONS)
def test_a_completion_that_could_poison_an_update_is_an_engine_failure(fault: str) -> None:
    class Faulty(ScriptedEngine):
        async def generate(self, prompt_token_ids: Sequence[int], sampling: Sampling) -> Completion:
            good: dict[str, Any] = {
                "token_ids": [1, 2], "logprobs": [-1.0, -1.0], "text": "<a>x</a>", "finish_reason": "stop",
                "policy_version": 0, "logprobs_mode": "processed_logprobs",
            }  # fmt: skip
            return Completion(**{**good, **BAD_COMPLETIONS[fault]})

    player = Player(workflow([say("a")]), {"m": Faulty(seeded)}, MAP, {}, PlayLimits(backoff_seconds=0), 0)
    played = asyncio.run(player.play({"task_id": "t", "inputs": {"question": "?"}}, iteration=0, sample=0))
    assert played.episode["status"] == "infra_error"
    assert fault in played.episode["error"]
    assert played.turns[0]["response_token_ids"] is None


def test_a_malformed_reply_is_the_policys_doing_and_the_workflow_goes_on_with_no_value() -> None:
    seen: list[Any] = []

    def keep(state: State) -> str:
        seen.append((state["a"].value, state["a"].valid, state["a"].text))
        return "x"

    played = play(workflow([say("a"), say("b", keep)], [Edge("a", "b")]), lambda m, s: "just text")
    assert seen == [(None, False, "just text")]
    assert [(t["status"], t["status_detail"], t["parsed"], t["format_valid"]) for t in played.turns] == [
        ("malformed", "no <a>", "null", False)
    ] * 2
    assert (played.episode["status"], played.episode["stop_reason"]) == ("ok", "finished")


def test_a_reply_at_the_token_limit_is_truncated_whether_or_not_its_format_was_complete() -> None:
    limit = {"sayer": RoleSettings(max_response_tokens=12)}
    replies = {"whole": "<a>x</a> and so on and so on", "cut": "<a>and so on and so on"}
    for name, text in replies.items():
        turn = play(workflow([say("a")]), lambda m, s, text=text: text, role_settings=limit).turns[0]
        assert (turn["status"], turn["finish_reason"]) == ("truncated", "length"), name
        assert len(turn["response_token_ids"]) == 12
        assert turn["format_valid"] == (name == "whole")


# --- tools --------------------------------------------------------------------------------------


def with_tool(tool: Tool, **limits: Any) -> Played:
    steps: list[Step] = [
        ToolStep("find", "search", lambda s: {"query": s.task["question"]}),
        note("after", lambda s: [s["find"].value, s["find"].valid]),
    ]
    w = workflow(steps, [Edge("find", "after")], {"search": tool})
    return play(w, limits=PlayLimits(backoff_seconds=0, **limits))


async def echo(request: Any) -> Any:
    return {"found": [request["query"]]}


def test_a_tool_turn_keeps_request_and_result() -> None:
    for tool in (echo, lambda request: {"found": [request["query"]]}):
        played = with_tool(tool)
        turn = played.turns[0]
        assert (turn["event"], turn["tool"], turn["status"]) == ("tool", "search", "ok")
        assert (turn["tool_request"], turn["tool_result"]) == ('{"query":"?"}', '{"found":["?"]}')
        assert json.loads(played.turns[1]["parsed"]) == [{"found": ["?"]}, True]


def test_what_a_tool_refuses_is_the_policys_doing_and_the_workflow_goes_on() -> None:
    async def refuse(request: Any) -> Any:
        raise ToolRefusal("empty query")

    played = with_tool(refuse)
    assert (played.turns[0]["status"], played.turns[0]["status_detail"]) == ("tool_error", "empty query")
    assert played.turns[0]["attempts"] == 1
    assert json.loads(played.turns[1]["parsed"]) == [None, False]
    assert played.episode["status"] == "ok"


def failing(error: Exception) -> Tool:
    async def tool(request: Any) -> Any:
        raise error

    return tool


@pytest.mark.parametrize(("tool", "status", "attempts", "cause"), [
    (failing(InfraError("index gone")), "infra_error", 3, "index gone"),
    (failing(KeyError("k")), "infra_error", 1, "KeyError: 'k'"),
    (failing(TimeoutError("its own")), "infra_error", 1, "TimeoutError: its own"),
    (never, "timeout", 1, "no reply within 0.01 s"),
    (lambda request: {1}, "infra_error", 1, "the result of tool 'search' is not JSON"),
    (lambda request: float("nan"), "infra_error", 1, "is not JSON"),
])  # fmt: skip
def test_what_a_tool_can_not_do_is_not_the_policys_doing(
    tool: Tool, status: str, attempts: int, cause: str
) -> None:
    played = with_tool(tool, tool_timeout_seconds=0.01 if status == "timeout" else 60)
    assert (played.turns[0]["status"], played.turns[0]["attempts"]) == (status, attempts)
    assert [v[0] for v in visits(played)] == ["find"]
    assert played.episode["status"] == status
    assert cause in played.episode["error"]
    assert "step 'find'" in played.episode["error"]


def test_a_tool_is_started_once_whatever_the_number_of_plays_at_a_time() -> None:
    class Index:
        starts = 0

        async def start(self) -> None:
            await asyncio.sleep(0)
            self.starts += 1

        async def __call__(self, request: Any) -> Any:
            return self.starts

    async def run() -> list[Played]:
        w = workflow([ToolStep("find", "index", lambda s: None)], tools={"index": Index()})
        player = Player(w, {}, NO_MODELS, {}, PlayLimits(), 0)
        task = {"task_id": "t", "inputs": {}}
        return await asyncio.gather(*(player.play(task, iteration=0, sample=i) for i in range(4)))

    assert [p.turns[0]["tool_result"] for p in asyncio.run(run())] == ["1"] * 4


# --- rows ---------------------------------------------------------------------------------------


def team(roles: int = 3) -> Workflow:
    speakers = [Role(f"r{i}", "{text}", Tag("a")) for i in range(roles)]
    steps = [
        LlmStep(f"s{i}", f"r{i}", {"text": "task.question" if i == 0 else f"s{i - 1}"}) for i in range(roles)
    ]
    return Workflow("team", speakers, steps, [Edge(f"s{i}", f"s{i + 1}") for i in range(roles - 1)])


def play_team(groups: Mapping[str, str], **versions: int) -> tuple[Played, dict[str, ScriptedEngine]]:
    ids = sorted(set(groups.values()))
    engines = {m: ScriptedEngine(seeded, model_id=m, base_id=f"base {m}") for m in ids}
    for model_id, version in versions.items():
        engines[model_id].policy_version = version
    models = ModelMap({m: Model(m, f"base {m}", "scripted", trainable=m != "frozen") for m in ids}, groups)
    player = Player(team(), engines, models, {}, PlayLimits(), 7)
    task = {"task_id": "t", "split": "dev", "inputs": {"question": "who?"}}
    return asyncio.run(player.play(task, iteration=3, sample=2)), engines


REGIMES = [
    {"r0": "m", "r1": "m", "r2": "m"},
    {"r0": "m", "r1": "n", "r2": "frozen"},
    {"r0": "m", "r1": "m", "r2": "n"},
]


def test_sharing_regimes_give_the_same_turns_by_other_models() -> None:
    by_model = {"model_id", "base_id", "trainable", "team_version"}
    played = [without_times(play_team(groups)[0]) for groups in REGIMES]
    for (turns, episode), groups in zip(played, REGIMES, strict=True):
        assert [t["model_id"] for t in turns] == [groups[f"r{i}"] for i in range(3)]
        assert [t["trainable"] for t in turns] == [groups[f"r{i}"] != "frozen" for i in range(3)]
        assert episode == played[0][1]
        for turn, first in zip(turns, played[0][0], strict=True):
            assert {k: v for k, v in turn.items() if k not in by_model} == {
                k: v for k, v in first.items() if k not in by_model
            }


def test_rows_hold_exactly_what_the_engine_took_and_returned() -> None:
    played, engines = play_team(REGIMES[0])
    tokenizer = ScriptedModel(seeded)
    for turn, completion in zip(played.turns, engines["m"].completions, strict=True):
        assert turn["response_token_ids"] == completion.token_ids
        assert turn["behaviour_logprobs"] == completion.logprobs
        assert turn["prompt_token_ids"] == tokenizer.render(json.loads(turn["messages"]))
        assert turn["num_prompt_tokens"] == len(turn["prompt_token_ids"])
        assert turn["response_text"] == tokenizer.decode(completion.token_ids)
        assert turn["logprobs_mode"] == "processed_logprobs"
    episode = played.episode
    assert episode["num_turns"] == 3
    assert episode["num_prompt_tokens"] == sum(t["num_prompt_tokens"] for t in played.turns)
    assert episode["num_response_tokens"] == sum(len(c.token_ids) for c in engines["m"].completions)


def test_a_row_says_where_it_stands_and_how_it_was_sampled() -> None:
    turn = play_team(REGIMES[0])[0].turns[1]
    assert turn["episode_id"] == "00003/t/2"
    assert (turn["iteration"], turn["split"], turn["task_id"], turn["sample"]) == (3, "dev", "t", 2)
    assert (turn["event"], turn["step"], turn["role"], turn["origin"]) == ("llm", "s1", "r1", "sampled")
    assert json.loads(turn["sampling"]) == {
        "max_tokens": 128, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "stop": [],
        "seed": seed_for(7, 3, "t", 2, "s1", 0, ""),
    }  # fmt: skip
    assert 0 <= turn["queued_at"] <= turn["ended_at"]


def test_the_version_of_a_row_is_the_one_that_was_asked_not_the_one_at_its_return() -> None:
    played, _ = play_team(REGIMES[1], m=4, n=2)
    assert [t["policy_version"] for t in played.turns] == [4, 2, 0]
    assert [json.loads(t["team_version"]) for t in played.turns] == [{"m": 4, "n": 2, "frozen": 0}] * 3

    engine = ScriptedEngine(seeded, model_id="m")

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        engine.policy_version += 1  # new weights while the reply is under way

    engine._before = before
    player = Player(workflow([say("a")]), {"m": engine}, MAP, {}, PlayLimits(), 0)
    played = asyncio.run(player.play({"task_id": "t", "inputs": {"question": "?"}}, iteration=0, sample=0))
    assert (played.turns[0]["policy_version"], played.turns[0]["team_version"]) == (0, '{"m":0}')


def test_equal_contexts_have_equal_hashes_and_others_do_not() -> None:
    w = workflow([say("a"), say("b"), say("c", lambda s: "other")], [Edge("a", "b"), Edge("b", "c")])
    one, same, other = (t["context_hash"] for t in play(w).turns)
    assert one == same != other


def test_samples_of_a_group_differ_and_the_same_sample_repeats() -> None:
    texts = [
        play_once(team(), {"question": "?"}, seeded, sample=i).turns[0]["response_text"] for i in (0, 1, 0)
    ]
    assert texts[0] == texts[2] != texts[1]


def test_all_rows_fit_their_schemas() -> None:
    failing = note("a", lambda s: s.item)
    branches = workflow([note("a", lambda s: s.item, for_each=lambda s: ["x", "y"])])
    for w in (team(), branches, workflow([failing])):
        played = play(w)
        rows_to_table(played.turns, TURNS)
        rows_to_table([played.episode], EPISODES)
        assert all(set(row) == set(TURNS.names) for row in played.turns)
        assert set(played.episode) == set(EPISODES.names)
        assert played.episode["stop_reason"] in STOP_REASONS
        assert all(row["status"] in STATUSES for row in played.turns)


def test_lone_surrogates_reach_no_engine_and_no_file() -> None:
    steps = [note("a", lambda s: "\udc80"), say("b", lambda s: s["a"].value)]
    played = play_once(workflow(steps, [Edge("a", "b")]), {"question": "\ud800"}, seeded)
    assert played.episode["status"] == "ok"
    rows_to_table(played.turns, TURNS)


# --- limits -------------------------------------------------------------------------------------


def lister() -> Workflow:
    role = Role("sayer", "{passages}\nQuestion: {question}", JsonKey("q"), trim=("passages",))
    inputs = {"passages": lambda s: ["p" * 30] * 10, "question": "task.question"}
    return Workflow("w", [role], [LlmStep("a", "sayer", inputs)])


def test_a_long_prompt_loses_passages_says_so_and_keeps_its_question() -> None:
    room = {"sayer": RoleSettings(max_prompt_tokens=120)}
    turn = play(lister(), role_settings=room).turns[0]
    assert 100 < turn["num_prompt_tokens"] <= 120
    kept = json.loads(turn["messages"])[-1]["content"].count("p" * 30)
    assert json.loads(turn["cut"]) == {"passages": 10 - kept}
    assert json.loads(turn["messages"])[-1]["content"].endswith("Question: ?")


def test_a_prompt_that_can_not_fit_is_never_asked() -> None:
    played = play(lister(), role_settings={"sayer": RoleSettings(max_prompt_tokens=20)})
    turn = played.turns[0]
    assert turn["status"] == played.episode["status"] == "infra_error"
    assert turn["status_detail"] == f"prompt of {turn['num_prompt_tokens']} tokens exceeds 20 after trimming"
    assert turn["prompt_token_ids"] is None
    assert turn["attempts"] == 0


def test_an_episode_stops_at_its_number_of_turns() -> None:
    w = workflow([note("a")], [Edge("a", "a", lambda s: True, limit=100)])
    played = play(w, limits=PlayLimits(max_turns=5))
    assert len(played.turns) == 5
    assert (played.episode["status"], played.episode["stop_reason"]) == ("ok", "max_turns")


@pytest.mark.parametrize("values", [
    {"max_turns": 0}, {"call_attempts": 0}, {"call_timeout_seconds": float("inf")},
    {"tool_timeout_seconds": 0}, {"episode_timeout_seconds": float("nan")}, {"backoff_seconds": -1},
])  # fmt: skip
def test_limits_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(values))):
        PlayLimits(**values)


@pytest.mark.parametrize(("models", "role_settings", "message"), [
    (ModelMap({"m": Model("m", "m", "x")}, {"seyer": "m"}), {}, "did you mean 'sayer'"),
    (NO_MODELS, {}, "role 'sayer' of workflow 'w' has no model"),
    (ModelMap({"n": Model("n", "n", "x")}, {"sayer": "n"}), {}, "model 'n' has no engine; engines: m"),
    (MAP, {"seyer": RoleSettings()}, "the settings names role 'seyer'"),
    (MAP, {"sayer": RoleSettings(max_response_tokens=9000)}, "leaves no room for a prompt in the 8192"),
])  # fmt: skip
def test_a_player_whose_parts_do_not_fit_each_other_is_refused(
    models: ModelMap, role_settings: dict[str, RoleSettings], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Player(workflow([say("a")]), {"m": ScriptedEngine(seeded)}, models, role_settings, PlayLimits(), 0)
