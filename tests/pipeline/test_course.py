"""An episode as a graph in time: lanes, arrows and the critical path, in the page, `show` and MLflow."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.cli.app import app
from pipeline.report.write import write_report
from pipeline.store.run import Run
from pipeline.store.shelf import shelf_of
from pipeline.traces.course import Course, course_of
from pipeline.traces.episode import episodes_of
from tests.support.random_traces import random_episode
from tests.support.report_runs import in_parts, new_run, spawned_episode, store
from workflows.dag import Rates

ID = "00000/t0/0"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with an episode of a lead and two helpers, two counterfactual plays, and a stop curve."""
    run = new_run(str(tmp_path_factory.mktemp("course") / "runs"))
    curve = [
        {"rule": "fixed", "setting": f"{k}", "episodes": 4, "cost": 10.0 * k, "score": s}
        for k, s in enumerate((0.2, 0.6, 0.5))
    ]
    curve += [{"rule": "policy", "episodes": 4, "cost": 12.0, "score": 0.62}]
    curve += [{"rule": "hindsight", "episodes": 4, "cost": 9.0, "score": 0.7}]
    store(run.iteration(0), in_parts([spawned_episode()]) | {"stop_curve": [curve]})
    what = {"episode_id": ID, "task_id": "t0", "turn_index": 3, "alternative": 0}
    played = {"return": 0.25, "base_return": 1.0, "effect": 0.75, "first_difference": 7, "status": "ok"}
    rows = [
        {**what, "op": "drop", **played},
        {**what, "op": "null", "delivered": "(nothing)", "skipped": "over the budget"},
    ]
    place = Run(f"{run.folder.url}/counterfactuals", "drop-null").folder
    store(type(run.iteration(0))(place.child("00000"), 0), {"interventions": [rows]})
    return run


def course(run: Run) -> Course:
    return course_of(next(episodes_of(shelf_of(run).place(0))).turns)


def test_lanes_are_agents_and_arrows_say_what_they_carry(run: Run) -> None:
    found = course(run)
    assert found.lanes == ("lead", "helper/0", "helper/1")
    assert [found.marks[k].lane for k in range(8)] == [0, 0, 0, 1, 2, 1, 2, 0]
    kinds = {(a.source, a.target): a.kind for a in found.arrows}
    assert kinds == {
        (0, 1): "spawn",
        (0, 2): "spawn",
        (1, 2): "read",
        (1, 3): "spawn",
        (2, 4): "spawn",
        (3, 5): "read",
        (4, 6): "read",
        (0, 7): "read",
        (2, 7): "read",
        (5, 7): "return",
        (6, 7): "return",
    }


def test_the_critical_path_is_the_longest_in_modelled_time(run: Run) -> None:
    found = course(run)
    assert [k for k, mark in found.marks.items() if mark.critical] == [0, 1, 2, 4, 6, 7]
    critical = {(a.source, a.target) for a in found.arrows if a.critical}
    assert critical == {(0, 1), (0, 2), (1, 2), (2, 4), (4, 6), (6, 7)}
    assert found.span == pytest.approx(found.marks[7].end)
    assert (found.unit, found.width) == ("seconds", 2)
    longest = sum(m.end - m.begin for m in found.marks.values() if m.critical)
    assert found.span == pytest.approx(longest)
    assert found.span < found.work
    assert found.marks[3].slack == pytest.approx(found.marks[4].end - found.marks[3].end)


@pytest.mark.parametrize("seed", range(40))
def test_any_episode_has_a_course(seed: int) -> None:
    turns = random_episode(seed).turns
    found = course_of(turns)
    assert set(found.marks) == {turn["turn_index"] for turn in turns}
    for arrow in found.arrows:
        assert found.marks[arrow.source].end <= found.marks[arrow.target].begin + 1e-9
    assert found.span <= found.work + 1e-9
    assert not turns or any(mark.critical for mark in found.marks.values())


def test_without_tokens_turns_count(run: Run) -> None:
    turns = [dict(t) | {"num_response_tokens": 0} for t in next(episodes_of(shelf_of(run).place(0))).turns]
    found = course_of(turns, Rates())
    assert (found.unit, found.span, found.work) == ("turns", 3.0, 4.0)


def data_of(run: Run) -> Any:

    page = Path(write_report(run).file).read_text()
    packed = re.search(r'id="data">([^<]+)<', page)
    assert packed is not None
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))


def test_the_page_has_the_course_and_what_counterfactual_plays_changed(run: Run) -> None:
    data = data_of(run)
    (episode,) = data["episodes"]
    assert episode["course"]["lanes"] == ["lead", "helper/0", "helper/1"]
    (changed,) = [turn for turn in data["turns"] if "interventions" in turn]
    assert [(i["op"], i.get("effect"), i.get("skipped")) for i in changed["interventions"]] == [
        ("drop", 0.75, None),
        ("null", None, "over the budget"),
    ]
    assert data["texts"][changed["interventions"][1]["delivered"]] == "(nothing)"
    assert [row["rule"] for row in data["about"]["places"][0]["stops"]] == [
        *["fixed"] * 3,
        "policy",
        "hindsight",
    ]


@pytest.mark.slow
def test_the_page_draws_it(run: Run, browser: Any) -> None:
    browser.resize(1400, 900)
    browser.open(Path(write_report(run).file))
    browser.wait("document.body.dataset.ready === 'yes'")
    assert "chosen: score 0.62 at cost 12; best in hindsight: 0.7 at 9" in browser.text("#cards")
    browser.click("#tab-episodes")
    names = "[...document.querySelectorAll('.lane-name')].map((name) => name.lastChild.textContent)"
    assert browser.run(names) == ["lead", "helper/0", "helper/1"]
    assert browser.run("document.querySelectorAll('.mark.critical').length") == 6
    assert browser.run("document.querySelectorAll('.arrow.of-return').length") == 2
    assert "worth +0.75" in browser.text("#turn-3 .changes")
    assert "credit message" in browser.text("#turn-3 .earned")
    browser.run("document.getElementById('paint').value = 'message'")
    browser.run("document.getElementById('paint').dispatchEvent(new Event('input'))")
    assert browser.run("document.querySelectorAll('.mark[style*=fill]').length") == 8
    assert not browser.errors


def test_show_draws_the_lanes_and_says_what_counterfactual_plays_changed(run: Run) -> None:
    done = CliRunner().invoke(app, ["show", run.folder.url, "--episode", ID])
    assert done.exit_code == 0, done.output
    assert re.search(r"helper/1 +█+◆", done.output)
    assert "critical path" in done.output
    assert "if drop: return 0.25 instead of 1, so it was worth +0.75" in done.output
    assert "if null: not played, over the budget" in done.output
    assert "(team 0.5, message -0.25)" in done.output
    shown = CliRunner().invoke(app, ["show", run.folder.url, "--episode", ID, "--json"])
    assert [i["op"] for i in json.loads(shown.stdout)["interventions"]] == ["drop", "null"]
