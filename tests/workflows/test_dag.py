"""Work, span, slack and width of turns in modelled time, on graphs whose numbers are known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows.dag import Dag, Rates, dag_of

FORK = Dag([[], [0], [0], [1, 2]], [1.0, 3.0, 2.0, 1.0])


@st.composite
def dags(draw: st.DrawFn) -> Dag:
    size = draw(st.integers(1, 8))
    parents = [draw(st.lists(st.integers(0, n - 1), unique=True)) if n else [] for n in range(size)]
    weights = draw(st.lists(st.integers(0, 9).map(float), min_size=size, max_size=size))
    return Dag(parents, weights)


def test_a_fork_has_the_work_of_all_and_the_span_of_the_longer_branch() -> None:
    assert (FORK.work, FORK.span, FORK.speedup) == (7.0, 5.0, 1.4)
    assert FORK.slack == (0.0, 0.0, 1.0, 0.0)
    assert FORK.critical == (0, 1, 3)
    assert FORK.max_width == 2
    assert FORK.ancestors(3) == {0, 1, 2}


def test_a_chain_has_no_slack_and_a_width_of_one() -> None:
    chain = Dag([[], [0], [1]], [0.1, 0.2, 0.3])
    assert chain.critical == (0, 1, 2)
    assert (chain.max_width, chain.speedup) == (1, pytest.approx(1.0))


@settings(max_examples=60, deadline=None)
@given(dags())
def test_only_a_node_without_slack_can_change_the_span(dag: Dag) -> None:
    assert dag.span <= dag.work + 1e-9
    assert dag.work <= dag.span * max(1, dag.max_width) + 1e-9
    for node, slack in enumerate(dag.slack):
        longer = [w + (slack if n == node else 0) for n, w in enumerate(dag.weights)]
        assert Dag(dag.parents, longer).span == pytest.approx(dag.span)
        longer[node] += 1
        assert Dag(dag.parents, longer).span == pytest.approx(dag.span + 1)


def test_what_is_no_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="earlier node"):
        Dag([[0]], [1.0])
    with pytest.raises(ValueError, match="finite"):
        Dag([[]], [math.nan])
    with pytest.raises(ValueError, match="one for each"):
        Dag([[]], [])


def test_time_goes_by_tokens_and_stated_rates_and_not_by_the_clock() -> None:
    turns = [
        {"turn_index": 4, "event": "llm", "parents": [], "num_response_tokens": 10, "num_prompt_tokens": 100},
        {"turn_index": 5, "event": "tool", "tool": "slow", "parents": [4]},
        {"turn_index": 6, "event": "tool", "tool": "other", "parents": None, "decided_by": 4},
        {"turn_index": 7, "event": "control", "parents": [5, 6, 99]},
    ]
    dag = dag_of(turns, Rates(0.1, 0.01, 2.0, {"slow": 5.0}))
    assert dag.weights == [2.0, 5.0, 2.0, 0.0]
    assert dag.parents == [[], [0], [0], [1, 2]]


def test_a_spawned_play_does_one_thing_after_another_and_plays_go_side_by_side() -> None:
    def turn(index: int, instance: str | None, parents: list[int], tokens: int = 10) -> dict[str, object]:
        branch = "" if instance is None else instance.partition("/")[2]
        return {
            **{"turn_index": index, "event": "llm", "parents": parents, "num_response_tokens": tokens},
            **{"instance": instance, "branch": branch, "decided_by": None},
        }

    turns = [
        turn(0, None, []),
        turn(1, "helper/0", [0]),
        turn(2, "helper/1", [0]),
        turn(3, "helper/0", [0], 20),  # it has read nothing of what it said before, and comes after it
        turn(4, None, [3, 2]),
    ]
    dag = dag_of(turns, Rates(token_seconds=0.1))
    assert dag.parents == [[], [0], [0], [0, 1], [0, 2, 3]]
    assert (dag.work, dag.span, dag.max_width) == (6.0, 5.0, 2)
