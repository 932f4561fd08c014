"""The report in a real browser: filters, expanders, colours, hostile texts, ten thousand turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.report.write import write_report
from tests.support.report_runs import in_parts, new_run, spoken, store, team_episode

pytestmark = pytest.mark.slow

EVIL = "</script><img src=http://example.com/x onerror='window.pwned=1'><script>window.pwned=1</script>"
HIDDEN = "\x1b[31mred \u202eback \x00 \u2028 end"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Eight episodes; the last but one answers with markup, the last with characters that hide."""
    run = new_run(str(tmp_path_factory.mktemp("report") / "runs"))
    episodes = [team_episode(k, k / 8) for k in range(6)]
    chat = json.dumps([{"role": "user", "content": f"lone \ud800 {EVIL}"}])
    for k, text in ((6, EVIL), (7, HIDDEN + "x" * 1_000_000)):
        rows = team_episode(k, k / 8, text)
        rows["turns"][5] |= spoken(text, chat)
        episodes.append(rows)
    episodes[0]["turns"][5] |= {"status": "malformed", "status_detail": f"no <answer> {EVIL}"}
    store(run.iteration(0), in_parts(episodes))
    return Path(write_report(run, iteration=0).file)


@pytest.fixture
def page(browser, file):
    opened(browser, file)
    yield browser
    assert not browser.errors
    assert browser.requests == [file.as_uri()]


def opened(browser, file):
    browser.resize(1400, 900)
    browser.open("about:blank")
    browser.open(file)
    browser.wait("document.body.dataset.ready === 'yes'")


def choose(page, name, value):
    """Choose of a select, or write into an input, as its events would."""
    page.run(f"setFilter({json.dumps(name)}, {json.dumps(value)}); applyFilters()")


def counts(page):
    return page.text("#count")


def test_filters_choose_episodes_and_mark_the_turns_that_pass(page):
    page.click("#tab-episodes")
    assert counts(page) == "8 of 8 episodes, 48 of 48 turns"
    for name, value, expected in (
        ("role", "reader", "8 of 8 episodes, 16 of 48 turns"),
        ("status", "malformed", "1 of 8 episodes, 1 of 48 turns"),
        ("step", "retrieve", "8 of 8 episodes, 16 of 48 turns"),
        ("excluded", "truncated", "8 of 8 episodes, 8 of 48 turns"),
        ("excluded", "trained on", "8 of 8 episodes, 24 of 48 turns"),
        ("low", "0.5", "4 of 8 episodes, 16 of 48 turns"),
        ("text", "FOUNDER 3", "1 of 8 episodes, 1 of 48 turns"),
        ("text", "no such words", "0 of 8 episodes, 0 of 48 turns"),
    ):
        choose(page, name, value)
        assert counts(page) == expected, (name, value)
        page.click("#clear")
        page.wait("document.querySelector('#count').textContent.endsWith('48 of 48 turns')")
    page.fill("#filter-text", "founder 2")
    page.wait("document.querySelector('#count').textContent.startsWith('1 of 8')")
    assert page.run("document.querySelectorAll('.turn.passes').length") == 1
    assert "founder 2" in page.texts("#episode mark")
    page.click("#clear")
    page.wait("document.querySelector('#count').textContent.endsWith('48 of 48 turns')")
    choose(page, "order", "high")
    page.run("byId('list').focus()")
    page.press("Home", 36)
    assert page.text(".row.on .value-number") == page.text(".row .value-number") == "0.875"


def test_expanders_show_prompts_and_tool_results_whole(page):
    page.click("#tab-episodes")
    assert "Be brief." not in page.text("#episode")
    assert "Paris is its capital." not in page.text("#episode")
    page.click("#open-all")
    shown = page.text("#episode")
    assert "Be brief." in shown
    assert "Paris is its capital." in shown
    assert "not trained on\ntruncated" in shown
    assert "3 items" in shown
    page.click("#close-all")
    assert "Be brief." not in page.text("#episode")
    page.click("#turn-0 summary")
    assert "Be brief." in page.text("#turn-0")


