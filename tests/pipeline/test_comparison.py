"""Runs side by side: what counts as a repeat, what differs, what is honest about an interval."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.experiments.compare import compare_command, named_runs, write_comparison
from pipeline.experiments.comparison import Comparison, as_dict, compare
from pipeline.experiments.comparison_plots import comparison_files, mean_curve, smoothed
from pipeline.experiments.comparison_view import comparison_page
from pipeline.metrics.cost import cost_metrics, total_cost
from pipeline.store.history import read_history
from pipeline.views.render import as_text
from stages.evaluate import estimate_mean
from tests.support.small_runs import make_run
from workflows.errors import UsageError


def of(*runs: Any, **options: Any) -> Comparison:
    return compare([read_history(run) for run in runs], **options)


def test_runs_that_differ_in_their_seed_alone_are_repeats_of_one_variant(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, f"{regime}-{seed}", [0.1, value + seed / 10], regime=regime, seed=seed)
        for regime, value in (("full", 0.5), ("separate", 0.3))
        for seed in (0, 1, 2)
    ]
    found = of(*runs)
    assert [v.label for v in found.variants] == ["full", "separate"]
    full = found.variants[0]
    assert full.returns is not None
    assert full.returns.last == estimate_mean([0.5, 0.6, 0.7])
    assert full.roles["receiver"].last.mean == pytest.approx(0.3)
    assert found.differences["sharing"] == ["full"] * 3 + ["separate"] * 3
    assert found.differences["run.seed"] == ["0", "1", "2"] * 2


def test_settings_that_changed_within_a_run_are_said_and_marked(tmp_path: Path) -> None:
    """A run that changed in its middle is not a plain repeat, though it ends with the settings of another."""
    runs = [make_run(tmp_path, f"r{seed}", [0.1, 0.2, 0.3], seed=seed) for seed in (0, 1)]
    plain = comparison_files(of(*runs))
    runs[1].write_info(settings_changes=[{"iteration": 2, "changes": "ppo.learning_rate: 0.1 → 0.2"}])
    found = of(*runs)
    assert "r1: settings changed from iteration 2 on: ppo.learning_rate: 0.1 → 0.2" in found.notes
    assert as_dict(found)["variants"][0]["settings_changes"] == {
        "r1": [{"iteration": 2, "changes": "ppo.learning_rate: 0.1 → 0.2"}]
    }
    files = comparison_files(found)
    rows = list(csv.DictReader(io.StringIO(files["learning_curves.csv"].decode())))
    (change,) = [row for row in rows if row["kind"] == "settings"]
    assert (change["run"], change["step"], change["name"]) == ("r1", "2", "ppo.learning_rate: 0.1 → 0.2")
    assert files["learning_curves.png"] != plain["learning_curves.png"]


def test_scores_by_source_are_compared_beside_the_whole(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, f"r{n}", [0.1], scores={1: 0.5}, settings={"ppo": {"eps": 10.0**-n}})
        for n in (7, 8)
    ]
    for run in runs:
        file = Path(run.folder.path) / "evaluations/dev/00001/result.json"
        result = json.loads(file.read_text())
        values = {key: result["scores"][0][key] for key in ("low", "high")} | {"pass_at": {"1": 0.5}}
        result["scores"][0]["by_source"] = {
            "nq": {"mean": 0.25, "tasks": 4, **values},
            "hotpot": {"mean": 0.75, "tasks": 5, **values},
        }
        file.write_text(json.dumps(result))
    found = of(*runs)
    names = ["dev/exact_match", "dev/exact_match of hotpot", "dev/exact_match of nq"]
    assert list(found.variants[0].scores) == names
    assert [found.variants[0].scores[name].last.mean for name in names] == [0.5, 0.75, 0.25]
    page = as_text(comparison_page(found), 120)
    assert all(name in page for name in names)


def test_the_order_of_runs_changes_no_number(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"r{s}", [0.1 * s, 0.2], seed=s) for s in range(4)]
    forth, back = of(*runs).variants[0], of(*runs[::-1]).variants[0]
    assert forth.returns == back.returns
    assert forth.cost == back.cost


def test_only_what_differs_is_told_and_models_are_compared_role_by_role(tmp_path: Path) -> None:
    def run(name: str, regime: str, rate: float) -> Any:
        settings = {"ppo": {"learning_rate": rate}, "rollout": {"group_size": 8}}
        return make_run(tmp_path, name, [0.1], regime=regime, settings=settings)

    found = of(run("a", "full", 0.1), run("b", "separate", 0.2))
    # names of models differ as well, but who shares weights is one line
    assert found.differences == {"sharing": ["full", "separate"], "ppo.learning_rate": ["0.1", "0.2"]}
    adapted = of(run("c", "full", 0.1), run("d", "adapters", 0.1))
    assert adapted.differences["models.adapter.rank"] == ["–", "16"]


def test_a_password_in_a_setting_is_not_told(tmp_path: Path) -> None:
    urls = [f"http://u:secret{i}@h/{i}" for i in range(2)]
    settings = [{"workflow": {"use": "signal", "options": {"urls": [url]}}} for url in urls]
    runs = [make_run(tmp_path, f"r{i}", [0.1], settings=own) for i, own in enumerate(settings)]
    assert "secret" not in json.dumps(as_dict(of(*runs)))


def test_first_and_last_are_means_over_as_many_iterations(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"r{i}", [i + k for k in range(20)], seed=i) for i in range(2)]
    found = of(*runs)
    assert found.last == 5
    assert found.variants[0].returns is not None
    assert found.variants[0].returns.first.mean == pytest.approx(2.5)
    assert found.variants[0].returns.last.mean == pytest.approx(17.5)
    short = of(runs[0], make_run(tmp_path, "short", [0.0, 1.0, 2.0]))
    assert short.last == 1  # never more than half of the shortest: first and last do not overlap
    assert any("different numbers of iterations" in note for note in short.notes)


def test_a_single_run_has_no_interval_of_its_return_and_its_score_has_that_over_tasks(tmp_path: Path) -> None:
    one = make_run(tmp_path, "one", [0.1, 0.2], scores={0: 0.3, 2: 0.5})
    two = make_run(tmp_path, "two", [0.1, 0.2], settings={"ppo": {"learning_rate": 0.5}})
    found = of(one, two)
    assert [v.label for v in found.variants] == ["one", "two"]
    first = found.variants[0]
    assert first.returns is not None
    assert first.returns.last.low is None
    assert (first.scores["dev/exact_match"].first.mean, first.scores["dev/exact_match"].last.low) == (
        0.3,
        0.4,
    )
    assert found.variants[1].scores == {}
    assert any("no interval" in note for note in found.notes)


def test_an_unfinished_iteration_counts_for_nothing_and_is_told(tmp_path: Path) -> None:
    whole = make_run(tmp_path, "whole", [0.1, 0.2])
    cut = make_run(tmp_path, "cut", [0.1], unfinished=True, seed=1)
    empty = make_run(tmp_path, "empty", [], unfinished=True, regime="separate")
    found = of(whole, cut, empty)
    assert found.variants[0].iterations == [2, 1]
    assert found.variants[1].returns is None
    assert any("cut: iteration 1 is unfinished" in note for note in found.notes)
    assert any("empty has no finished iteration" in note for note in found.notes)
    assert "separate" in as_text(comparison_page(found), 100)
    assert comparison_files(found).keys() >= {"learning_curves.png", "learning_curves.csv"}


def test_nothing_finished_at_all_still_makes_a_table(tmp_path: Path) -> None:
    found = of(*(make_run(tmp_path, f"r{i}", [], seed=i) for i in range(2)))
    assert as_text(comparison_page(found), 100)
    assert comparison_files(found) == {}


def test_costs_are_sums_over_iterations_means_over_runs_and_the_worst_memory(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"r{i}", [0.1] * n, seed=i) for i, n in enumerate((2, 4))]
    cost = of(*runs).variants[0].cost
    assert cost["sampled_tokens"] == 300
    assert cost["trained_tokens"] == 3 * 70
    assert cost["seconds"] == 6
    assert cost["peak_memory_gib"] == pytest.approx((2 + 4) / 2)
    assert (cost["parameters_trained"], cost["parameters_held"]) == (10, 20)


def test_totals_up_to_an_iteration_are_what_the_iterations_cost_one_by_one() -> None:
    spent: dict[str, float] = {}
    metrics = [
        {"rollout/response_tokens": 10.0 * k, "time/total_seconds": 1.5, "model/m/tokens_trained": 3.0}
        for k in (1, 2, 3)
    ]
    for one in metrics:
        found = cost_metrics(one, {"engine/m": 2**30, "trainer/m": 2**29}, spent)
        spent = {k.removeprefix("total/"): v for k, v in found.items() if k.startswith("total/")}
    assert spent == total_cost(metrics)
    assert spent == {"sampled_tokens": 60.0, "trained_tokens": 9.0, "seconds": 4.5}
    assert found["memory/peak_gib"] == 1.5
    assert "memory/peak_gib" not in cost_metrics(metrics[0], {}, {})  # not measured is not 0


def test_the_same_run_twice_and_a_single_run_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, "r", [0.1])
    with pytest.raises(UsageError, match="at least two runs, got 1: r"):
        of(run)
    with pytest.raises(UsageError, match="at least two runs, got 1: r, r"):
        of(run, run)
    with pytest.raises(UsageError, match=r"no run 'x' .* there are: r"):
        named_runs(["x"], str(tmp_path))


def test_bands_are_intervals_from_three_runs_on_and_the_range_of_two() -> None:
    two = mean_curve([1, 2, 3], [[0.0, 1.0, 2.0], [1.0, 1.0]])
    assert (two.steps, two.mean, two.low, two.high) == ((1, 2), (0.5, 1.0), (0.0, 1.0), (1.0, 1.0))
    three = mean_curve([1], [[0.0], [0.5], [1.0]])
    assert (three.low[0], three.high[0]) == (estimate_mean([0, 0.5, 1]).low, estimate_mean([0, 0.5, 1]).high)
    assert mean_curve([1], [[0.3]]).low == (None,)


def test_smoothing_keeps_a_constant_and_the_length() -> None:
    assert smoothed([2.0] * 5, 3) == [2.0] * 5
    assert smoothed([0.0, 3.0, 6.0, 9.0], 2) == [0.0, 1.5, 4.5, 7.5]


def test_the_csv_has_every_point_that_was_measured(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"r{s}", [0.1, 0.2 + s], seed=s, scores={0: 0.1, 2: 0.4}) for s in (0, 1)]
    files = comparison_files(of(*runs))
    rows = list(csv.DictReader(io.StringIO(files["learning_curves.csv"].decode())))
    train = [(r["run"], int(r["step"]), float(r["value"])) for r in rows if r["kind"] == "train"]
    assert {("r0", 1, 0.1), ("r0", 2, 0.2), ("r1", 2, 1.2), ("mean", 1, 0.1)} <= set(train)
    assert sum(r["kind"] == "evaluate" for r in rows) == 4
    assert all(data.startswith(b"\x89PNG") for name, data in files.items() if name.endswith(".png"))


def test_the_same_runs_give_the_same_bytes_and_every_picture_shows_its_numbers(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"r{s}", [0.1, 0.2 + s], seed=s, scores={0: 0.1, 2: 0.4}) for s in (0, 1)]
    files = comparison_files(of(*runs))
    assert comparison_files(of(*runs)) == files
    make_run(tmp_path, "r0", [0.1, 0.6], scores={0: 0.1, 2: 0.4})
    moved = comparison_files(of(*runs))
    assert all(moved[name] != files[name] for name in files)
    make_run(tmp_path, "r0", [0.1, 0.2], scores={0: 0.3, 2: 0.4})
    assert comparison_files(of(*runs))["learning_curves.png"] != files["learning_curves.png"]


def test_the_command_writes_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rate in (("a", 0.5), ("b $x$", 0.7)):
        make_run(tmp_path, name.split()[0], [0.1, 0.2], settings={"ppo": {"learning_rate": rate}})
    compare_command(["a", "b"], str(tmp_path), out=str(tmp_path / "out"), last=None, as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert data["differences"] == {"ppo.learning_rate": ["0.5", "0.7"]}
    assert {p.name for p in (tmp_path / "out").iterdir()} == set(data["files"])
    compare_command([f"{tmp_path}/a", "latest"], str(tmp_path), out=None, last=1, as_json=False)
    out = capsys.readouterr().out
    assert "learning_rate  0.5" in out
    assert "  setting            a    b" in out
    assert f"{tmp_path}/comparisons/" in out


def test_labels_that_look_like_markup_or_mathematics_are_shown_as_they_are(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"r{i}", [0.1, 0.2], regime=r) for i, r in enumerate(("full", "separate"))]
    histories = [read_history(run) for run in runs]
    found = compare(histories, {h.url: f"[bold]$x^{i}$" for i, h in enumerate(histories)})
    assert "[bold]$x^0$" in as_text(comparison_page(found), 120)
    assert write_comparison(found, str(tmp_path / "out"))


def test_runs_are_called_by_their_names_and_no_word_is_broken(tmp_path: Path) -> None:
    names = [f"a-run-of-the-team-with-a-long-name-{n}" for n in range(3)]
    runs = [
        make_run(tmp_path, n, [0.1, 0.2], settings={"ppo": {"epochs": i + 1}}) for i, n in enumerate(names)
    ]
    page = as_text(comparison_page(of(*runs)), 80)
    assert all(page.count(name) >= 3 for name in names)  # what differs, what came out, what it cost
    assert max(map(len, page.splitlines())) <= 80
    short = as_text(
        comparison_page(
            of(
                *(
                    make_run(tmp_path, n, [0.1], settings={"ppo": {"epochs": i + 1}})
                    for i, n in enumerate("ab")
                )
            )
        ),
        80,
    )
    assert "  setting     a  b" in short


def test_scores_of_repeats_stay_from_0_to_1(tmp_path: Path) -> None:
    """Two seeds with scores 0.25 and 0.5: Student's t would say -1.213 to 1.963."""
    runs = [make_run(tmp_path, f"r{i}", [0.1], seed=i, scores={0: s}) for i, s in enumerate((0.25, 0.5))]
    runs += [make_run(tmp_path, "other", [0.1], regime="separate")]
    last = of(*runs).variants[0].scores["dev/exact_match"].last
    assert last.mean == 0.375
    assert last.low is not None
    assert last.high is not None
    assert 0 <= last.low < 0.375 < last.high <= 1


@pytest.mark.parametrize(("ends", "bounded"), [((0.0, 1.0), True), ((-0.5, 1.0), False), ((0.0, 1.5), False)])
def test_returns_stay_from_0_to_1_where_they_are_known_to(tmp_path: Path, ends: Any, bounded: bool) -> None:
    metrics = {"return/min": ends[0], "return/max": ends[1]}
    runs = [make_run(tmp_path, f"r{i}", [r], seed=i, metrics=metrics) for i, r in enumerate((0.25, 0.5))]
    runs += [make_run(tmp_path, "other", [0.1], regime="separate")]
    change = of(*runs).variants[0].returns
    assert change is not None
    assert change.last.low is not None
    assert (change.last.low >= 0) == bounded
