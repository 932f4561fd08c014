"""`show --where`: exactly the turns that the condition holds for, and clear words where it can't."""

from __future__ import annotations

import json

import pytest

from pipeline.store.shelf import shelf_of
from pipeline.views.where import COLUMNS, condition_of, is_row_by_row, print_where
from tests.support.report_runs import in_parts, new_run, store, team_episode
from workflows.errors import UsageError

HOSTILE = "\x1b[31mred\x07 \u202eback [bold]x[/]"


@pytest.fixture
def run(tmp_path):
    run = new_run(str(tmp_path / "runs"))
    episodes = [team_episode(k, k / 8, HOSTILE if k == 2 else "Paris") for k in range(8)]
    store(run.iteration(0), in_parts(episodes, size=3))
    return run


def turns_where(run, capsys, where, **options):
    print_where(shelf_of(run), None, where, **{"limit": None, "full": False, "as_json": True, **options})
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("role = 'reader' and status <> 'ok'", lambda t: t["role"] == "reader" and t["status"] != "ok"),
        ("reward < 0.3", lambda t: t["reward"] is not None and t["reward"] < 0.3),
        ("reward is null", lambda t: t["reward"] is None),
        ("advantage > 0 or event = 'tool'", lambda t: (t["advantage"] or 0) > 0 or t["event"] == "tool"),
        ('"return" between 0.2 and 0.5', lambda t: t["return"] is not None and 0.2 <= t["return"] <= 0.5),
        ("response_text like '%Par%'", lambda t: "Par" in (t["response_text"] or "")),
        ("excluded in ('truncated')", lambda t: t["excluded"] == "truncated"),
        ("step = 'answer' and not format_valid", lambda t: False),
    ],
)
def test_it_is_the_turns_for_which_the_condition_holds(run, capsys, where, holds):
    everything = turns_where(run, capsys, "turn_index >= 0")
    assert len(everything) == 48
    assert turns_where(run, capsys, where) == [t for t in everything if holds(t)]


def test_a_line_of_json_has_its_columns_decoded_and_no_control_character(run, capsys):
    (turn,) = turns_where(run, capsys, "episode_id = '00000/t1/0' and turn_index = 5")
    assert turn["response_text"] == turn["parsed"] == HOSTILE
    assert turn["messages"][0] == {"role": "system", "content": "Be brief."}
    assert turn["reward_parts"] == [{"name": "f1", "value": 0.25}]
    print_where(shelf_of(run), None, "role = 'answerer'", limit=3, full=False, as_json=True)
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 3
    assert out.isascii()


def test_the_list_counts_all_and_shows_some(run, capsys):
    print_where(shelf_of(run), None, "event = 'llm'", limit=2, full=False, as_json=False)
    out = capsys.readouterr().out
    assert "32 of 48 turns of iteration 0 of run demo" in " ".join(out.split())
    assert "truncated  reader" in out
    assert "and 30 more" in out
    print_where(shelf_of(run), None, "role = 'answerer'", limit=8, full=False, as_json=False)
    out = capsys.readouterr().out
    assert r"\x1b[31mred\x07 \u202eback [bold]x[/]" in out
    assert not {c for c in out if not c.isprintable()} - {"\n"}
    print_where(shelf_of(run), None, "step = 'retrieve'", limit=1, full=True, as_json=False)
    assert "Paris is its capital." in capsys.readouterr().out


def test_nothing_found_is_said(run, capsys):
    print_where(shelf_of(run), None, "reward > 7", limit=None, full=False, as_json=False)
    assert "0 of 48 turns" in capsys.readouterr().out
    assert turns_where(run, capsys, "reward > 7") == []


def test_without_rewards_and_credit_their_columns_are_null(run, capsys):
    for name in ("rewards", "credit"):
        run.iteration(0).folder.remove(name)
    assert len(turns_where(run, capsys, "reward is null and excluded is null")) == 48


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("rolee = 'reader'", "did you mean 'role'"),
        ('role = "reader"', "no column 'reader'.*single quotes"),
        ("role = ", "can't be read"),
        ("", "can't be read"),
        ("reward + 1", "true or false"),
        ("prompt_token_ids is null", "no column 'prompt_token_ids'"),
        ("1 = 1; drop table turns", "can't be read"),
    ],
)
def test_a_condition_that_does_not_work_says_why(run, where, says):
    with pytest.raises(UsageError, match=says):
        print_where(shelf_of(run), None, where, limit=None, full=False, as_json=False)


def test_every_column_can_be_asked_for():
    for name in COLUMNS:
        condition_of(f'"{name}" is null')


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("advantage = max(advantage)", lambda t, all_: t["advantage"] == max(all_)),
        ("advantage > avg(advantage)", lambda t, all_: t["advantage"] > sum(all_) / len(all_)),
        ("advantage < median(advantage)", lambda t, all_: t["advantage"] < sorted(all_)[len(all_) // 2]),
        ("advantage = max(advantage) over (partition by role)", None),
        ("rank() over (order by advantage desc) <= 1", None),
        ("count(*) > 40", lambda t, all_: True),
        ("first(episode_id) = episode_id", lambda t, all_: t["episode_id"] == "00000/t0/0"),
    ],
)
def test_a_condition_over_several_turns_sees_all_parts_and_any_cut_gives_the_same(
    tmp_path, capsys, where, holds
):
    """Eight episodes in parts of 1, 3 and 8: what a part holds is no concern of the condition."""
    chosen = []
    for size in (1, 3, 8):
        run = new_run(str(tmp_path / f"runs-{size}"))
        store(run.iteration(0), in_parts([team_episode(k, k / 8, "Paris") for k in range(8)], size=size))
        everything = turns_where(run, capsys, "turn_index >= 0")
        chosen.append(turns_where(run, capsys, where))
        if holds is not None:
            advantages = [t["advantage"] for t in everything if t["advantage"] is not None]
            if "advantage" in where:
                everything = [t for t in everything if t["advantage"] is not None]
            expected = [t for t in everything if _holds(holds, t, advantages)]
            assert chosen[-1] == expected
    assert chosen[0] == chosen[1] == chosen[2] != []


def _holds(holds, turn, advantages):
    try:
        return holds(turn, advantages)
    except TypeError:  # null compares to nothing
        return False


@pytest.mark.parametrize("where", ["advantage", "max(advantage)", "'x'", "1"])
def test_a_condition_that_is_neither_true_nor_false_is_refused(run, capsys, where):
    with pytest.raises(UsageError, match="true or false"):
        turns_where(run, capsys, where)


@pytest.mark.parametrize(
    "where",
    [
        "reward < 0.2 and role = 'reader'",
        "role in ('a', 'b')",
        "response_text like '%x%' or reward is null",
        "not format_valid",
        "case when reward > 1 then true else false end",
        "abs(advantage) > 1",
        "reward between 0 and 1",
        "length(response_text) > 100",
    ],
)
def test_a_condition_on_one_turn_is_read_part_by_part(where):
    assert is_row_by_row(json.loads(condition_of(where).meta.serialize(format="json")))
