"""Pairs of plays, plays as text, measures of a ranking, the best of n: laws that hold for any plays."""

import math
from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.base import PlayedEpisode
from rewards.preferences.best_of import Ranked, best_of, majority_of, oracle
from rewards.preferences.measures import calibration_error, gain_of, over_tasks, ranking_of, trivial_ranker
from rewards.preferences.pairs import Pair, Play, held_out_tasks, pairs_of, steps_of
from rewards.preferences.render import cut_middle, render
from workflows.errors import UsageError

PLAYS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from([0.0, 0.05, 0.1, 0.5, 1.0, -1.0])), max_size=24
).map(lambda rows: [Play(f"e{i:02d}", task, value) for i, (task, value) in enumerate(rows)])


@settings(max_examples=60, deadline=None)
@given(PLAYS, st.sampled_from([0.0, 0.1, 0.5]), st.integers(1, 5), st.integers(0, 3), st.randoms())
def test_every_pair_is_kept_or_counted_and_order_changes_nothing(plays, margin, most, seed, rng) -> None:
    made = pairs_of(plays, margin=margin, most=most, seed=seed)
    value = {play.episode_id: play for play in plays}
    sizes = [sum(play.task == task for play in plays) for task in "abcd"]
    assert made.possible == sum(math.comb(size, 2) for size in sizes)
    assert made.possible == len(made.pairs) + made.excluded.total()
    with_pairs = {pair.task for pair in made.pairs}
    assert made.tasks == len(with_pairs) + made.tasks_excluded.total() == sum(size > 0 for size in sizes)
    for pair in made.pairs:
        winner, loser = value[pair.winner], value[pair.loser]
        assert winner.task == loser.task == pair.task
        assert pair.gap == winner.value - loser.value > 0
        assert pair.gap >= margin - 1e-9
    assert all(sum(pair.task == task for pair in made.pairs) <= most for task in with_pairs)
    shuffled = plays[:]
    rng.shuffle(shuffled)
    assert pairs_of(shuffled, margin=margin, most=most, seed=seed) == made


def test_which_pairs_of_many_are_kept_is_drawn_by_the_seed() -> None:
    plays = [Play(f"e{i}", "t", float(i)) for i in range(8)]
    kept = {tuple(pairs_of(plays, most=3, seed=seed).pairs) for seed in range(5)}
    assert len(kept) > 1
    assert len(pairs_of(plays, most=100).pairs) == 28
    with pytest.raises(UsageError, match="margin"):
        pairs_of(plays, margin=-1)


@settings(max_examples=60, deadline=None)
@given(st.sets(st.text(max_size=5), max_size=30), st.sampled_from([0.1, 0.5, 0.9]), st.integers(0, 5))
def test_a_task_is_on_one_side_and_new_tasks_move_no_other(tasks, share, seed) -> None:
    held_out = held_out_tasks(tasks, share, seed)
    assert held_out <= tasks
    if len(tasks) > 1:
        assert 0 < len(held_out) < len(tasks)
    many = {f"task {i}" for i in range(200)}
    more = held_out_tasks(many | tasks, share, seed)
    assert more & many == held_out_tasks(many, share, seed) - (tasks - many)
    assert abs(len(held_out_tasks(many, share, seed)) / 200 - share) < 0.15


def test_steps_hold_whole_tasks_each_once() -> None:
    pairs = [Pair(f"t{i % 7}", f"w{i}", f"l{i}", 1.0) for i in range(40)]
    steps = steps_of(pairs, 10, seed=1)
    assert sorted(task for step in steps for task in step) == [f"t{i}" for i in range(7)]
    assert len(steps) == 4
    assert steps_of(pairs[::-1], 10, seed=1) == steps
    assert steps_of(pairs, 10, seed=2) != steps
    assert steps_of([], 10, seed=2) == []


def test_a_ranking_is_measured_by_pairs_with_whole_tasks_drawn() -> None:
    pairs = [Pair(task, f"{task}w{i}", f"{task}l{i}", 1.0) for task in "abcdef" for i in range(4)]
    scores = {play: 1.0 if "w" in play else 0.0 for pair in pairs for play in (pair.winner, pair.loser)}
    ranking = ranking_of(pairs, scores)
    assert (ranking.pairs, ranking.tasks) == (24, 6)
    assert (ranking.accuracy.value, ranking.accuracy.high) == (1, 1)
    assert ranking.accuracy.low == pytest.approx(6 / (6 + 1.96**2))  # six tasks without a fault say no more
    assert ranking.loss == pytest.approx(math.log1p(math.exp(-1)))
    assert ranking.margin == 1
    turned = ranking_of(pairs, {play: -value for play, value in scores.items()})
    assert turned.accuracy.value == 0
    assert ranking_of(pairs, dict.fromkeys(scores, 0.5)).accuracy.value == 0.5  # ties are half right
    half = {play: value if play[0] in "abc" else -value for play, value in scores.items()}
    of_half = ranking_of(pairs, half).accuracy
    assert of_half.value == 0.5
    assert of_half.low < 0.25  # six tasks say little, however many pairs they have
    gain = gain_of(pairs, scores, half)
    assert gain.value == 0.5
    assert 0 < gain.low < gain.high <= 1
    assert over_tasks(["a", "a"], np.array([0.0, 1.0])).low is None


