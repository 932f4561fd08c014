"""The summary of an iteration, lists of runs, and numbers: all of it, at any width."""

import io
import json
import math

import pytest

from pipeline.metrics.signs import Alarm
from pipeline.store.evaluated import best_so_far
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from pipeline.views.render import (
    IterationView,
    as_text,
    echo,
    make_console,
    number,
    plain,
    summary,
    summary_dict,
    visible,
)
from pipeline.views.runs_table import runs_table
from pipeline.views.summary import TrainingLog, summary_of
from stages.base import Account


def view(**changes):
    values = {
        "run": "demo [red]",
        "iteration": 3,
        "metrics": {"return/mean": 0.5, "role/answerer/return_mean": 0.25, "rollout/episodes": 4.0},
        "accounts": [Account("turns to rewards", "turn", 1384, 1381, {"frozen [judge]": 2, "timeout": 1})],
        "updates": [
            {"model_id": "team", "version_before": 2, "version_after": 3, "num_rows": 8, "loss": 0.125},
            {"model_id": "idle", "version_before": 1, "version_after": 1, "skipped": "no signal"},
        ],
        "seconds": {"rollout": 2.0, "update/team": 1.0},
        "notes": ["1 of 4 episodes failed"],
        "where": {"tables": "/data/" + "long/" * 60, "MLflow": "mlflow ui"},
    }
    return IterationView(**values | changes)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_summary_says_everything_at_any_width(width):
    text = as_text(summary(view()), width)
    flat = " ".join(text.split())
    for part in ("1,384", "1,381", "2 → 3", "0.125", "not updated: idle", "rollout 2.0 s", "1 of 4 episodes"):
        assert part in flat
    assert "2 frozen [judge]" in flat
    assert "1 timeout" in flat
    assert all(len(line) <= width for line in text.splitlines() if not line.startswith(("tables", "MLflow")))


def test_the_last_lines_say_where_things_are_and_can_be_copied():
    lines = as_text(summary(view()), 40).splitlines()
    assert lines[-2].split() == ["tables", "/data/" + "long/" * 60]
    assert lines[-1] == "MLflow  mlflow ui"


def test_an_iteration_without_anything_has_a_summary():
    empty = view(metrics={}, accounts=[], updates=[], seconds={}, notes=[], where={})
    assert "no numbers yet" in as_text(summary(empty))


def test_the_summary_as_json_accounts_for_every_row_and_is_strict():
    data = summary_dict(view(metrics={"a": math.nan}))
    json.dumps(data, allow_nan=False)
    (row,) = data["rows"]
    assert row["in"] == row["out"] + sum(row["excluded"].values())
    assert data["metrics"] == {"a": None}


def test_any_text_prints_on_any_encoding():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    echo(make_console(file), summary(view()))
    file.flush()
    assert b"2 \\u2192 3" in file.buffer.getvalue()


def test_a_list_of_runs_shows_what_is_known():
    runs = [
        {"name": "a", "iterations": 3, "unfinished": [2], "workflow": "qa", "used_at": 1.7e9},
        {"name": "[b]"},
    ]
    text = as_text(runs_table(runs), 80)
    assert "2 unfinished" in text
    assert "[b]" in text
    assert "no runs yet" in as_text(runs_table([]))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0, "0"),
        (1234567.0, "1,234,567"),
        (0.123456, "0.1235"),
        (1e-6, "1e-06"),
        (1234.5, "1,234"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_are_short(value, shown):
    assert number(value) == shown


def test_visible_keeps_every_script_and_spells_out_only_what_can_not_be_seen():
    kept = "naïve 解答 می‌خواهم 👩‍🔬 a\tb\nc"
    assert visible(kept) == kept
    assert visible("\ud800\u2028\x9b") == r"\ud800\u2028\x9b"
    assert plain({"a": [math.inf, (1.0, {"b": math.nan})]}) == {"a": [None, [1.0, {"b": None}]]}


def test_a_line_of_a_training_has_the_number_of_the_summary_and_of_the_folder(tmp_path, capsys):
    log, run = TrainingLog(30), Run(str(tmp_path), "demo")
    done = Finished(run.iteration(5), metrics={"return/mean": 0.5})
    log.add(done)
    assert capsys.readouterr().out.startswith("iteration 5 (6 of 30): mean return 0.5")
    shown = as_text(summary_of(run, done))
    assert shown.startswith("iteration 5 of run demo")
    assert "iterations/00005" in shown


def test_an_alarm_that_was_printed_is_named_in_the_last_summary_and_not_told_again(tmp_path, capsys):
    log, run = TrainingLog(3), Run(str(tmp_path), "demo")
    done = Finished(
        run.iteration(2), alarms=[Alarm("sampler_gap", "", 1, "the gap is 7 nats", "look at precision")]
    )
    log.add(done)
    log.add(done)
    assert capsys.readouterr().out.count("the gap is 7 nats") == 1
    last = as_text(summary_of(run, done, printed=log.alarms))
    assert "alarm: sampler_gap, as above" in last
    assert "7 nats" not in last
    assert "7 nats" in as_text(summary_of(run, done))


def test_rates_of_sampling_and_of_training_have_names_of_their_own():
    update = {"model_id": "team", "seconds": 2.0, "num_forward_tokens": 100}
    text = as_text(summary(view(metrics={"rollout/tokens_per_second": 20.0}, updates=[update])))
    assert "20 sampled tokens/s" in text
    assert "trained tokens/s" in text
    assert text.count("tokens/s") == 2


@pytest.mark.parametrize(
    ("value", "before", "says"),
    [
        (0.5, None, "the best so far by f1: 0.500 after 4 iterations"),
        (
            0.5,
            {"value": 0.5, "iterations": 2},
            "after 2 iterations, as good: a tie keeps the earlier one, 0.500 each",
        ),
        (0.4, {"value": 0.5, "iterations": 2}, "the best by f1 stays 0.500 after 2 iterations"),
        (0.5, {"value": 0.5, "iterations": 4}, "still the best by f1"),
    ],
)
def test_an_evaluation_says_which_one_is_the_best_and_that_ties_keep_the_earlier(value, before, says):
    assert says in best_so_far("f1", value, 4, before)
