"""Who was right in a team: measured for every branch, and paid to all, by role, or by a rubric."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from pipeline.metrics.answers import answers_by_episode, reward_parts
from pipeline.plan.rewards import measured_sections, weighted_rewards
from pipeline.settings.schema import RewardSection
from rewards.base import PlayedEpisode
from rewards.loading import load_reward
from rewards.scoring.by_columns import has_columns
from rewards.scoring.score import score_turns
from rewards.scoring.weighted import WeightedRewards
from rewards.testing import check_forms
from workflows.errors import UsageError
from workflows.loading import load_workflow
from workflows.testing import play_once
from workflows.tools.code.isolation import Sandbox
from workflows.trajectory import EPISODES, TASKS, TURNS, rows_to_table

SANDBOX = Sandbox.of("none")  # programs of one line, of our own
TESTS = {
    "kind": "call",
    "fn_name": "same",
    "cases": [{"args": [3], "expected": 3}, {"args": [4], "expected": 4}],
}
CODE = {"problem": "Return n.", "fn_name": "same"}
GOLD: dict[str, Any] = {
    "questions": {"answers": ["Paris"]},
    "mathematics": {"answers": ["12"]},
    "code": {"private_tests": TESTS},
}
INPUTS = {"questions": {"question": "q"}, "mathematics": {"problem": "p"}, "code": CODE}
RIGHT = {
    "questions": "<answer>the Paris</answer>",
    "mathematics": "so <answer>12.0</answer>",
    "code": "<code>\ndef same(n):\n    return n\n</code>",
}
WRONG = {
    "questions": "<answer>Rome</answer>",
    "mathematics": "<answer>13</answer>",
    "code": "<code>\ndef same(n):\n    return 3\n</code>",  # passes one of two tests
}


def verdict(word: str) -> str:
    return f"<verdict>{word}</verdict><confidence>low</confidence><feedback>f</feedback>"


def in_turn(*texts: str) -> Any:
    """A role that says these, one after another."""
    rest = list(texts)
    return lambda messages, sampling: rest.pop(0)


def episode(workflow: Any, task: str, replies: Any, gold: Any = None) -> PlayedEpisode:
    turns = play_once(workflow, INPUTS[task], replies).turns
    for turn in turns:
        turn["parsed"] = None if turn["parsed"] is None else json.loads(turn["parsed"])
    return PlayedEpisode("t/0", "ok", INPUTS[task], GOLD[task] if gold is None else gold, turns)


def reward(use: str, workflow: Any, **options: Any) -> Any:
    """The reward as the settings of a run of this workflow would load it."""
    items = weighted_rewards([RewardSection(use=use, options=options)], workflow, {}, SANDBOX).items
    return items[0].reward


def by_step(played: PlayedEpisode, values: Any) -> list[tuple[str, float | None]]:
    return [(turn["step"], value) for turn, value in zip(played.turns, values, strict=True)]


@pytest.mark.parametrize("task", RIGHT)
def test_each_branch_is_graded_by_itself_in_the_tasks_own_grader(task: str) -> None:
    workflow = load_workflow("voting", {"task": task, "voters": ["a", "b", "c"]})
    replies = {"a": RIGHT[task], "b": WRONG[task], "c": "", "aggregator": WRONG[task]}
    played = episode(workflow, task, replies)
    branch = by_step(played, reward("branch_right", workflow)(played))
    assert branch == [("a", 1.0), ("b", 0.0), ("c", 0.0), ("aggregate", None)]
    final = by_step(played, reward("final_right", workflow)(played))
    assert final == [("a", None), ("b", None), ("c", None), ("aggregate", 0.0)]
    assert reward("team_right", workflow)(played) == [0.0] * 4


def test_the_rubric_adds_up_and_by_role_pays_for_the_own_answer() -> None:
    workflow = load_workflow("voting", {"voters": ["a", "b", "c"]})
    task = "questions"
    said = {"a": RIGHT[task], "b": WRONG[task], "c": "Rome", "aggregator": RIGHT[task]}
    played = episode(workflow, task, said)
    # c breaks its format, so that its answer is wrong and not parseable
    assert reward("right_rubric", workflow)(played) == [1.0, -0.5, 0.5, 1.0]
    assert reward("right_rubric", workflow, own=0.0, team=2.0, wrong=0.0)(played) == [2.0] * 4
    assert reward("right_by_role", workflow)(played) == [1.0, 0.0, 0.0, 1.0]
    assert reward("team_right", workflow, share="split")(played) == [0.25] * 4


def test_an_evaluator_is_paid_for_a_verdict_that_agrees_with_the_truth() -> None:
    workflow = load_workflow("evaluate_optimise", {"max_rounds": 3})
    task = "questions"
    played = episode(workflow, task, {
        "generator": in_turn(WRONG[task], RIGHT[task], WRONG[task]),
        "evaluator": in_turn(verdict("unsatisfied"), verdict("unsatisfied"), verdict("satisfied")),
    })  # fmt: skip
    assert by_step(played, reward("right_by_role", workflow)(played)) == [
        *[("generate", 0.0), ("evaluate", 1.0)],
        *[("generate", 1.0), ("evaluate", 0.0)],
        *[("generate", 0.0), ("evaluate", 0.0)],
    ]
    assert [v for v in reward("satisfied", workflow)(played) if v is not None] == [0.0, 0.0, 1.0]
    assert [v for v in reward("final_right", workflow)(played) if v is not None] == [0.0]  # of the last draft
    silent = episode(workflow, task, {"generator": WRONG[task], "evaluator": ""})
    assert reward("right_by_role", workflow)(silent) == [0.0] * 6  # no verdict agrees with nothing


def test_a_team_without_an_answer_is_wrong_and_says_so_on_its_last_turn() -> None:
    workflow = load_workflow("orchestrate_workers", {"max_strategies": 1})
    two = "<strategy>a</strategy><strategy>b</strategy>"
    played = episode(workflow, "questions", {"orchestrator": two, "worker": "", "synthesizer": ""})
    assert by_step(played, reward("final_right", workflow)(played)) == [
        ("orchestrate", 0.0),
        ("too_many", None),
    ]
    assert reward("team_right", workflow)(played) == [0.0, None]


def test_a_task_without_gold_excludes_the_episode_or_has_no_value() -> None:
    workflow = load_workflow("voting", {})
    played = episode(workflow, "questions", lambda m, s: "x", gold={})
    for use in ("branch_right", "final_right", "team_right", "right_by_role", "right_rubric"):
        with pytest.raises(ValueError, match="gold has no list of answers"):
            reward(use, workflow)(played)
        assert reward(use, workflow, strict=False)(played) == [None] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "maths"}, "option task is 'maths'"),
        ({"branch_steps": "generate"}, "option branch_steps must be a list of steps"),
        ({"measure": "some"}, "option measure is 'some'"),
        ({"strict": "no"}, "option strict must be true or false"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_reward("branch_measure", options)


def scored(workflow: Any, task: str, plays: list[Any], sections: Any, frozen: str = "") -> Any:
    """The rewards table of some plays."""
    rewards = weighted_rewards(measured_sections(sections, workflow), workflow, {}, SANDBOX)
    assert isinstance(rewards, WeightedRewards)
    played = [play_once(workflow, INPUTS[task], replies, sample=k) for k, replies in enumerate(plays)]
    return score_turns(*tables_of(task, played, frozen), rewards)


def tables_of(task: str, played: list[Any], frozen: str = "", gold: Any = None) -> tuple[Any, Any, Any]:
    """Tasks, turns and episodes of some plays."""
    row = {"task_id": "task", "split": "train", "source": "s", "inputs": json.dumps(INPUTS[task])}
    row |= {"gold": json.dumps(GOLD[task] if gold is None else gold), "row_hash": "h"}
    turns = [{**t, "trainable": t["role"] != frozen} for p in played for t in p.turns]
    return (
        rows_to_table([row], TASKS),
        rows_to_table(turns, TURNS),
        rows_to_table([p.episode for p in played], EPISODES),
    )


BROADCAST = [RewardSection(use="team_right")]


def test_own_correctness_is_stored_whatever_is_paid_for_and_changes_no_reward() -> None:
    workflow = load_workflow("voting", {"voters": ["a", "b"]})
    task = "questions"
    said = {"a": RIGHT[task], "b": WRONG[task], "aggregator": RIGHT[task]}
    rows = scored(workflow, task, [said], BROADCAST).to_pylist()
    assert [row["reward"] for row in rows] == [1.0] * 3
    own = [{p["name"]: p["value"] for p in row["reward_parts"]}["branch_right"] for row in rows]
    assert own == [1.0, 0.0, None]
    # a frozen voter has no reward, and its own correctness all the same
    frozen = scored(workflow, task, [said], BROADCAST, frozen="b").to_pylist()
    assert (frozen[1]["reward"], frozen[1]["no_reward_reason"]) == (None, "model is frozen")
    assert {p["name"]: p["value"] for p in frozen[1]["reward_parts"]}["branch_right"] == 0.0
    # settings that have it already, or a team that declares no branches, get nothing more
    assert [s.use for s in measured_sections([RewardSection(use="branch_right")], workflow)] == [
        *("branch_right", "final_right"),
    ]
    assert measured_sections(BROADCAST, load_workflow("single", {})) == BROADCAST


def test_what_became_of_right_branches_is_read_off_the_stored_rewards() -> None:
    workflow = load_workflow("voting", {"voters": ["a", "b", "c"]})
    task = "questions"
    good, bad = RIGHT[task], WRONG[task]
    plays = [
        {"a": good, "b": good, "c": bad, "aggregator": bad},  # lost
        {"a": bad, "b": bad, "c": bad, "aggregator": good},  # rescued
        {"a": good, "b": bad, "c": bad, "aggregator": good},
    ]
    frame = answers_by_episode(reward_parts(scored(workflow, task, plays, BROADCAST)))
    assert frame["branches"].to_list() == [3, 3, 3]
    assert [round(v, 3) for v in frame["share"].to_list()] == [0.667, 0.0, 0.333]
    assert frame["any"].to_list() == [True, False, True]
    assert frame["majority"].to_list() == [True, False, False]
    assert frame["final"].to_list() == [False, True, True]
    assert frame["satisfied"].to_list() == [None] * 3
    # the reward for evaluations says the same of each episode
    expected = {
        "share": frame["share"].to_list(),
        "any": [1.0, 0.0, 1.0],
        "majority": [1.0, 0.0, 0.0],
        "lost": [1.0, 0.0, 0.0],
        "rescued": [0.0, 1.0, 0.0],
    }
    for measure, values in expected.items():
        measured = reward("branch_measure", workflow, measure=measure)
        assert [measured(episode(workflow, task, replies)) for replies in plays] == [[v] * 4 for v in values]


@pytest.mark.parametrize("use", ["branch_right", "final_right", "team_right"])
@pytest.mark.parametrize("gold", [["Paris"], [], None])
def test_columns_give_questions_the_numbers_of_each_episode(use: str, gold: Any) -> None:
    workflow = load_workflow("orchestrate_workers", {"max_strategies": 2})
    luck = random.Random(0)
    said = [
        RIGHT["questions"],
        WRONG["questions"],
        "Paris",
        "",
        "<strategy>a</strategy>" * 2,
        "<strategy>a" * 9,
    ]
    said.append("<strategy>a</strategy>" * 3)  # one too many: no answer
    played = [
        play_once(workflow, INPUTS["questions"], lambda m, s: luck.choice(said), sample=k) for k in range(40)
    ]
    assert len({len(p.turns) for p in played}) > 2
    tables = tables_of("questions", played, gold={"answers": gold})
    for strict in (True, False):
        check_forms(reward(use, workflow, strict=strict), *tables)
    graded = reward(use, load_workflow("voting", {"task": "mathematics"}))
    assert not has_columns(graded)
    assert has_columns(reward(use, workflow))