def test_calibration_is_how_far_chances_are_from_what_happens() -> None:
    sure = np.full(100, 50.0)
    assert calibration_error(sure) == pytest.approx(0)
    assert calibration_error(-sure) == pytest.approx(1)
    even = np.tile([1e-9, -1e-9], 50)
    assert calibration_error(even) == pytest.approx(0, abs=1e-6)


def test_a_trivial_ranker_takes_the_direction_that_the_training_pairs_say() -> None:
    train, held_out = [Pair("a", "w", "l", 1.0)], [Pair("b", "w2", "l2", 1.0)]
    shorter = {"w": 1.0, "l": 5.0, "w2": 2.0, "l2": 9.0}
    ranker, scores = trivial_ranker("length", shorter, train, held_out)
    assert (ranker.sign, ranker.accuracy.value) == (-1, 1.0)
    assert scores["w2"] > scores["l2"]


RANKED = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 2.0]), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from("xyz")),
    min_size=1,
    max_size=7,
).map(lambda rows: [Ranked(*row) for row in rows])


@settings(max_examples=80, deadline=None)
@given(RANKED, st.data())
def test_the_best_of_n_is_the_mean_over_all_subsets(plays, data) -> None:
    n = data.draw(st.integers(1, len(plays)))

    def chosen(subset):
        top = max(play.score for play in subset)
        return fmean(play.value for play in subset if play.score == top)

    assert best_of(plays, n) == pytest.approx(fmean(chosen(s) for s in combinations(plays, n)))
    assert oracle(plays, n) == pytest.approx(
        fmean(max(play.value for play in s) for s in combinations(plays, n))
    )
    assert best_of(plays, 1) == pytest.approx(fmean(play.value for play in plays))
    assert oracle(plays, n) >= best_of(plays, n) - 1e-12
    assert majority_of(plays, n, "t") == majority_of(plays, n, "t")


def test_a_majority_counts_ballots_and_without_any_there_is_none() -> None:
    plays = [Ranked(0, 1.0, "x"), Ranked(0, 1.0, "x"), Ranked(0, 0.0, "y"), Ranked(0, 0.0, None)]
    assert majority_of(plays, 4) == 1.0
    assert majority_of([Ranked(0, 1.0), Ranked(0, 0.0)], 2) is None
    with pytest.raises(ValueError, match="best of 3"):
        best_of(plays[:2], 3)


def turn(**columns):
    names = ("instance", "role", "tool", "step", "act", "round", "branch", "status", "event")
    names += ("response_text", "parsed", "tool_request", "tool_result", "metrics")
    return dict.fromkeys(names) | {"status": "ok"} | columns


def episode(gold="Norway", metric=0.3, paid=1.0):
    said = {"event": "llm"}
    lead = turn(**said, role="lead", step="plan", response_text="Two parts.", parsed="Two parts.")
    brief = {"brief": "find it", "reward": paid}
    spawn = turn(event="control", role="lead", step="spawn", act="spawn", parsed=brief)
    board = {"rewards": {"0": paid}, "board": "x"}
    game = turn(event="tool", tool="play", step="play", tool_request={"q": 1}, tool_result=board)
    write = turn(**said, role="writer", step="write", response_text="<a>So.</a>", parsed="So.")
    write |= {"status": "malformed", "metrics": {"f1": metric}}
    check = turn(**said, role="critic", step="check", response_text="Good.", parsed="Good.")
    turns = [lead, spawn, game, write, check]
    return PlayedEpisode("e", "ok", {"question": "Why?", "a": "long " * 9}, {"answers": [gold]}, turns)


def test_the_text_of_a_play_has_what_was_said_and_nothing_of_what_it_earned() -> None:
    text = render(episode(), "write")
    assert text.splitlines() == [
        *("[task]", "question: Why?", "a: " + "long " * 9),
        *("[lead · plan]", "Two parts.", "[lead · spawn · spawn]", '{"brief":"find it"}'),
        *("[play · play]", 'asked: {"q":1}', 'got: {"board":"x"}'),
        *("[writer · write · malformed]", "<a>So.</a>", "[critic · check]", "Good."),
        *("[answer]", "So.", "[end]"),
    ]
    assert render(episode("Chad", 0.9, 0.0), "write") == text  # gold, metrics and pay change nothing
    assert render(episode()).endswith("[answer]\nGood.\n[end]")  # without an answer's step: what came last


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=30), st.integers(4, 40))
def test_a_text_is_cut_in_its_middle_and_the_cut_is_counted(ids, most) -> None:
    kept, removed = cut_middle(ids, most)
    assert len(kept) + removed == len(ids)
    assert len(kept) <= most
    if removed:
        assert kept == ids[: most // 4] + ids[-(most - most // 4) :]
