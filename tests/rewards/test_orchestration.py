"""Rewards of how a team works together: numbers that are known, what a team lacks, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rewards.base import PlayedEpisode
from rewards.loading import load_reward
from workflows.errors import UsageError

PLAN, ALICE, BOB, ANSWER = 0, 1, 2, 3


def turn(index: int, step: str, said: str, tokens: int, parents: list[int], **more: Any) -> dict[str, Any]:
    return {
        **{"turn_index": index, "step": step, "branch": "", "event": "llm", "act": None, "instance": None},
        **{"decided_by": None, "trainable": True, "status": "ok", "format_valid": True, "tool": None},
        **{"response_text": said, "parsed": said, "num_response_tokens": tokens, "num_prompt_tokens": 50},
        "parents": parents,
        **more,
    }


def episode(*answers: str, final: str = "Paris", name: str = "00003/t/0") -> PlayedEpisode:
    """A lead (10 tokens), a worker for each answer (20 tokens each), and the team's answer (10)."""
    workers = [turn(k + 1, "work", said, 20, [0], branch=str(k)) for k, said in enumerate(answers)]
    last = turn(len(answers) + 1, "answer", final, 10, [*range(1, len(answers) + 1)] or [0])
    turns = [turn(0, "plan", "split", 10, []), *workers, last]
    return PlayedEpisode(name, "ok", {}, {"answers": ["Paris"]}, turns)


def values(use: str, played: PlayedEpisode, **options: Any) -> list[float | None]:
    stated = {"branch_steps": ("work",), "answer_step": "answer", **options}
    return list(load_reward(use, stated)(played))


def measure(name: str, played: PlayedEpisode, **options: Any) -> float | None:
    return values("team_measure", played, measure=name, **options)[0]


def test_two_at_the_same_time_save_the_time_of_one() -> None:
    both = episode("Paris", "Rome")
    assert measure("work_seconds", both, token_seconds=0.1) == pytest.approx(6.0)
    assert measure("span_seconds", both, token_seconds=0.1) == pytest.approx(4.0)
    assert measure("speedup", both) == pytest.approx(1.5)
    assert measure("efficiency", both) == pytest.approx(0.75)
    assert values("parallel_speedup", both) == [pytest.approx(math.log(1.5))] * 4
    assert values("parallel_speedup", both, to_whom="deciders")[1:] == [None] * 3
    assert values("parallel_speedup", both, most=0.1)[0] == 0.1


def test_being_quick_and_wrong_earns_nothing() -> None:
    assert values("parallel_speedup", episode("Paris", "Rome", final="Rome"))[PLAN] == 0.0
    assert values("spawn_bonus", episode("Paris", "Rome", final="Rome"))[PLAN] == 0.0


def test_only_turns_without_slack_are_paid_for_the_span() -> None:
    slow = episode("Paris", "Rome")
    slow.turns[BOB]["num_response_tokens"] = 30  # type: ignore[index]
    assert values("parallel_speedup", slow)[ALICE] is None
    assert None not in [values("parallel_speedup", slow)[place] for place in (PLAN, BOB, ANSWER)]


def test_a_split_is_judged_by_what_its_branches_bring() -> None:
    good, twice = episode("Paris", "Rome"), episode("Rome", "Rome")
    assert [measure(m, good) for m in ("coverage", "independence", "completion", "overlap", "unused")] == [
        1.0,
        1.0,
        1.0,
        0.0,
        0.0,
    ]
    assert (measure("coverage", twice), measure("overlap", twice)) == (0.0, 1.0)
    assert values("split_quality", good) == [2.0, None, None, None]
    assert values("split_quality", twice) == [0.5, None, None, None]
    in_turn = episode("Paris", "Rome")
    in_turn.turns[BOB]["parents"] = [0, 1]  # type: ignore[index]
    assert measure("independence", in_turn) == 0.0


def test_requirements_of_a_task_are_met_word_by_word() -> None:
    played = episode("Paris is old", "Rome is older")
    gold = {"answers": ["Paris"], "requirements": ["old", "Madrid"]}
    asked = PlayedEpisode(played.episode_id, "ok", {}, gold, played.turns)
    assert measure("coverage", asked) == 0.5
    broken = PlayedEpisode(played.episode_id, "ok", {}, {**gold, "requirements": "old"}, played.turns)
    with pytest.raises(ValueError, match="list of texts"):
        values("team_measure", broken, measure="coverage", strict=True)


