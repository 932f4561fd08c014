"""A stored episode played again: what is the same is served, what is not is asked, and the rows say which."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.replays import LINEAGE, SHIPPED, Stage, Verifier, content, places, stored, team_of
from tests.support.small_plays import say, workflow
from workflows.engine import ChatReply
from workflows.errors import InfraError, ToolRefusal
from workflows.graph import Edge, Workflow
from workflows.loading import BUILTIN_WORKFLOWS
from workflows.playing.base_episode import BaseEpisode
from workflows.playing.record import Played
from workflows.roles import Role, RoleSettings
from workflows.script import ScriptWorkflow
from workflows.steps import LlmStep, ToolStep
from workflows.testing import ScriptedEngine

ALL = sorted(SHIPPED)


def test_every_workflow_that_ships_is_played_here() -> None:
    assert {use for use, _, _ in SHIPPED.values()} == set(BUILTIN_WORKFLOWS)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("order", [None, 1, 2])
def test_a_replay_of_nothing_new_asks_no_model_and_gives_equal_rows(name: str, order: int | None) -> None:
    workflow, inputs = team_of(name)
    for sample in range(4):
        stage = Stage(workflow, inputs, order=order)
        first = stage.play(sample=sample)
        assert first.episode["status"] == "ok", first.episode["error"]
        asked = stage.asked
        again = stage.play(BaseEpisode.of(stored(first)), sample=sample)
        assert stage.asked == asked
        assert content(again) == content(first)
        assert {t["origin"] for t in again.turns if t["event"] != "tool"} == {"copied"}
        again_too = stage.play(BaseEpisode.of(stored(again), alternative=1), sample=sample)
        assert stage.asked == asked
        assert content(again_too) == content(first)


@pytest.mark.parametrize("name", ALL)
def test_alternative_0_samples_what_was_sampled_before(name: str) -> None:
    """New versions of weights that say the same: every turn is sampled anew, with the seeds of before."""
    workflow, inputs = team_of(name)
    stage = Stage(workflow, inputs)
    first = stage.play()
    for engine in stage.engines.values():
        engine.policy_version = 1
    again = stage.play(BaseEpisode.of(stored(first)))
    versions = ("policy_version", "team_version")
    assert content(again, *versions) == content(first, *versions)
    assert not [t for t in again.turns if t["event"] == "llm" and t["origin"] != "sampled"]
    in_block_2 = stage.play(BaseEpisode.of(stored(first)), block=2)
    assert [t["sampling"] for t in in_block_2.turns] == [t["sampling"] for t in first.turns]


@pytest.mark.parametrize("name", ALL)
def test_only_what_the_new_weights_lead_to_is_sampled_anew(name: str) -> None:
    """For each role: weights of that role alone have moved. Its turns are sampled anew, in an alternative
    with other seeds; a turn that was asked the same stays, whoever it is of."""
    workflow, inputs = team_of(name)
    for role in workflow.roles:
        stage = Stage(workflow, inputs)
        first = stage.play()
        stage.engines[role].policy_version = 7
        asked = stage.asked
        again = stage.play(BaseEpisode.of(stored(first), alternative=2), block=2)
        assert again.episode["status"] == "ok", again.episode["error"]
        before = {(t["step"], t["round"], t["branch"]): t for t in stored(first)}
        sampled = [t for t in again.turns if t["event"] == "llm" and t["origin"] == "sampled"]
        assert stage.asked - asked == len(sampled)
        for turn in stored(again):
            then = before.get((turn["step"], turn["round"], turn["branch"]))
            if turn["event"] != "llm":
                continue
            same = then and turn["context_hash"] == then["context_hash"] and turn["role"] == then["role"]
            assert turn["origin"] == ("copied" if same and turn["role"] != role else "sampled")
            if turn["origin"] == "copied":
                kept = ("response_token_ids", "behaviour_logprobs", "sampling", "policy_version", "attempts")
                assert all(turn[c] == then[c] for c in (*kept, "team_version"))
            elif then is not None:
                assert json.loads(turn["sampling"])["seed"] != json.loads(then["sampling"])["seed"]
        assert any(t["role"] == role for t in sampled) == any(t["role"] == role for t in first.turns)


def test_an_episode_counts_what_was_asked_and_says_where_it_begins_with_a_copy() -> None:
    workflow, inputs = team_of("math")
    stage = Stage(workflow, inputs)
    first = stage.play()
    last = first.turns[-1]["role"]
    stage.engines[last].policy_version = 1
    again = stage.play(BaseEpisode.of(stored(first), alternative=1), block=1)
    copied, sampled = ([t for t in again.turns if t["origin"] == o] for o in ("copied", "sampled"))
    assert copied
    assert sampled
    episode = again.episode
    assert episode["num_response_tokens"] == sum(t["num_response_tokens"] for t in sampled)
    assert episode["num_prompt_tokens"] == sum(t["num_prompt_tokens"] for t in sampled)
    assert episode["num_copied_tokens"] == sum(t["num_response_tokens"] for t in copied)
    assert episode["base_episode_id"] == first.episode["episode_id"] == "00002/task/1/3"
    assert episode["episode_id"] == "00002.1/task/1/3"
    assert episode["replay_from_turn"] == min(t["turn_index"] for t in sampled)
    assert {(t["base_episode_id"], t["replay_from_turn"]) for t in again.turns} == {
        (episode["base_episode_id"], episode["replay_from_turn"])
    }
    assert not any(first.episode[name] for name in LINEAGE if name in first.episode)
    whole = stage.play(BaseEpisode.of(stored(again)), block=1)  # again from its own rows
    assert content(whole) == content(again)
    assert whole.episode["replay_from_turn"] == len(whole.turns)
    assert (whole.episode["num_response_tokens"], whole.episode["num_prompt_tokens"]) == (0, 0)


# --- when a stored turn is not what would be asked now ---------------------------------------------


def chain(roles: int = 3, **changes: Any) -> Workflow:
    speakers = [Role(f"r{i}", "{text}", **changes) for i in range(roles)]
    texts: list[Any] = ["task.question", *((lambda s, j=i: s[f"s{j}"].text) for i in range(roles - 1))]
    steps = [LlmStep(f"s{i}", f"r{i}", {"text": texts[i]}) for i in range(roles)]
    return Workflow("chain", speakers, steps, [Edge(f"s{i}", f"s{i + 1}") for i in range(roles - 1)])


ASKED = {"question": "?"}


def played_from(first: Played, *, workflow: Any = None, **changes: Any) -> Played:
    return Stage(workflow or chain(), ASKED, **changes).play(BaseEpisode.of(stored(first), alternative=1))


def test_another_way_to_sample_is_another_question() -> None:
    first = Stage(chain(), ASKED).play()
    cooler = played_from(first, settings={"r1": RoleSettings(temperature=0.5)})
    assert places(cooler, "copied") == [("s0", 0, "")]
    shorter = played_from(first, settings={"r2": RoleSettings(max_response_tokens=5)})
    assert places(shorter, "sampled") == [("s2", 0, "")]


def test_another_model_base_tokenizer_or_kind_of_logprobs_is_asked_anew() -> None:
    first = Stage(chain(), ASKED).play()

    def engines(**changes: str) -> dict[str, ScriptedEngine]:
        made = {f"r{i}": ScriptedEngine(lambda m, s: str(s.seed), model_id=f"r{i}") for i in range(3)}
        for name, value in changes.items():
            setattr(made["r1"], name, value)
        return made

    assert not places(played_from(first, engines=engines()), "sampled")
    for changes in ({"base_id": "b"}, {"tokenizer_hash": "t"}, {"logprobs_mode": "raw_logprobs"}):
        again = played_from(first, engines=engines(**changes))
        assert places(again, "sampled") == [("s1", 0, ""), ("s2", 0, "")]
    of_one = {"r0": engines()["r0"]}  # one model speaks for all
    assert places(played_from(first, engines=of_one), "copied") == [("s0", 0, "")]


def test_a_changed_prompt_is_asked_anew_and_a_changed_parser_reads_the_stored_words() -> None:
    from workflows.parsers import Tag

    first = Stage(chain(), ASKED).play()
    other = chain()
    other.roles["r1"] = Role("r1", "Say: {text}")
    assert places(played_from(first, workflow=other), "copied") == [("s0", 0, "")]
    strict = played_from(first, workflow=chain(parser=Tag("answer")))
    assert not places(strict, "sampled")
    assert [t["format_valid"] for t in strict.turns] == [
        "<answer>" in t["response_text"] for t in first.turns
    ]


def test_a_turn_that_failed_is_asked_again_and_what_it_left_out_is_played() -> None:
    async def fails(messages: Any, sampling: Any) -> None:
        raise InfraError("down")

    stage = Stage(chain(), ASKED)
    good = stage.engines["r1"]
    stage.engines["r1"]._before = fails
    stage.player._limits = replace(stage.player._limits, call_attempts=1)
    broken = stage.play()
    assert broken.episode["status"] == "infra_error"
    good._before = None
    again = stage.play(BaseEpisode.of(stored(broken)))
    assert again.episode["status"] == "ok"
    assert places(again, "copied") == [("s0", 0, "")]
    assert content(again) == content(stage.play())


class ApiModel:
    """A frozen model that takes messages and tells no ids."""

    model_id = base_id = "r1"
    policy_version = 0
    max_model_len = 1000
    trainable = False

    def __init__(self) -> None:
        self.completions: list[ChatReply] = []

    def count_tokens(self, messages: Any) -> int:
        return 10

    async def chat(self, messages: Any, sampling: Any) -> ChatReply:
        self.completions.append(ChatReply(f"said {sampling.seed}", "stop", 0, 10, 5))
        return self.completions[-1]


def test_a_model_behind_an_api_is_served_by_its_messages() -> None:
    engines: Any = {"r0": ScriptedEngine(lambda m, s: str(s.seed), model_id="r0"), "r1": ApiModel()}
    stage = Stage(chain(2), ASKED, engines=engines)
    first = stage.play()
    assert first.turns[1]["response_token_ids"] is None
    again = stage.play(BaseEpisode.of(stored(first)))
    assert content(again) == content(first)
    assert stage.asked == 2
    engines["r0"].policy_version = 1
    assert places(stage.play(BaseEpisode.of(stored(first), alternative=1)), "sampled") == [
        ("s0", 0, ""),
        ("s1", 0, ""),
    ]


# --- tools -----------------------------------------------------------------------------------------


class Search:
    """Counts its calls; refuses one request."""

    def __init__(self, deterministic: bool) -> None:
        self.deterministic = deterministic
        self.calls = 0

    def __call__(self, request: Any) -> Any:
        self.calls += 1
        if "refused" in request:
            raise ToolRefusal("no such thing")
        return {"found": [request, 1.5, None]}


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_deterministic_tool_is_served_and_any_other_is_called_again_and_marked(deterministic: bool) -> None:
    search = Search(deterministic)
    steps = [
        ToolStep("refuse", "search", lambda s: "refused"),
        ToolStep("find", "search", lambda s: s.task["question"]),
        say("tell", lambda s: str((s["find"].value, s["refuse"].valid))),
    ]
    edges = [Edge("refuse", "find"), Edge("find", "tell")]
    stage = Stage(workflow(steps, edges, {"search": search}), ASKED)
    first = stage.play()
    assert [t["status"] for t in first.turns[:2]] == ["tool_error", "ok"]
    again = stage.play(BaseEpisode.of(stored(first)))
    assert content(again) == content(first)
    assert search.calls == (2 if deterministic else 4)
    assert [t["origin"] for t in again.turns] == [*["copied" if deterministic else "replayed"] * 2, "copied"]
    other = Stage(workflow(steps, edges, {"search": search}), {"question": "another"})
    asked = other.play(BaseEpisode.of(stored(first), alternative=1))
    assert [t["origin"] for t in asked.turns][1:] == ["sampled", "sampled"]


def test_what_a_verifier_that_is_not_deterministic_says_anew_is_what_counts() -> None:
    workflow, inputs = team_of("code")
    verifier = Verifier()
    stage = Stage(workflow.with_tools({"verifier": verifier}), inputs)
    first = stage.play()
    calls = verifier.calls
    again = stage.play(BaseEpisode.of(stored(first)))
    assert verifier.calls == 2 * calls > 0
    assert len(places(again, "replayed")) == calls


# --- the workflow decides again --------------------------------------------------------------------


def test_control_flow_counts_and_not_what_a_turn_read() -> None:
    """The second role reads nothing of the first, which decides whether it comes: it is a turn of the replay
    only where the new words of the first call for it."""

    async def run(team: Any, task: Any) -> None:
        first = await team.call("r0", {"text": "go?"})
        if int(first.text) % 2:
            await team.call("r1", {"text": "odd"})
        await team.call("r2", {"text": "end"})

    roles = [Role(f"r{i}", "{text}") for i in range(3)]
    said = {"go": "1"}
    stage = Stage(ScriptWorkflow("s", roles, run), ASKED, reply=lambda m, s: said["go"])
    odd = stage.play()
    assert [t["step"] for t in odd.turns] == ["r0", "r1", "r2"]
    assert not odd.turns[1]["parents"]
    stage.engines["r0"].policy_version, said["go"] = 1, "2"
    even = stage.play(BaseEpisode.of(stored(odd), alternative=1))
    assert [(t["step"], t["origin"]) for t in even.turns] == [("r0", "sampled"), ("r2", "copied")]
    assert even.episode["replay_from_turn"] == 0
    said["go"] = "3"
    back = stage.play(BaseEpisode.of(stored(even), alternative=2))
    assert [(t["step"], t["origin"]) for t in back.turns] == [("r0", "copied"), ("r2", "copied")]


def test_the_chance_of_the_workflow_s_own_code_is_that_of_the_stored_episode() -> None:
    async def run(team: Any, task: Any) -> None:
        await team.call("r0", {"text": str(team.seed("order") % 1000)})

    stage = Stage(ScriptWorkflow("s", [Role("r0", "{text}")], run), ASKED)
    first = stage.play()
    later = stage.play(BaseEpisode.of(stored(first), alternative=1), block=4)
    assert places(later, "copied") == [("r0", 0, "")]
    stage.engines["r0"].policy_version = 1
    third = stage.play(BaseEpisode.of(stored(later), alternative=2), block=5)
    assert third.turns[0]["context_hash"] == first.turns[0]["context_hash"]
    assert third.turns[0]["sampling"] != first.turns[0]["sampling"]


def test_a_base_needs_turns() -> None:
    with pytest.raises(ValueError, match="got none"):
        BaseEpisode.of([])


# --- an engine with weights ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_on_the_torch_engine_too_a_replay_of_nothing_new_gives_equal_rows(name: str, tiny: str) -> None:
    from stages.engines.torch.server import TorchServer
    from stages.weights.chat import ChatRenderer
    from tests.support.torch_engines import spec_of

    class Local:
        """One model of a torch server in this process."""

        base_id = "base"
        trainable = True
        logprobs_mode = "processed_logprobs"
        policy_version = 0
        max_model_len = 2048

        def __init__(self, server: TorchServer, model_id: str) -> None:
            self.server, self.model_id, self.renderer = server, model_id, ChatRenderer(tiny)
            self.tokenizer_hash = self.renderer.tokenizer_hash
            self.render, self.render_after = self.renderer.render, self.renderer.render_after
            self.special_tokens_in = self.renderer.special_tokens_in
            self.completions: list[Any] = []

        async def generate(self, prompt: Any, sampling: Any) -> Any:
            completion = await self.server.generate("m", prompt, sampling)
            text = self.renderer.decode(completion.token_ids)
            completion = replace(completion, text=text, policy_version=self.policy_version)
            self.completions.append(completion)
            return completion

    async def work() -> None:
        server = TorchServer(spec_of(tiny, max_model_len=2048))
        try:
            workflow, inputs = team_of(name)
            engines: Any = {role: Local(server, role) for role in workflow.roles}
            short = {r: RoleSettings(max_response_tokens=6, demonstrations=False) for r in workflow.roles}
            stage = Stage(workflow, inputs, engines=engines, settings=short)
            first = await stage.aplay()
            assert first.episode["status"] == "ok", first.episode["error"]
            asked = stage.asked
            again = await stage.aplay(BaseEpisode.of(stored(first)))
            assert stage.asked == asked > 0
            assert content(again) == content(first)
            last = [t["role"] for t in first.turns if t["event"] == "llm"][-1]
            engines[last].policy_version = 1
            other = await stage.aplay(BaseEpisode.of(stored(first), alternative=1))
            fresh = [t for t in other.turns if t["origin"] == "sampled" and t["event"] == "llm"]
            assert stage.asked - asked == len(fresh) > 0
        finally:
            await server.close()

    asyncio.run(work())
