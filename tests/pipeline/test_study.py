"""A study: what its file may say, whom it compares with whom, and that a lucky test chooses nothing."""

from __future__ import annotations

import copy
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pipeline.experiments.study.course import planned, run_study, write_report
from pipeline.experiments.study.page import page
from pipeline.experiments.study.results import SINGLE, UNTRAINED, VOTE_TRAINED, VOTE_UNTRAINED, results_of
from pipeline.experiments.study.spec import Study, read_study
from pipeline.experiments.study.view import study_metrics, study_page
from pipeline.experiments.sweep_folder import SweepFolder
from pipeline.views.render import as_text, make_console
from tests.support.study_runs import STUDY, Written, write_study
from workflows.errors import RunFailed, UsageError

DEV = {"voting": {0: 0.0, 2: 0.75, 4: 0.5}, "single": {0: 0.0, 2: 0.25, 4: 0.5, 8: 0.5, 12: 1.0}}
TEST = {"voting": {0: 0.25, 2: 0.5, 4: 1.0}, "single": {0: 0.0, 2: 0.0, 4: 0.25, 8: 0.25, 12: 0.75}}


def study_of(folder: Path, **changes: Any) -> Study:
    raw = copy.deepcopy(STUDY)
    raw["study"] |= changes
    return planned(read_study(write_study(folder, raw), []))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study whose voters sample three times as much in an iteration as their control."""
    study = study_of(tmp_path_factory.mktemp("study"))
    run_study(study, Written(DEV, TEST, {"voting": 300.0}))
    return study


def test_every_cell_shares_all_but_its_workflow_its_regime_and_what_is_its_own(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    assert [cell.label for cell in study.cells] == ["voting, full", "voting, separate", "single, full"]
    names = [m.name for m in study.sweep.members]
    assert names[:3] == ["s-voting-full-s0", "s-voting-separate-s0", "s-single-full-s0"]
    assert names[3:] == [name.replace("-s0", "-s1") for name in names[:3]]
    full, separate, single = (study.sweep.settings_of(m, {}) for m in study.sweep.members[:3])
    assert (full.workflow.use, single.workflow.use) == ("voting", "single")
    assert (full.workflow.options, single.workflow.options) == ({}, {"task": "questions"})
    assert "generator" in full.roles
    assert "generator" not in single.roles
    assert separate.ppo.learning_rate == 0.5 != full.ppo.learning_rate
    assert separate.sharing is not None
    assert separate.sharing.regime == "separate"
    assert len({str((s.data, s.rollout, s.rewards, s.models)) for s in (full, separate, single)}) == 1


def test_the_control_comes_last_is_tested_always_and_votes_and_teams_do_not(tmp_path: Path) -> None:
    study = study_of(tmp_path, workflows=list(reversed(STUDY["study"]["workflows"])))
    assert study.sweep.members[2].name == "s-single-full-s0"
    team, control = (study.sweep.settings_of(study.sweep.members[i], {}).evaluate for i in (0, 2))
    assert team.test is not None
    assert control.test is not None
    assert (team.test.when, team.vote) == ("best", None)
    assert control.test.when == "always"
    assert control.vote is not None
    assert control.vote.answers == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"study": None}, r"has no \[study\] section"),
        ({"evaluate": {"test": {"split": "test"}}}, r"a study needs \[evaluate\] every"),
        ({"evaluate": {"every": 2}}, r"a study needs \[evaluate\] test"),
        ({"study": {"control": "singel"}}, r"study\.control = 'singel' .*did you mean 'single'"),
        ({"study": {"seeds": [1, 1]}}, r"study\.seeds = \[1, 1\] has a seed twice"),
        ({"study": {"seeds": []}}, r"study: seeds"),
        ({"study": {"iterations": 0}}, r"study: iterations"),
        ({"study": {"regime": {"full": {"data": {"path": "x"}}}}}, r"study\.regime\.full sets 'data'"),
        (
            {"study": {"workflows": STUDY["study"]["workflows"] * 2}},
            r"two \[\[study\.workflows\]\] are named",
        ),
        ({"study": {"workflow": []}}, r"unknown key workflow; did you mean 'workflows'|unknown key"),
        ({"ppo": {"learning_rat": 1}}, r"unknown key ppo\.learning_rat"),
    ],
)
def test_a_file_that_can_not_work_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    raw = copy.deepcopy(STUDY)
    for section, values in change.items():
        if values is None:
            del raw[section]
        elif section == "evaluate":
            raw[section] = values
        else:
            raw[section] = {**raw.get(section, {}), **values}
    with pytest.raises(UsageError, match=message):
        read_study(write_study(tmp_path, raw), [])


def test_the_control_trains_on_until_it_has_sampled_what_the_teams_have(tmp_path: Path) -> None:
    study = study_of(tmp_path, seeds=[0])
    train = Written(DEV, TEST, {"voting": 300.0})
    run_study(study, train)
    assert train.calls == [
        ("s-voting-full-s0", 4),
        ("s-voting-separate-s0", 4),
        ("s-single-full-s0", 4),
        ("s-single-full-s0", 12),
    ]
    run_study(study, train)
    assert len(train.calls) == 4


def test_the_control_does_not_train_for_ever(tmp_path: Path) -> None:
    study = study_of(tmp_path, seeds=[0], control_most=2)
    train = Written(DEV, TEST, {"voting": 300.0})
    run_study(study, train)
    assert train.calls[-1] == ("s-single-full-s0", 8)
    notes = " ".join(results_of(study).notes)
    assert "single, full has sampled 67% of the tokens of voting, full" in notes


def test_the_best_is_chosen_on_dev_and_reported_on_test(done: Study) -> None:
    """At 4 the test is perfect, and dev is not: a study that chose on the test would report 1."""
    voting = results_of(done).cells[0]
    assert voting.best.checkpoints == {0: 2, 1: 2}
    assert voting.best.score.mean == pytest.approx(0.5)
    assert voting.last.checkpoints == {0: 4, 1: 4}
    assert voting.last.score.mean == pytest.approx(1.0)
    assert voting.untrained.mean == pytest.approx(0.25)
    assert voting.last.gains[UNTRAINED].mean == pytest.approx(0.75)


def test_a_team_is_compared_with_a_control_of_as_many_tokens_and_votes_of_as_many_an_answer(
    done: Study,
) -> None:
    voting = results_of(done).cells[0]
    # 4 iterations of 300 tokens pay for 12 of the control's: both its last and its best
    assert voting.last.gains[SINGLE].mean == pytest.approx(1.0 - 0.75)
    # 30 tokens an answer pay for three of its plays of 10: two for right or for wrong, and one more
    assert -1 <= voting.last.gains[VOTE_TRAINED].mean <= voting.last.gains[VOTE_UNTRAINED].mean + 0.5
    assert set(voting.last.gains) == {UNTRAINED, SINGLE, VOTE_UNTRAINED, VOTE_TRAINED}
    control = results_of(done).cells[2]
    assert control.is_control
    assert set(control.last.gains) == {UNTRAINED}


def test_a_control_is_never_compared_at_more_tokens_than_the_team_has(tmp_path: Path) -> None:
    """With as many tokens in an iteration, the checkpoint at 8 that an earlier study made is too late."""
    study = study_of(tmp_path, seeds=[0])
    run_study(study, Written(DEV, TEST, {"voting": 100.0}))
    root = study.sweep.root
    train = Written(DEV, TEST)
    member = study.sweep.members[2]
    train(study.sweep.settings_of(member, {}), 12, SweepFolder(root, "s").folder, lambda _: None)
    voting = results_of(study).cells[0]
    assert voting.last.gains[SINGLE].mean == pytest.approx(1.0 - 0.25)
    assert voting.best.gains[SINGLE].mean == pytest.approx(0.5 - 0.25)


def test_all_differences_are_one_family(done: Study) -> None:
    result = results_of(done)
    # two teams × best and last × four gains, the control × two, and full against separate × two
    assert len(result.claims) == 2 * 2 * 4 + 2 + 2
    assert all(c.corrected >= c.effect.chance for c in result.claims if c.effect.chance is not None)
    same = [c for c in result.claims if c.than == "voting, separate"]
    assert [c.effect.mean for c in same] == [0.0, 0.0]
    assert not any(c.is_told for c in same)


def test_a_failed_run_is_told_and_left_out_and_the_same_command_finishes_it(tmp_path: Path) -> None:
    study = study_of(tmp_path, seeds=[0])
    train = Written(DEV, TEST, broken={"s-voting-separate-s0": "memory ran out"})
    with pytest.raises(RunFailed, match="s-voting-separate-s0: memory ran out"):
        run_study(study, train)
    result = results_of(study)
    assert [each.cell.label for each in result.cells] == ["voting, full", "single, full"]
    assert "voting, separate, seed 0 has no test yet and is left out" in result.notes
    train.broken.clear()
    before = len(train.calls)
    run_study(study, train)
    assert train.calls[before:] == [("s-voting-separate-s0", 4)]
    assert len(results_of(study).cells) == 3


class Tags(HTMLParser):
    """The tags of a page, and the texts between them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_and_its_files_say_what_was_found_and_run_nothing(done: Study) -> None:
    write_report(done, make_console())
    folder = Path(done.sweep.root) / "s" / "study"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "study.html", "study.json", "claims.csv", "curves.csv", "curves-voting.png", "curves-single.png",
    }  # fmt: skip
    read = Tags()
    read.feed((folder / "study.html").read_text("utf-8"))
    text = " ".join(read.texts)
    assert "script" not in read.tags
    assert "Holm" in text
    assert "one family" in text
    assert "did not measure gradients by role" in text
    assert read.tags.count("img") == 2
    numbers = json.loads((folder / "study.json").read_text())
    assert numbers["cells"][0]["last"]["score"]["mean"] == pytest.approx(1.0)
    result = results_of(done)
    assert page(result, {}) == page(result, {})
    assert study_metrics(result)["cell/voting/full/best"] == pytest.approx(0.5)
    shown = as_text(study_page(result), 100)
    assert "voting, separate" in shown
    assert "Told from noise" in shown


