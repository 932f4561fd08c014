"""Tasks of reasoning-gym: disjoint splits, the family's own judgement, and no answer that is run as code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewards.base import PlayedEpisode
from rewards.loading import load_reward
from tests.support.games import GYM, needs, stand_in
from workflows.data import reasoning_gym
from workflows.data.tasks import load_tasks
from workflows.errors import UsageError


@pytest.fixture
def gym(tmp_path: Path) -> Iterator[None]:
    with stand_in(GYM, tmp_path):
        yield from forgotten()


@pytest.fixture
def real_gym() -> Iterator[None]:
    yield from forgotten()


def forgotten() -> Iterator[None]:
    for cached in (reasoning_gym.family, reasoning_gym._known):
        cached.cache_clear()
    yield
    for cached in (reasoning_gym.family, reasoning_gym._known):
        cached.cache_clear()


def made(path: str) -> list[dict[str, Any]]:
    return list(reasoning_gym.tasks(path))


@pytest.mark.usefixtures("gym")
def test_splits_share_no_question_and_each_keeps_its_tasks_when_others_grow() -> None:
    small, large = made("sums?train=20&dev=10&test=10"), made("sums?train=300&dev=40&test=40")
    for rows in (small, large):
        questions = [row["inputs"]["question"] for row in rows]
        assert len(set(questions)) == len(questions)
    ids = {(row["task_id"], row["inputs"]["question"]) for row in large}
    assert {(r["task_id"], r["inputs"]["question"]) for r in small if r["split"] == "test"} <= ids
    assert made("sums?train=20&dev=10&test=10") == small
    other = made("sums?train=20&dev=10&test=10&seed=1000")
    assert {r["inputs"]["question"] for r in small} != {r["inputs"]["question"] for r in other}


@pytest.mark.usefixtures("gym")
def test_they_are_loaded_as_any_task_and_settings_reach_the_family() -> None:
    loaded = load_tasks('sums?train=4&dev=2&largest=3&signs=["plus"]', format="reasoning_gym")
    rows = loaded.tasks.to_pylist()
    assert [row["split"] for row in rows] == ["dev"] * 2 + ["train"] * 4
    assert all(" plus " in json.loads(row["inputs"])["question"] for row in rows)


def episode(gold: dict[str, Any], answer: str | None) -> PlayedEpisode:
    turn = {"event": "llm", "trainable": True, "step": "answer", "format_valid": answer is not None}
    turn |= {"status": "ok", "parsed": answer, "response_text": answer or ""}
    return PlayedEpisode("e", "ok", {}, json.loads(json.dumps(gold)), [turn])


@pytest.mark.usefixtures("gym")
def test_the_reward_is_what_the_family_says() -> None:
    reward = load_reward("reasoning_gym", {})
    gold = made("sums?train=1")[0]["gold"]
    right = gold["answers"][0]
    assert [list(reward(episode(gold, a))) for a in (right, f"it is {right}", "no", "odd", None)] == [
        [1.0], [0.5], [0.0], [0.0], [0.0]
    ]  # fmt: skip
    with pytest.raises(ValueError, match="another question today"):
        reward(episode(gold | {"index": 1}, right))
    with pytest.raises(ValueError, match="gold has no config"):
        reward(episode({"answers": ["1"]}, right))


@pytest.mark.usefixtures("gym")
def test_no_answer_is_run_as_code(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    gold = made("lists?train=1")[0]["gold"]
    assert reasoning_gym.score(gold, gold["answers"][0].replace(" ", "")) == 1.0  # a literal is read
    for answer in (f"open({str(mark)!r}, 'w')", f"__import__('os').system('touch {mark}')", "[1 + 1", "[1 +"):
        assert reasoning_gym.score(gold, answer) == 0.0
    assert not mark.exists()
    with pytest.raises(UsageError, match=r"'runs'.*parse_expr, which runs an answer as code"):
        made("runs?train=1")


@pytest.mark.usefixtures("gym")
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("summs?train=1", "did you mean 'sums'"),
        ("sums?train=1&bigest=3", "no setting 'bigest'.*largest"),
        ("sums?train=1&largest=-3", "can't have these settings: largest must be positive"),
        ("sums?train=many", "train is a number, got 'many'"),
        ("sums", "asks for no task"),
        ("sums?train=30&largest=2", "has no 30 different questions for train; it made 9"),
    ],
)
def test_what_can_not_be_made_is_refused(path: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        made(path)


def test_without_the_package_it_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", None)
    reasoning_gym._known.cache_clear()
    with pytest.raises(UsageError, match="pip install reasoning-gym"):
        made("sums?train=1")
    with pytest.raises(UsageError, match="pip install reasoning-gym"):
        load_reward("reasoning_gym", {}).check_ready()  # type: ignore[attr-defined]


@needs("reasoning_gym")
@pytest.mark.usefixtures("real_gym")
@pytest.mark.parametrize("family", ["chain_sum", "leg_counting", "spiral_matrix"])
def test_the_package_itself_gives_full_marks_to_its_own_answers(family: str) -> None:
    rows = made(f"{family}?train=3&dev=2&test=2")
    assert len({row["inputs"]["question"] for row in rows}) == 7
    for row in rows:
        gold = json.loads(json.dumps(row["gold"]))
        assert reasoning_gym.score(gold, gold["answers"][0]) == 1.0
        assert reasoning_gym.score(gold, "no idea") < 0.5
