"""The report: what is in the page is what is in the tables, and nothing in it can become markup."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html.parser
import json
import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.report import report
from pipeline.report.choose import choose
from pipeline.report.drawing import graph_of, role_of, svg
from pipeline.report.layout import HEIGHT, lay_out
from pipeline.report.pieces import scripted_pieces, stream_pieces
from pipeline.report.source import source_of
from pipeline.report.write import lines_of, write_report
from tests.support.report_runs import MODEL, in_parts, new_run, spoken, store, team_episode
from workflows.draw import drawing
from workflows.errors import UsageError
from workflows.teams import debate
from workflows.teams import qa_decompose as qa
from workflows.trajectory import to_json

HOSTILE = [
    "</script><script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<!--",
    "]]>{{SCRIPT}}{{DATA}}",
    "\u2028 \u2029 \x1b[31m \u202e \x00 \ufeff",
]


@pytest.fixture
def run(tmp_path):
    """Two iterations: eight episodes in three parts, and four in two."""
    run = new_run(str(tmp_path / "runs"))
    store(run.iteration(0), in_parts(team_episode(k, k / 8) for k in range(8)))
    store(run.iteration(1), in_parts(team_episode(k, k / 4, index=1) for k in range(4)))
    return run


class Scripts(html.parser.HTMLParser):
    """The scripts of a page by id, read as a browser reads them."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.found, self.tags, self._id = {}, [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._id = dict(attributes).get("id", "code") if tag == "script" else None

    def handle_endtag(self, tag):
        self._id = None

    def handle_data(self, data):
        if self._id is not None:
            self.found[self._id] = self.found.get(self._id, "") + data


def scripts_of(file):
    return Scripts(Path(file).read_text("utf-8"))


def unpacked(text):
    return json.loads(gzip.decompress(base64.b64decode(text)))


def read(report):
    found = scripts_of(report.file).found
    chunks = [unpacked(found[name]) for name in sorted(found) if name.startswith("chunk-")]
    return unpacked(found["data"]), chunks


def test_the_page_has_every_turn_with_its_texts_reward_credit_and_reason(run):
    report = write_report(run, iteration=0)
    data, _ = read(report)
    assert (report.episodes, report.turns, report.how) == (8, 48, None)
    assert report.file.endswith("/report/iteration-00000.html")
    texts, last = data["texts"], data["turns"][5]
    assert texts[last["response_text"]] == "Paris"
    assert [texts[t] for _, t in data["prompts"][last["prompt"]]] == ["Be brief.", "Capital of France?"]
    ends = [t for t in data["turns"] if t["step"] == "answer"]
    assert [t["reward"] for t in ends] == [k / 8 for k in range(8)]
    assert {t["turn_index"]: t["excluded"] for t in data["turns"][:6] if "excluded" in t} == {
        1: "not an llm turn",
        2: "not an llm turn",
        4: "truncated",
    }
    assert json.loads(texts[data["turns"][4]["cut"]]) == {"passages": {"items": 3}}
    assert json.loads(texts[data["tasks"][0]["gold"]]) == {"answers": ["Paris"]}
    accounts = [a for place in data["about"]["places"] for a in place["accounts"]]
    assert accounts[0]["rows_in"] == accounts[0]["rows_out"] + sum(accounts[0]["excluded"].values())


def test_a_text_that_many_turns_share_is_in_the_page_once(run):
    data, _ = read(write_report(run))
    assert len(set(data["texts"])) == len(data["texts"])
    assert len(data["prompts"]) == 1


def test_tokens_joined_are_the_reply_and_each_has_the_logprobs_of_its_row(run):
    data, chunks = read(write_report(run, iteration=0))
    turn = data["turns"][5]
    chunk = chunks[turn["chunk"]]
    tokens = chunk["turns"]["5"]
    assert "".join(chunk["pieces"][p] for p in tokens["pieces"]) == "Paris"
    rows = source_of(run, 0, None).places[0].tables["turns"].read().to_pylist()
    assert tokens["behaviour"] == pytest.approx(rows[5]["behaviour_logprobs"], abs=1e-4)
    assert turn["gap"] == pytest.approx(0.1, abs=1e-5)
    assert "old_logprobs" not in chunk["turns"]["4"]  # it is not trained on, so nobody scored it