def test_names_can_not_become_markup(tmp_path: Path) -> None:
    raw = copy.deepcopy(STUDY)
    raw["study"]["seeds"] = [0]
    study = planned(read_study(write_study(tmp_path, raw), []))
    run_study(study, Written(DEV, TEST))
    result = results_of(study)
    hostile = result.__class__(
        result.study, result.cells, result.claims, ("<script>alert(1)</script>",), result.trained
    )
    read = Tags()
    read.feed(page(hostile, {}).decode())
    assert "script" not in read.tags
    assert "<script>alert(1)</script>" in " ".join(read.texts)


def test_gradients_by_role_stand_beneath_the_rewards_where_a_run_has_them(tmp_path: Path) -> None:
    done = study_of(tmp_path, seeds=[0])
    run_study(done, Written(DEV, TEST))
    for member in done.sweep.members:
        folder = Path(done.sweep.root) / member.name / "iterations"
        for file in folder.glob("*/done.json"):
            data = json.loads(file.read_text())
            data["metrics"] |= {f"role/{r}/gradient_share": 0.5 for r in ("generator", "aggregator")}
            file.write_text(json.dumps(data))
    write_report(done, make_console())
    folder = Path(done.sweep.root) / "s" / "study"
    assert "Beneath: gradients by role" in (folder / "study.html").read_text("utf-8")
    assert "role/aggregator/gradient_share" in (folder / "curves.csv").read_text()
