"""The scores of an evaluation as values, as metrics and as a table, by the source of tasks too."""

from __future__ import annotations

from dataclasses import replace

from pipeline.settings.names import slug
from pipeline.store.evaluated import choosing_number, score_metrics, score_values
from pipeline.views.render import as_text, evaluation_table
from stages.evaluate import Estimate, Score

NQ = Score("f1", Estimate(0.25, 0.1, 0.4, 6), {1: 0.2, 2: 0.3})
HOTPOT = Score("f1", Estimate(0.75, None, None, 1), {1: 0.6, 2: 0.9})
WHOLE = Score("f1", Estimate(0.32, 0.2, 0.5, 7), {1: 0.25, 2: 0.4}, {"nq open": NQ, "hotpot": HOTPOT})


def test_a_team_with_more_tasks_solved_beats_one_with_a_higher_mean_where_that_chooses() -> None:
    """Programs that pass most tests of every task, against programs that pass all tests of some."""
    nearly = Score("rate", Estimate(0.9, None, None, 4), {1: 0.0})
    solving = Score("rate", Estimate(0.5, None, None, 4), {1: 0.5})
    by_mean, by_solved = (
        max((nearly, solving), key=lambda score, by=by: choosing_number([WHOLE, score], "rate", by)[1])
        for by in ("mean", "solved")
    )
    assert (by_mean, by_solved) == (nearly, solving)
    assert choosing_number([nearly], "rate", "mean")[0] == "rate"
    assert choosing_number([nearly], "rate", "solved")[0] == "rate/pass_at_1"


def test_metrics_have_each_source_beside_the_whole() -> None:
    assert score_metrics("dev", [score_values(WHOLE)]) == {
        "evaluate/dev/f1": 0.32,
        "evaluate/dev/f1/pass_at_1": 0.25,
        "evaluate/dev/f1/pass_at_2": 0.4,
        f"evaluate/dev/f1/source/{slug('nq open')}": 0.25,
        f"evaluate/dev/f1/source/{slug('nq open')}/pass_at_1": 0.2,
        "evaluate/dev/f1/source/hotpot": 0.75,
        "evaluate/dev/f1/source/hotpot/pass_at_1": 0.6,
    }


def test_however_many_sources_there_are_metrics_are_few_and_of_the_largest() -> None:
    many = {f"s{n:03d}": replace(NQ, estimate=Estimate(0.5, 0.4, 0.6, n + 1)) for n in range(100)}
    metrics = score_metrics("dev", [score_values(replace(WHOLE, by_source=many))])
    named = {name.split("/")[4] for name in metrics if "/source/" in name}
    assert len(named) == 32
    assert named == {f"s{n:03d}" for n in range(68, 100)}


def test_the_table_has_a_line_for_each_source_below_its_metric() -> None:
    text = as_text(evaluation_table("dev", 3, [score_values(WHOLE)], {"episodes": 14.0}), 100)
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert ["f1", "0.320", "0.200", "to", "0.500", "0.25", "0.4"] in lines
    assert ["of", "nq", "open", "0.250", "0.100", "to", "0.400", "0.2", "0.3"] in lines
    assert any(line[:3] == ["of", "hotpot", "0.750"] for line in lines)