def test_a_model_whose_tokenizer_is_not_here_is_shown_as_text_and_the_page_says_so(run):
    rows = in_parts([team_episode(0, 0.5)])
    for turn in rows["turns"][1]:
        if turn["event"] == "llm":
            turn["context_hash"] = "of another tokenizer"
    store(run.iteration(2), rows)
    report = write_report(run, iteration=2)
    data, chunks = read(report)
    assert report.texts_only == ("team",)
    assert data["about"]["texts_only"] == ["team"]
    assert not chunks
    assert "Paris" in data["texts"]
    assert any("text only" in line for line in lines_of(report))


def test_equal_tables_give_equal_bytes(run, tmp_path):
    one, other = (Path(write_report(run, out=str(tmp_path / n)).file) for n in ("a.html", "b.html"))
    assert one.read_bytes() == other.read_bytes()


def hostile_run(tmp_path, texts):
    run = new_run(str(tmp_path / "runs"), "hostile")
    chat = json.dumps([{"role": "</script>", "content": "lone \ud800 surrogate " + "".join(texts)}])
    episodes = []
    for k, text in enumerate(texts):
        rows = team_episode(k, 0.5, text)
        rows["turns"][5] |= spoken(text, chat)
        rows["turns"][1] |= {"tool_result": to_json({text: [text]})}
        episodes.append(rows)
    store(run.iteration(0), in_parts(episodes))
    return run


def test_whatever_a_model_wrote_the_page_has_the_same_tags_and_the_text_is_whole(tmp_path):
    report = write_report(hostile_run(tmp_path, [*HOSTILE, "long " * 200_000]))
    plain = write_report(hostile_run(tmp_path / "plain", ["Paris"] * 6))
    page = scripts_of(report.file)
    assert page.tags == scripts_of(plain.file).tags
    data = unpacked(page.found["data"])
    assert {*HOSTILE, "long " * 200_000} <= set(data["texts"])
    assert any("lone \ud800 surrogate" in text for text in data["texts"])
    assert report.bytes < 400_000


@given(st.lists(st.text(), min_size=1, max_size=3))
def test_any_text_survives_the_way_into_the_page(texts):
    from pipeline.report.page import page

    found = Scripts(page(texts[0], {"texts": texts}, [{"a": texts}], "<svg></svg>").decode("utf-8")).found
    assert unpacked(found["data"]) == {"texts": texts}
    assert unpacked(found["chunk-0"]) == {"a": texts}