@pytest.mark.parametrize(
    ("answers", "final", "regret", "gain", "recovery", "corruption"),
    [
        (("Paris", "Rome"), "Paris", 0.0, 1.0, 0.0, 0.0),
        (("Paris", "Rome"), "Rome", 1.0, 0.0, 0.0, 1.0),
        (("Rome", "Oslo"), "Paris", -1.0, 1.0, 1.0, 0.0),
        (("Paris", "Paris"), "Rome", 1.0, -1.0, 0.0, 1.0),
    ],
)
def test_a_choice_is_held_against_the_best_branch_and_the_majority(
    answers: tuple[str, str], final: str, regret: float, gain: float, recovery: float, corruption: float
) -> None:
    played = episode(*answers, final=final)
    names = ("regret", "gain_over_majority", "recovery", "corruption")
    assert [measure(name, played) for name in names] == [regret, gain, recovery, corruption]
    y = float(final == "Paris")
    rights = [float(said == "Paris") for said in answers]
    assert values("aggregation_quality", played, regret=0.5) == [None, *rights, y - 0.5 * regret]
    assert values("aggregation_quality", played, branches_too=False)[1:3] == [None, None]


def test_coordination_is_what_neither_branches_nor_the_answer_say() -> None:
    assert values("coordination_cost", episode("Paris", "Rome"), cost=0.6) == [pytest.approx(-0.1)] * 4
    silent = episode()
    for row in silent.turns:
        row["num_response_tokens"] = 0  # type: ignore[index]
    assert values("coordination_cost", silent) == [None, None]


def test_the_bonus_for_spawning_is_gone_after_its_iterations() -> None:
    def bonus(iteration: int) -> float | None:
        played = episode("Paris", "Rome", name=f"{iteration:05d}.1/t/0")
        return values("spawn_bonus", played, target=4, iterations=10)[PLAN]

    assert [bonus(i) for i in (0, 5, 10, 11)] == [0.5, 0.25, 0.0, 0.0]
    assert values("spawn_bonus", episode(), iterations=10) == [0.0, None]
    with pytest.raises(ValueError, match="number of an iteration"):
        values("spawn_bonus", episode("Paris", name="t/0"))


def test_a_team_without_branches_has_no_split_and_no_choice_rather_than_a_zero() -> None:
    alone = episode()
    for use in ("split_quality", "aggregation_quality"):
        assert values(use, alone) == [None, None]
        assert values(use, alone, alone=-0.25) == [-0.25, -0.25]
    assert measure("regret", alone) is None
    assert measure("speedup", alone) == pytest.approx(1.0)


def test_spawned_members_are_branches_whatever_their_steps() -> None:
    spawned = [
        turn(0, "lead", "go", 10, []),
        turn(1, "spawn", "", 0, [0], event="control", act="spawn", decided_by=0, instance="a"),
        turn(2, "spawn", "", 0, [0], event="control", act="spawn", decided_by=0, instance="b"),
        turn(3, "help", "Paris", 20, [1], instance="a"),
        turn(4, "help", "Rome", 20, [2], instance="b"),
        turn(5, "answer", "Paris", 10, [3, 4]),
    ]
    played = PlayedEpisode("00000/t/0", "ok", {}, {"answers": ["Paris"]}, spawned)
    assert measure("branches", played) == 2.0
    assert values("split_quality", played)[0] == 2.0
    assert measure("speedup", played) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("use", "options", "words"),
    [
        ("parallel_speedup", {"to_whom": "critcal"}, "critical"),
        ("parallel_speedup", {"most": -1}, "at least 0"),
        ("parallel_speedup", {"tools": {"search": -1}}, "tools.search"),
        ("split_quality", {"overlap": "much"}, "option overlap"),
        ("spawn_bonus", {"target": 0}, "at least 1"),
        ("team_measure", {"measure": "speed"}, "speedup"),
        ("aggregation_quality", {"alone": math.nan}, "option alone"),
    ],
)
def test_options_out_of_range_are_refused(use: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_reward(use, options)