def test_branches_stand_side_by_side_and_time_runs_along_their_lanes(page):
    page.click("#tab-episodes")
    boxes = "[...document.querySelectorAll('.branch')].map(b => b.getBoundingClientRect())"
    assert page.run(f"{boxes}.length") == 2
    assert page.run(f"(([a, b]) => a.top === b.top && a.right <= b.left)({boxes})")
    names = page.run("[...document.querySelectorAll('.lane-name')].map((name) => name.lastChild.textContent)")
    assert names == ["decomposer", "reader#0", "reader#1", "answerer"]
    assert page.run("document.querySelectorAll('.lanes .mark').length") == 6
    assert page.run("document.querySelectorAll('.lanes .waiting').length") == 0
    page.click_text("clock")
    assert page.run("document.querySelectorAll('.lanes .waiting').length") == 6


def test_tokens_are_coloured_by_what_is_chosen(page):
    page.click("#tab-episodes")
    page.wait_for("#turn-5 .token")
    colours = "[...document.querySelectorAll('#turn-5 .token')].map(t => t.style.background)"
    assert page.run("document.querySelector('#turn-5 .said').textContent") == "Paris"
    gap = page.run(colours)
    assert all(colour.startswith("rgba(0, 114, 178") for colour in gap)  # the trainer's is 0.1 below
    assert "trainer’s logprob" in page.run("document.querySelector('#turn-5 .token').title")
    page.click("#mode-advantage")
    page.wait_for("#turn-5 .token")
    assert page.run(colours) != gap
    page.click("#mode-plain")
    assert page.run("document.querySelector('#turn-5 .token')") is None


def test_what_a_model_wrote_is_seen_and_does_nothing(page):
    page.click("#tab-episodes")
    for at in (0, 6, 7):
        page.run(f"select({at})")
        page.run("openAll(true)")
        page.run("new Promise(done => setTimeout(done, 100))")
    assert page.run("document.querySelectorAll('img, iframe, object, embed').length") == 0
    assert page.run("window.pwned") is None
    shown = page.text("#turn-5")
    assert r"\x1b[31mred \u202eback \x00 \u2028 end" in shown
    assert r"lone \ud800 </script><img" in shown
    assert "show all" in shown
    page.run("select(6)")
    page.wait_for("#turn-5 .said")
    assert page.run("document.querySelector('#turn-5 .said').textContent").startswith(EVIL[:40])


def test_keys_move_through_the_list_and_a_link_opens_its_episode(page, file):
    page.press("/", 191)
    assert page.run("document.activeElement.id") == "filter-text"
    page.press("Escape", 27)
    page.run("byId('list').focus()")
    page.press("ArrowDown", 40)
    page.press("ArrowDown", 40)
    assert page.text(".episode-head h2").startswith("00000/t1/0")
    assert page.run("location.hash") == "#00000%2Ft1%2F0"
    opened_again = f"{file.as_uri()}#00000%2Ft2%2F1"
    page.open("about:blank")
    page.open(opened_again)
    page.wait("document.body.dataset.ready === 'yes'")
    assert page.text(".episode-head h2").startswith("00000/t2/1")
    page.open("about:blank")
    opened(page, file)


def test_the_graph_counts_turns_and_leads_to_them(page):
    assert page.run("document.querySelector('.graph [data-step=retrieve] .count').textContent") == "16"
    page.run("document.querySelector('.graph [data-step=answer]').dispatchEvent(new Event('click'))")
    page.wait("document.querySelector('#count').textContent === '8 of 8 episodes, 8 of 48 turns'")
    assert "turns to rewards" in page.run("document.querySelector('#cards').textContent")
    assert "2 not an llm turn" in page.run("document.querySelector('#cards').textContent")


def test_ten_thousand_turns_open_and_filter(browser, tmp_path):
    run = new_run(str(tmp_path / "runs"))
    words = "a longer answer that is told apart by its number, and then some more words of it "
    episodes = (team_episode(k, (k % 97) / 97, f"{words}{k}") for k in range(1700))
    store(run.iteration(0), in_parts(episodes, size=100))
    report = write_report(run, iteration=0)
    assert report.turns == 10_200
    opened(browser, Path(report.file))
    browser.click("#tab-episodes")
    assert "10,200 of 10,200 turns" in counts(browser)
    assert browser.run("document.querySelectorAll('.row').length") < 40
    choose(browser, "text", "some more words of it 1234")
    assert counts(browser).startswith("1 of 1,700 episodes")
    choose(browser, "text", "")
    browser.run("byId('list').focus()")
    browser.press("End", 35)
    assert browser.text(".episode-head h2").startswith("00000/t849/1")
    browser.wait_for("#turn-5 .token")
    assert not browser.errors