def test_the_policy_allows_the_page_s_own_script_and_style_and_no_connection(run):
    text = Path(write_report(run).file).read_text("utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for rule, tag in (("script-src", "script"), ("style-src", "style")):
        (code,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert "innerHTML" not in text
    assert not re.search(
        r"(src|href)=[\"'](?!data:)", re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    )


def test_more_episodes_than_a_page_may_have_are_a_spread_and_the_page_says_so(run):
    report = write_report(run, iteration=0, episodes=3)
    data, _ = read(report)
    assert (report.episodes, report.episodes_there) == (3, 8)
    ends = [t["reward"] for t in data["turns"] if t["step"] == "answer"]
    assert (min(ends), max(ends)) == (0, 7 / 8)
    assert data["about"]["total"] == 8
    assert "evenly from the lowest return to the highest" in data["about"]["how"]
    assert "3 of 8 episodes" in lines_of(report)[1]


@pytest.mark.parametrize("limit", range(2, 14))
def test_a_limit_is_used_up_and_every_iteration_has_a_share(run, limit):
    chosen = choose(source_of(run, None, None).places, limit)
    shares = [sum(map(len, parts)) for parts in chosen.ids]
    assert sum(shares) == chosen.shown == min(limit, 12)
    assert all(shares)
    assert abs(min(shares[0], 4) - min(shares[1], 4)) <= 1  # of four each as many, give or take one


def test_a_whole_run_has_all_iterations_and_its_learning_curve(run):
    run.iteration(0).folder.write_text("done.json", json.dumps({"metrics": {"return/mean": 0.25}}))
    data, _ = read(write_report(run))
    assert {e["iteration"] for e in data["episodes"]} == {0, 1}
    assert [p["value"] for p in data["about"]["curve"]] == [0.25]


def test_an_evaluation_has_its_scores_and_what_counted_as_0(run):
    rows = in_parts([team_episode(0, 0.5), team_episode(1, 0.5)])
    tables = {name: rows[name] for name in ("tasks", "turns", "episodes")}
    ids = [row["episode_id"] for row in rows["episodes"][1]]
    scores = [{"episode_id": ids[0], "values": [{"name": "f1", "value": 0.75}]}]
    scores += [{"episode_id": ids[1], "values": [], "failed": "no <answer>"}]
    place = run.evaluation("dev", 2)
    store(place, {**tables, "evaluation": [[], scores]}, done=False)
    place.folder.write_text("result.json", json.dumps({"index": 2, "scores": []}))
    report = write_report(run, split="dev")
    data, _ = read(report)
    assert report.file.endswith("evaluation-dev-00002.html")
    assert data["episodes"][0]["scores"] == [["f1", 0.75]]
    assert data["episodes"][1]["failed"] == "no <answer>"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"iteration": 7}, "it has 0 to 1"),
        ({"split": "dev"}, "evaluations on: none"),
        ({"episodes": 0}, "at least 1"),
    ],
)
def test_what_is_not_there_is_refused_with_what_there_is(run, changes, says):
    with pytest.raises(UsageError, match=says):
        write_report(run, **changes)


def test_an_unfinished_iteration_and_values_that_are_not_finite_make_a_page(run):
    rows = in_parts([team_episode(0, 0.5)])
    rows["rewards"][1][0]["reward"] = math.nan
    store(run.iteration(2), {n: rows[n] for n in ("tasks", "turns", "episodes", "rewards")}, done=False)
    data, _ = read(write_report(run, iteration=2))
    assert any("unfinished" in note for note in data["about"]["places"][0]["notes"])
    assert "return" not in data["turns"][0]
    assert "reward" not in data["turns"][0]


def test_rows_of_another_writer_make_a_page(run):
    rows = in_parts([team_episode(0, 0.5)])
    for turn, text in zip(
        rows["turns"][1],
        ["no json", "{}", '[{"content": [{"type": "image"}]}]', "[1]", "", None],
        strict=True,
    ):
        turn |= {
            "messages": text,
            "parsed": text,
            "cut": text,
            "parents": None,
            "step": None,
            "ended_at": None,
        }
    store(run.iteration(2), {name: rows[name] for name in ("turns", "episodes")})
    data, _ = read(write_report(run, iteration=2))
    assert [[data["texts"][t] for _, t in prompt] for prompt in data["prompts"]][:3] == [
        ["no json"],
        ["{}"],
        ['[{"type": "image"}]'],
    ]


def test_a_run_on_another_filesystem_is_read_there_and_its_page_is_written_there(tmp_path):
    root = f"memory://{tmp_path.name}"
    run = new_run(root)
    store(run.iteration(0), in_parts([team_episode(0, 0.5)]))
    assert write_report(run).episodes == 1
    assert run.folder.child("report").names() == ["run.html"]


def test_the_command_says_where_the_page_is_and_how_large(run, capsys, tmp_path):
    root = run.folder.url.rsplit("/", 1)[0]
    options = {"episodes": 5, "out": str(tmp_path / "page.html")}
    report("demo", root=root, **options)
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith(str(tmp_path / "page.html"))
    assert first.endswith("MB")
    assert second == "5 of 12 episodes, 30 turns"
    assert "--episodes N takes more" in third
    report("demo", root=root, **options, as_json=True)
    assert json.loads(capsys.readouterr().out)["bytes"] == (tmp_path / "page.html").stat().st_size


