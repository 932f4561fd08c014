"""The rungs of a newcomer: what it is asked, and what is refused with which remedy."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.replacement.contexts import Contexts, at_places_of, partition_of
from pipeline.replacement.ladder import Place, Rung, format_rung, ladder, reading_of, refuse_impossible
from stages.partition import PartitionSpec
from stages.weights.chat import ChatRenderer
from stages.weights.resolve import resolve_checkpoint
from workflows.errors import UsageError


def row(folder: str, index: int, text: str = "red", reply: str = "ba", **changes: Any) -> dict[str, Any]:
    """A stored turn of a model whose tokenizer is in `folder`."""
    renderer = ChatRenderer(folder)
    messages = [{"role": "user", "content": f"see {text} say"}]
    response = renderer.encode(reply)
    return {
        "episode_id": f"e{index}", "turn_index": 0, "group_id": "g", "model_id": "m", "role": "sender",
        "step": "speak", "round": 0, "branch": "", "policy_version": 3, "status": "ok",
        "prompt_token_ids": renderer.render(messages), "response_token_ids": response,
        "behaviour_logprobs": [-0.5] * len(response), "sampling": json.dumps({"temperature": 1.0}),
        "messages": json.dumps(messages), "response_text": reply, "format_valid": True,
        "context_hash": text, "reward": float(index % 2), **changes,
    }  # fmt: skip


@pytest.fixture(scope="module")
def words() -> str:
    return resolve_checkpoint("tiny-words")


@pytest.fixture(scope="module")
def answers() -> str:
    return resolve_checkpoint("tiny-answers")


def contexts_of(folder: str, count: int = 6) -> Contexts:
    rows = [row(folder, index, ("red", "green")[index % 2]) for index in range(count)]
    turns = [(r["episode_id"], turn, model) for r in rows for turn, model in enumerate(("m", "other"))]
    return Contexts(tuple(rows), tuple(turns), (0,))


def place(folder: str, **changes: Any) -> Place:
    return replace(Place("m", folder, 16, (), {}, 1), **changes)


def rungs_of(old: str, new: str, *, positions: int = 2048, **changes: Any) -> dict[str, Rung]:
    its_place = place(old, **changes)
    found = ladder(its_place, new, positions, contexts_of(old), reading_of(its_place, new))
    return {rung.name: rung for rung in found}


def test_a_newcomer_of_the_same_family_passes_every_rung(words: str) -> None:
    rungs = rungs_of(words, words)
    assert {rung.verdict for rung in rungs.values()} == {"ok"}
    refuse_impossible(list(rungs.values()))


def test_another_vocabulary_and_template_differ_and_are_no_obstacle(words: str, answers: str) -> None:
    rungs = rungs_of(words, answers)
    assert rungs["tokenizer"].verdict == "differs"
    assert "text of stored turns" in rungs["tokenizer"].found
    assert rungs["replies"].verdict == "ok"
    assert rungs["chat template"].verdict == "differs"
    refuse_impossible(list(rungs.values()))


def test_what_makes_a_swap_impossible_is_refused_with_the_remedy(words: str, tmp_path: Path) -> None:
    short = rungs_of(words, words, positions=8)
    assert short["context length"].verdict == "impossible"
    with pytest.raises(
        UsageError, match=r"expected 16 tokens .* found 8 positions; pass --set models\.m\.max"
    ):
        refuse_impossible(list(short.values()))

    deaf = tmp_path / "deaf"  # a template that takes no chat
    shutil.copytree(words, deaf)
    (deaf / "chat_template.jinja").write_text("{{ raise_exception('only tools') }}")
    with pytest.raises(UsageError, match=r"only tools.*chat_template\.jinja"):
        refuse_impossible(list(rungs_of(words, str(deaf)).values()))

    mute = tmp_path / "mute"  # other words for everything that is said here
    shutil.copytree(words, mute)
    tokenizer = json.loads((mute / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {w if w.startswith("<") else f"x{w}": i for w, i in vocabulary.items()}
    (mute / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UsageError, match="none of them comes back as it was"):
        refuse_impossible(list(rungs_of(words, str(mute)).values()))


def test_stop_texts_must_be_writable(words: str, tmp_path: Path) -> None:
    tiny = resolve_checkpoint("tiny")
    assert rungs_of(tiny, tiny, stops=("</answer>",))["stop"] == Rung(
        "stop", "an end of turn and the stop texts '</answer>'", "both"
    )
    lost = rungs_of(words, words, stops=("now",))["stop"]
    assert (lost.verdict, "'now'" in lost.remedy) == ("impossible", True)
    endless = tmp_path / "endless"
    shutil.copytree(tiny, endless)
    (endless / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert rungs_of(tiny, str(endless))["stop"].verdict == "impossible"


def test_replies_that_do_not_parse_are_refused_unless_they_will_be_taught() -> None:
    assert format_rung(0, 8, 8, 1.0, 0.0, is_taught=False).verdict == "impossible"
    assert format_rung(0, 8, 8, 1.0, 0.0, is_taught=True).verdict == "differs"
    assert format_rung(3, 8, 8, 0.9, 0.5, is_taught=True).verdict == "impossible"
    assert format_rung(8, 8, 8, 0.9, 0.5, is_taught=True).verdict == "ok"
    assert format_rung(0, 0, 8, None, 0.0, is_taught=False).verdict == "differs"


def test_stored_turns_become_the_newcomers_own_tokens(words: str, answers: str) -> None:
    contexts = contexts_of(words)
    spec = PartitionSpec("m", 1, 2, 64, 0, shared_prefix=True)
    (as_stored,) = partition_of(contexts.rows, spec)
    stored = {r["episode_id"]: r for r in contexts.rows}
    for r in as_stored.to_pylist():
        assert r["prompt_token_ids"] == stored[r["episode_id"]]["prompt_token_ids"]
    reading = reading_of(place(words), answers)
    (own,) = partition_of(contexts.rows, spec, reading)
    renderer = ChatRenderer(answers)
    by_key = {r["episode_id"]: r for r in own.to_pylist()}
    assert by_key["e0"]["response_token_ids"] == renderer.encode("ba")
    assert by_key["e1"]["prompt_token_ids"] == renderer.render(json.loads(contexts.rows[1]["messages"]))
    assert set(own["mini_batch"].to_pylist()) == {0, 1}
    placed = at_places_of(as_stored, own)
    keys = ("episode_id", "mini_batch", "micro_batch", "rank")
    assert sorted(map(str, placed.select(keys).to_pylist())) == sorted(map(str, own.select(keys).to_pylist()))


def test_what_is_measured_is_not_what_is_taught(words: str) -> None:
    contexts = contexts_of(words, 20)
    held_out, taught = contexts.held_out, contexts.taught
    assert (len(held_out.rows), len(taught.rows)) == (4, 16)
    assert not {r["episode_id"] for r in held_out.rows} & {r["episode_id"] for r in taught.rows}
    assert {turn[0] for turn in held_out.turns} == {r["episode_id"] for r in held_out.rows}
    assert {r["reward"] for r in contexts.earned(1.0).rows} == {1.0}
    few = contexts_of(words, 3)  # too few to hold any out
    assert few.held_out is few.taught is few
