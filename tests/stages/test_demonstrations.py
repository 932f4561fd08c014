"""The engine that speaks from a file: its ids are the model's own, and silence is never made up for."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.assemble import assemble
from pipeline.settings.reading import parse_settings
from stages.engines.base import EngineSpec, Weights
from stages.engines.demonstrations import DemonstrationServer
from stages.engines.kinds import check_spec
from stages.weights.chat import ChatRenderer
from tests.learning.teacher import write_demonstrations
from workflows.data.tasks import load_tasks
from workflows.engine import Completion, Message, Sampling
from workflows.errors import NotDemonstrated, UsageError

ASKED: list[Message] = [{"role": "user", "content": "Which way?"}]


def chat(answer: str, asked: list[Message] = ASKED) -> str:
    return json.dumps({"messages": [*asked, {"role": "assistant", "content": answer}]})


def server(tiny: str, path: Path, *lines: str) -> DemonstrationServer:
    path.write_text("\n".join(lines))
    return DemonstrationServer(EngineSpec("team", "demonstrations", tiny, options={"file": str(path)}))


def answer(server: DemonstrationServer, asked: list[Message] = ASKED, **sampling: Any) -> Completion:
    sampling = {"max_tokens": 40, "seed": 0, **sampling}
    return asyncio.run(server.generate("team", server.chat.render(asked), Sampling(**sampling)))


def test_an_answer_has_the_ids_that_the_template_itself_gives_it(tiny: str, tmp_path: Path) -> None:
    said = answer(server(tiny, tmp_path / "d.jsonl", chat("To the left.")))
    renderer = ChatRenderer(tiny)
    prompt, end = renderer.render(ASKED), renderer.end_of_turn
    whole: list[Message] = [*ASKED, {"role": "assistant", "content": "To the left."}, *ASKED]
    rest = renderer.render(whole)[len(prompt) :]
    assert said.token_ids == rest[: rest.index(end) + 1]
    assert said.logprobs == [0.0] * len(said.token_ids)
    assert (said.finish_reason, renderer.decode(said.token_ids)) == ("stop", "To the left.")


def test_several_demonstrations_of_one_prompt_take_turns_by_the_seed(tiny: str, tmp_path: Path) -> None:
    several = server(tiny, tmp_path / "d.jsonl", chat("left"), "", chat("right"))
    said = {seed: several.chat.decode(answer(several, seed=seed).token_ids) for seed in range(20)}
    assert set(said.values()) == {"left", "right"}
    assert said == {seed: several.chat.decode(answer(several, seed=seed).token_ids) for seed in range(20)}


def test_length_and_stop_strings_end_an_answer_as_they_do_elsewhere(tiny: str, tmp_path: Path) -> None:
    one = server(tiny, tmp_path / "d.jsonl", chat("left, then right"))
    cut = answer(one, max_tokens=2)
    assert (len(cut.token_ids), cut.finish_reason) == (2, "length")
    stopped = answer(one, stop=("left",))
    assert (one.chat.decode(stopped.token_ids), stopped.finish_reason) == ("left", "stop")


def test_a_prompt_that_nobody_demonstrated_is_a_failure(tiny: str, tmp_path: Path) -> None:
    one = server(tiny, tmp_path / "d.jsonl", chat("left"))
    with pytest.raises(
        NotDemonstrated, match=r"demonstrates no answer to a prompt of 'team' that ends in .*Where"
    ):
        answer(one, [{"role": "user", "content": "Where to?"}])


def test_new_weights_change_the_version_and_not_what_is_said(tiny: str, tmp_path: Path) -> None:
    one = server(tiny, tmp_path / "d.jsonl", chat("left"))
    before = answer(one)
    asyncio.run(one.reload(Weights("team", "file:///w", 3, "h")))
    after = answer(one)
    assert (before.policy_version, after.policy_version) == (0, 3)
    assert before.token_ids == after.token_ids


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["{"], r"d.jsonl, line 1 is not a chat: '\{'; expected \{\"messages\""),
        ([chat("left"), "[]"], "line 2 is not a chat"),
        (['{"messages": []}'], "line 1 is not a chat"),
        (['{"messages": [{"role": "user", "content": 3}]}'], "has a role or content that is not text"),
        ([json.dumps({"messages": ASKED})], "line 1 does not end in an answer: its last of 1 messages"),
        ([chat("")], "line 1 does not end in an answer"),
        ([chat("left", [])], "line 1 does not end in an answer"),
        ([""], "has no demonstrations; expected one chat a line"),
    ],
)
def test_a_file_that_demonstrates_nothing_is_refused(
    tiny: str, tmp_path: Path, lines: list[str], expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        server(tiny, tmp_path / "d.jsonl", *lines)


@pytest.mark.parametrize("options", [{}, {"flie": "x"}, {"file": 3}, {"file": "d.jsonl", "more": 1}])
def test_options_are_checked_before_anything_starts(tiny: str, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"takes one option, got .*engine_options = \{ file ="):
        check_spec(EngineSpec("team", "demonstrations", tiny, options=options))


def test_a_file_that_is_not_there_is_refused(tiny: str) -> None:
    with pytest.raises(UsageError, match=r"the demonstrations in /nowhere/d.jsonl can't be read"):
        check_spec(EngineSpec("team", "demonstrations", tiny, options={"file": "/nowhere/d.jsonl"}))


def raw(scripted: Any, path: Path, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = scripted()
    speaks = {"checkpoint": "tiny", "engine": "demonstrations", "engine_options": {"file": str(path)}}
    found["models"]["team"] |= speaks
    imitate = {"ppo": {"loss": "supervised"}, "rollout": {"group_size": 1}}
    credit = {"credit": {"use": "rejection", "options": {"at_least": 0.5}}}
    return {**found, **imitate, **credit, **changes}


def test_only_imitation_can_be_trained_from_demonstrations(scripted: Any, tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(chat("left"))
    assemble(parse_settings(raw(scripted, path)))
    sampled = {"ppo": {}, "credit": {"use": "group_relative"}, "rollout": {"group_size": 4}}
    with pytest.raises(UsageError, match='"demonstrations", whose answers it did not sample'):
        assemble(parse_settings(raw(scripted, path, **sampled)))


def test_other_demonstrations_are_another_rollout(scripted: Any, tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    prints = []
    for text in ("left", "right", "left"):
        path.write_text(chat(text))
        prints.append(assemble(parse_settings(raw(scripted, path))).fingerprints["rollout"])
    assert prints[0] == prints[2] != prints[1]


def test_the_teacher_of_the_questions_shows_gold_answers_in_prompts_of_the_workflow(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    workflow = {"use": "qa_decompose", "options": {"top_k": 2, "max_sub_questions": 2}}
    count = write_demonstrations(path, workflow, 0, [0, 24], 24)
    lines = path.read_text().splitlines()
    assert len(lines) == len(set(lines)) == count
    tasks = [t for t in load_tasks("facts").tasks.to_pylist() if t["split"] == "train"]
    gold = {json.loads(t["inputs"])["question"]: json.loads(t["gold"])["answers"] for t in tasks}
    answered = []
    for line in lines:
        *_, asked, said = json.loads(line)["messages"]
        text, _, question = asked["content"].partition("\nQuestion: ")
        if text.startswith("Text: ") and "\nTopic: " not in text:
            answered.append(question.split("\n")[0])
            assert said["content"].removeprefix("<answer>").removesuffix("</answer>") in gold[answered[-1]]
    assert len(answered) == len(set(answered)) == 48