@pytest.mark.parametrize("ending", ["", "/"])
def test_a_page_for_a_folder_lies_in_it_under_its_own_name(run, tmp_path, ending):
    folder = tmp_path / "pages"
    folder.mkdir()
    written = write_report(run, iteration=1, out=f"{folder}{ending}")
    assert written.file == f"{folder}/iteration-00001.html"
    assert [file.name for file in folder.iterdir()] == ["iteration-00001.html"]
    new = write_report(run, iteration=1, out=f"{tmp_path}/new/")
    assert new.file == f"{tmp_path}/new/iteration-00001.html"


def turns_of(*links):
    return [
        {"episode": 0, "turn_index": i, "step": step, "event": "llm", "role": step, "parents": parents}
        for i, (step, parents) in enumerate(links)
    ]


def test_a_graph_that_was_not_declared_is_read_off_the_turns():
    graph = graph_of(None, turns_of(("write", []), ("check", [0]), ("write", [1]), ("check", [2])))
    assert graph["observed"]
    assert [(s["name"], s["ran"]) for s in graph["steps"]] == [("write", 2), ("check", 2)]
    edges = {(e["source"], e["target"]): (e["label"], e["back"]) for e in graph["edges"]}
    assert edges == {("write", "check"): ("2×", False), ("check", "write"): ("1×", True)}


@pytest.mark.parametrize("build", [qa.build, debate.build])
def test_a_declared_graph_is_json_and_has_the_steps_of_its_workflow(build):
    workflow = build()
    declared = drawing(workflow)
    assert json.loads(json.dumps(declared)) == declared
    assert [step["name"] for step in declared["steps"]] == list(workflow.order)
    roles = {role_of(step) for step in declared["steps"]} - {None}
    assert roles <= set(workflow.roles)
    drawn = graph_of(declared, [])
    assert drawn["observed"] == (not declared["edges"])
    assert svg(drawn, list(workflow.roles)).count("<g ") == len(declared["steps"])


@given(st.data())
def test_boxes_never_overlap_and_forward_edges_run_to_the_right(data):
    steps = [f"s{i}" for i in range(data.draw(st.integers(1, 7)))]
    pick = st.sampled_from(steps)
    edges = data.draw(st.lists(st.tuples(pick, pick), max_size=10))
    layout = lay_out(steps, edges)
    for i, one in enumerate(steps):
        for other in steps[i + 1 :]:
            (x0, y0), (x1, y1) = layout.centres[one], layout.centres[other]
            assert x0 != x1 or abs(y0 - y1) >= HEIGHT
    for number, (edge, path) in enumerate(zip(edges, layout.paths, strict=True)):
        back = steps.index(edge[1]) <= steps.index(edge[0])
        assert (number in layout.back) == back
        assert back or all(a[0] < b[0] for a, b in pairwise(path))
        assert all(0 <= x <= layout.width and 0 <= y <= layout.height for x, y in path)


def test_names_in_a_drawing_are_text(run):
    evil = "</svg><script>"
    steps = [{"name": evil, "what": f"role {evil}", "kind": "llm", "branches": True, "ran": 1}]
    drawn = svg({"steps": steps, "edges": []}, [])
    assert "<script" not in drawn
    assert "&lt;script&gt;" in drawn


@given(st.text())
def test_pieces_of_the_scripted_model_join_to_the_text(text):
    text = text.encode("utf-8", "replace").decode()
    ids = MODEL.encode(text)
    pieces = scripted_pieces(ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text


@pytest.mark.parametrize("text", ["naïve 解答 👩‍🔬", " a  b\n", "", "plain"])
def test_pieces_of_a_real_tokenizer_join_to_the_text_although_tokens_cut_characters(text, tiny):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{tiny}/tokenizer.json")
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = stream_pieces(tokenizer, ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text
    if ids:
        assert stream_pieces(tokenizer, tokenizer.encode("é", add_special_tokens=False).ids[:1]) == ["\ufffd"]