def test_a_filter_scrolls_to_the_turn_that_matched_and_opens_what_hides_it(page):
    page.click("#tab-episodes")
    choose(page, "step", "answer")
    page.wait("document.querySelector('.turn.passes') !== null")
    visible = (
        "(e => { const b = document.querySelector('#episode').getBoundingClientRect();"
        " const r = e.getBoundingClientRect();"
        " return r.top >= b.top - 2 && r.top < b.bottom })(document.querySelector('.turn.passes'))"
    )
    page.resize(1400, 400)  # the last turn of a conversation is far below
    choose(page, "step", "answer")
    page.wait(visible)
    assert page.text(".turn.passes .index") == "5"
    choose(page, "step", "")
    choose(page, "text", "Be brief.")  # only in prompts, which are closed
    page.wait(visible)
    page.wait("document.querySelector('.turn.passes details[open]') !== null")
    page.resize(1400, 900)


def test_the_overview_has_one_scope_which_the_top_says_and_which_can_be_switched(browser, tmp_path):
    run = new_run(str(tmp_path / "runs"))
    for index, values in enumerate(((0.0, 0.5), (1.0, 1.0, 1.0))):
        episodes = [team_episode(k, value) for k, value in enumerate(values)]
        for name, rows in ((n, r) for e in episodes for n, r in e.items()):
            for row in rows:
                row |= {"iteration": index} if "iteration" in row or name in ("turns", "episodes") else {}
        store(run.iteration(index), in_parts(episodes))
    opened(browser, Path(write_report(run).file))

    def numbers():
        tiles = dict(zip(browser.texts("#tiles .tile span"), browser.texts("#tiles .tile b"), strict=True))
        count = browser.run("document.querySelector('.graph [data-step=answer] .count').textContent")
        return tiles["episodes"], tiles["mean return"], count

    assert "iteration 1" in browser.run("document.querySelector('#iteration').selectedOptions[0].textContent")
    assert numbers() == ("3", "1", "3")
    for chosen, expected in (("0", ("2", "0.25", "2")), ("", ("5", "0.7", "5"))):
        browser.run(
            f"(s => {{ s.value = {json.dumps(chosen)}; s.dispatchEvent(new Event('input')) }})"
            "(document.querySelector('#iteration'))"
        )
        assert numbers() == expected
    browser.screenshot(tmp_path / "scope.png", whole=True)


def test_the_curve_marks_changed_settings_and_scores_stand_apart_by_source(browser, tmp_path):
    run = new_run(str(tmp_path / "runs"))
    for index in range(3):
        store(run.iteration(index), in_parts([team_episode(k, index / 3 + k / 9) for k in range(2)]))
        metrics = {"return/mean": index / 3}
        run.iteration(index).folder.write_text("done.json", json.dumps({"metrics": metrics}))
    run.write_info(settings_changes=[{"iteration": 2, "changes": "ppo.epochs: 1 → 2"}])
    opened(browser, Path(write_report(run).file))
    assert browser.run("document.querySelector('.chart .mark title').textContent") == (
        "settings changed from iteration 2 on: ppo.epochs: 1 → 2"
    )
    assert "changed from iteration 2 on" in browser.run("document.body.textContent")

    place = run.evaluation("dev", 1)
    store(place, in_parts([team_episode(k, 0.5) for k in range(2)]))
    values = {"low": None, "high": None, "tasks": 1, "pass_at": {"1": 0.0}}
    by_source = {"nq": {"mean": 0.25, **values}, "hotpot": {"mean": 0.75, **values}}
    score = {"name": "f1", "mean": 0.5, **values, "by_source": by_source}
    place.folder.write_text("result.json", json.dumps({"scores": [score]}))
    opened(browser, Path(write_report(run, split="dev", iteration=1).file))
    tiles = dict(zip(browser.texts("#tiles .tile span"), browser.texts("#tiles .tile b"), strict=True))
    assert (tiles["f1"], tiles["f1 of nq"], tiles["f1 of hotpot"]) == ("0.5", "0.25", "0.75")
    assert not browser.errors
