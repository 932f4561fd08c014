"""One turn delivers something else: what is asked again for it, with which seeds, and who gets what."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tests.support.replays import SHIPPED, Stage, Verifier, content, places, stored, team_of
from workflows.errors import UsageError, WorkflowError
from workflows.playing.counterfactual import WORDED, Counterfactual, Intervention
from workflows.playing.record import Played
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.state import TurnKey
from workflows.vocabulary import Op

ALL = sorted(SHIPPED)


def replies(played: Played) -> list[TurnKey]:
    return [TurnKey(t["step"], t["round"], t["branch"]) for t in played.turns if t["event"] == "llm"]


def at(played: Played, key: TurnKey) -> dict[str, Any]:
    (row,) = (t for t in played.turns if (t["step"], t["round"], t["branch"]) == key)
    return row


def seed(row: dict[str, Any]) -> int:
    return int(json.loads(row["sampling"])["seed"])


@pytest.mark.parametrize("name", ALL)
def test_every_reply_of_every_workflow_can_be_said_otherwise(name: str) -> None:
    """What was not led to by the message stays a copy; what is asked otherwise has the seed of before."""
    workflow, inputs = team_of(name)
    stage = Stage(workflow, inputs)
    first = stage.play()
    rows = stored(first)
    for key in replies(first):
        nothing = stage.play(Counterfactual.at(rows, Intervention(key, Op.NONE)))
        assert content(nothing) == content(first)
        ops = [Intervention(key, Op.RESAMPLE, alternative=n) for n in (1, 2)]
        ops += [Intervention(key, Op.DROP), Intervention(key, Op.NULL, text="nothing to say")]
        for intervention in ops:
            asked = stage.asked
            played = stage.play(Counterfactual.at(rows, intervention))
            again = stage.play(Counterfactual.at(rows, intervention))
            assert content(again) == content(played)
            llm = [t for t in played.turns if t["event"] == "llm" and t["attempts"]]
            sampled = [t for t in llm if t["origin"] == "sampled"]
            assert stage.asked - asked == 2 * len(sampled)
            target = at(played, key)
            if intervention.op == Op.RESAMPLE:
                assert target["origin"] == "sampled"
                assert target["context_hash"] == at(first, key)["context_hash"]
                assert seed(target) != seed(at(first, key))
            else:  # its own row is what it said
                assert target["origin"] == "copied"
                assert target["response_text"] == at(first, key)["response_text"]
            before = {(t["step"], t["round"], t["branch"]): t for t in first.turns}
            for turn in sampled:
                then = before.get((turn["step"], turn["round"], turn["branch"]))
                if then is None or turn is target:
                    continue
                assert turn["context_hash"] != then["context_hash"]
                assert seed(turn) == seed(then)
            earlier = [t for t in llm if t["turn_index"] < target["turn_index"]]
            assert {t["origin"] for t in earlier} <= {"copied"}


@pytest.mark.parametrize("name", ALL)
def test_the_same_words_again_change_nothing(name: str) -> None:
    """The null test of a paraphrase: a replacement that says the same has no effect."""
    workflow, inputs = team_of(name)
    stage = Stage(workflow, inputs)
    first = stage.play()
    asked = stage.asked
    for key in replies(first):
        same = Intervention(key, Op.PARAPHRASE, text=at(first, key)["response_text"])
        assert content(stage.play(Counterfactual.at(stored(first), same))) == content(first)
    assert stage.asked == asked


def panel(readers: int = 3) -> ScriptWorkflow:
    """One speaks, all others read it at the same time, and one sums up."""

    async def run(team: Any, task: Any) -> None:
        said = await team.call("speaker", {"text": task["question"]})

        async def read(branch: Any, number: int) -> Any:
            return await branch.call("reader", {"text": [number, said.text]}, reads=[said])

        heard = await team.each(range(readers), read)
        await team.call("end", {"text": [h.text for h in heard]}, reads=heard)

    roles = [Role(r, "{text}") for r in ("speaker", "reader", "end")]
    return ScriptWorkflow("panel", roles, run)


def of_prompt(messages: Any, sampling: Any) -> str:
    """Other words for every prompt, whatever the seed."""
    return hashlib.blake2b(messages[-1]["content"].encode(), digest_size=4).hexdigest()


SPEAKER = TurnKey("speaker", 0, "")


def test_a_mask_takes_the_message_from_one_recipient_alone() -> None:
    stage = Stage(panel(), {"question": "?"}, reply=of_prompt)
    first = stage.play()
    asked = stage.asked
    reader = TurnKey("reader", 0, "1")
    masked = stage.play(Counterfactual.at(stored(first), Intervention(SPEAKER, Op.MASK, recipient=reader)))
    assert places(masked, "sampled") == [("reader", 0, "1"), ("end", 0, "")]
    assert stage.asked - asked == 2  # what the reader would be asked was found without asking anybody
    dropped = stage.play(Counterfactual.at(stored(first), Intervention(SPEAKER, Op.DROP)))
    assert len(places(dropped, "sampled")) == 4
    assert at(masked, reader)["messages"] == at(dropped, reader)["messages"] != at(first, reader)["messages"]
    assert at(masked, reader)["response_text"] == at(dropped, reader)["response_text"]
    said = Intervention(SPEAKER, Op.SWAP, text="other words", recipient=reader)
    swapped = stage.play(Counterfactual.at(stored(first), said))
    assert "other words" in at(swapped, reader)["messages"]
    assert places(swapped, "sampled") == [("reader", 0, "1"), ("end", 0, "")]


@pytest.mark.parametrize("name", ["debate", "code", "qa_decompose", "orchestrate_workers", "conversations"])
def test_masks_in_graphs_functions_conversations_and_with_tools(name: str) -> None:
    workflow, inputs = team_of(name)
    verifier = Verifier()
    if "verifier" in workflow.tools:
        workflow = workflow.with_tools({"verifier": verifier})
    stage = Stage(workflow, inputs)
    first = stage.play()
    index = {t["turn_index"]: t for t in first.turns}
    edges = [
        (index[p], t) for t in first.turns if t["event"] == "llm"
        for p in t["parents"] if index[p]["event"] == "llm"
    ]  # fmt: skip
    assert edges
    tried = 0
    for producer, reader in edges:
        key, recipient = (TurnKey(t["step"], t["round"], t["branch"]) for t in (producer, reader))
        base = Counterfactual.at(stored(first), Intervention(key, Op.MASK, recipient=recipient))
        calls = verifier.calls
        try:
            masked = stage.play(base)
        except WorkflowError:
            continue  # without the message the reader is not asked at all
        tried += 1
        others = [t for t in masked.turns if t["turn_index"] < reader["turn_index"] and t["event"] == "llm"]
        assert {t["origin"] for t in others} <= {"copied"}
        tool_turns = [t for t in masked.turns if t["event"] == "tool" and t["origin"] != "copied"]
        assert verifier.calls - calls == len([t for t in tool_turns if t["tool"] == "verifier"])
    assert tried


def test_a_mask_of_what_a_turn_does_not_read_changes_nothing() -> None:
    async def run(team: Any, task: Any) -> None:
        said = await team.call("speaker", {"text": "a"})
        await team.call("reader", {"text": "b"})
        await team.call("end", {"text": said.text})

    stage = Stage(ScriptWorkflow("s", [Role(r, "{text}") for r in ("speaker", "reader", "end")], run), {})
    first = stage.play()
    deaf = Intervention(SPEAKER, Op.MASK, recipient=TurnKey("reader", 0, ""))
    assert content(stage.play(Counterfactual.at(stored(first), deaf))) == content(first)


def test_a_mask_for_who_is_not_asked_without_the_message_says_so() -> None:
    async def run(team: Any, task: Any) -> None:
        if (await team.call("speaker", {"text": "a"})).text:
            await team.call("reader", {"text": "b"})

    stage = Stage(ScriptWorkflow("s", [Role(r, "{text}") for r in ("speaker", "reader")], run), {})
    first = stage.play()
    mask = Intervention(SPEAKER, Op.MASK, recipient=TurnKey("reader", 0, ""))
    with pytest.raises(WorkflowError, match="step 'reader' is not asked, so there is nothing to mask"):
        stage.play(Counterfactual.at(stored(first), mask))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"op": Op.DROP, "text": "x"}, "no other op does"),
        *(({"op": op}, "take the words to deliver") for op in sorted(WORDED)),
        ({"op": Op.MASK}, "takes the place of the one turn"),
        ({"op": Op.RESAMPLE, "recipient": TurnKey("reader", 0, "1")}, "goes to all"),
        ({"op": Op.MASK, "recipient": SPEAKER}, "does not read itself"),
        ({"op": Op.RESAMPLE, "alternative": 0}, "0 is the stored reply"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Intervention(SPEAKER, **options)


def test_only_replies_of_roles_that_are_there_are_replaced() -> None:
    workflow, inputs = team_of("qa_decompose")
    first = Stage(workflow, inputs).play()
    tool = next(t for t in first.turns if t["event"] == "tool")
    for key in (TurnKey("nobody", 0, ""), TurnKey(tool["step"], tool["round"], tool["branch"])):
        with pytest.raises(UsageError, match="is not a reply of a role"):
            Counterfactual.at(stored(first), Intervention(key, Op.DROP))
    deaf = Intervention(replies(first)[0], Op.MASK, recipient=TurnKey("nobody", 0, ""))
    with pytest.raises(UsageError, match="the recipient, step 'nobody'"):
        Counterfactual.at(stored(first), deaf)
