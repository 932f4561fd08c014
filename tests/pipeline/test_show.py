"""What people see of a stored run: exactly as a model wrote it and never as markup."""

import io
import json

import pytest
from rich.console import Console
from rich.text import Text

from pipeline.metrics.signs import Alarm
from pipeline.store.episodes import find_episode, sample_episodes
from pipeline.store.manifest import Manifest
from pipeline.store.run import Run
from pipeline.store.samples import choose_episodes
from pipeline.store.shelf import shelf_of
from pipeline.views.files import iteration_files
from pipeline.views.render import (
    as_text,
    echo,
    make_console,
)
from pipeline.views.stored import print_place
from pipeline.views.transcript import in_branches, transcript, transcript_dict
from stages.base import Account
from stages.tables.parquet import TableSink
from tests.support.tables import named_values
from workflows.errors import UsageError
from workflows.trajectory import CREDIT, EPISODES, REWARDS, TASKS, TURNS, UPDATES, rows_to_table, to_json

HOSTILE = "[bold]x[/] [link=http://a]b[/link]\x1b[31mred\x1b[0m\x00\r\x07\u202egnp"


def turn(index, step, role=None, branch="", **columns):
    what = (
        {"event": "llm", "model_id": "team", "policy_version": 2} if role else {"event": "tool", "tool": step}
    )
    return {
        "turn_index": index,
        "step": step,
        "role": role,
        "branch": branch,
        "status": "ok",
        **what,
        **columns,
    }


def an_episode(number_of, score, text="Paris"):
    """One episode of a small team: a trunk, two branches in parallel, and an answer."""
    group, sample = divmod(number_of, 2)
    keys = {"task_id": f"t{group}", "group_id": f"00000/t{group}", "episode_id": f"00000/t{group}/{sample}"}
    messages = to_json([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Capital?"}])
    turns = [
        turn(0, "decompose", "planner", messages=messages, response_text="two", response_token_ids=[1, 2]),
        turn(1, "retrieve", branch="0", tool_request=to_json({"query": "capital"})),
        turn(2, "retrieve", branch="1", tool_request=to_json({"query": "founder"})),
        turn(3, "read", "reader", "0", response_text="read zero"),
        turn(4, "read", "reader", "1", response_text="read one", status="truncated"),
        turn(5, "answer", "answerer", response_text=text, parsed=to_json({"answer": text})),
    ]
    ids = {"episode_id": keys["episode_id"]}
    reason = {"no_reward_reason": "no llm turn"}
    rewards = [{**ids, "turn_index": k, "reward": None, "reward_parts": [], **reason} for k in (1, 2)]
    rewards += [
        {**ids, "turn_index": k, "reward": score, "reward_parts": named_values({"f1": score})}
        for k in (0, 3, 4, 5)
    ]
    credit = [{**ids, "turn_index": k, "return": score, "advantage": score - 0.5} for k in (0, 3, 5)]
    credit += [{**ids, "turn_index": 4, "excluded": "truncated"}]
    episode = {**keys, "status": "ok", "num_turns": 6, "num_response_tokens": 2, "seconds": 1.5}
    task = {
        "task_id": keys["task_id"],
        "inputs": to_json({"question": "Capital?"}),
        "gold": to_json(["Paris"]),
    }
    return {
        "tasks": [task] * (sample == 0),
        "turns": [{**keys, **t} for t in turns],
        "episodes": [episode],
        "rewards": rewards,
        "credit": credit,
    }


@pytest.fixture
def run(tmp_path):
    """A stored run of one iteration with three parts, the first of them empty."""
    run = Run(str(tmp_path / "runs"), "demo")
    run.write_info(name="demo", tracker={"link": "http://host/#/experiments/1/runs/abc"})
    scores = (0.0, 1.0, 0.25, 0.75)
    episodes = [an_episode(k, score, HOSTILE if k == 1 else "Paris") for k, score in enumerate(scores)]
    parts = [[], episodes[:4], []]
    places = {
        "tasks": ("tasks", "", TASKS),
        "turns": ("rollout", "turns", TURNS),
        "episodes": ("rollout", "episodes", EPISODES),
        "rewards": ("rewards", "", REWARDS),
        "credit": ("credit", "", CREDIT),
        "updates/team": ("updates/team", "steps", UPDATES),
    }
    store = run.iteration(0)
    written = {}
    for name, (folder, place, schema) in places.items():
        sink = TableSink(name, "/".join(p for p in (store.folder.url, folder, place) if p), schema)
        if name == "updates/team":
            update = {
                "model_id": "team",
                "kind": "summary",
                "version_before": 2,
                "version_after": 3,
                "loss": 0.5,
            }
            rows = [[update]]
        else:
            rows = [[row for e in part for row in e[name]] for part in parts]
        files = [sink.write_part(k, rows_to_table(r, schema)) for k, r in enumerate(rows)]
        written.setdefault(folder, {})[name] = files
    for at, (folder, tables) in enumerate(written.items()):
        accounts = [Account(folder, "turn", 24, 20, {"no llm turn": 4})] if folder == "rewards" else []
        its_places = {name: places[name][1] for name in tables}
        manifest = Manifest(folder, 0, {}, {}, tables, its_places, accounts, {}, [], 1.0, float(at))
        store.folder.write_text(f"{folder}/manifest.json", manifest.to_json())
    store.folder.write_text("done.json", "{}")
    return run


def tables_of(run):
    return run.iteration(0).tables()[0]


def test_what_a_model_wrote_is_never_markup_and_hides_nothing(run):
    played = find_episode(tables_of(run), "00000/t0/1")
    text = as_text(transcript(played), 200)
    shown = r"[bold]x[/] [link=http://a]b[/link]\x1b[31mred\x1b[0m\x00\r\x07\u202egnp"
    assert f"says    {shown}" in text
    assert not {c for c in text if not c.isprintable()} - {"\n"}


def test_a_terminal_gets_colour_and_a_file_none(run):
    played = find_episode(tables_of(run), "00000/t0/1")
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=120)
    echo(console, transcript(played))
    assert "\x1b[" in console.file.getvalue()
    plain_console = make_console(io.StringIO(), 120)
    echo(plain_console, transcript(played))
    assert "\x1b" not in plain_console.file.getvalue()


def test_a_branch_within_a_branch_is_indented_twice(run):
    played = find_episode(tables_of(run), "00000/t0/0")
    played.turns[1]["branch"], played.turns[2]["branch"] = "1.0", "1"
    lines = as_text(transcript(played), 200).splitlines()
    indents = {line.strip()[:3]: len(line) - len(line.lstrip()) for line in lines if line.strip()[:1] == "["}
    assert [indents[f"[{index}]"] for index in (0, 1, 2)] == [0, 8, 4]


def test_branches_are_read_one_after_the_other_between_the_turns_of_the_trunk(run):
    played = find_episode(tables_of(run), "00000/t0/0")
    assert [t["turn_index"] for t in in_branches(reversed(played.turns))] == [0, 1, 3, 2, 4, 5]
    lines = as_text(transcript(played)).splitlines()
    heads = [line for line in lines if line.lstrip().startswith("[")]
    assert [len(h) - len(h.lstrip()) for h in heads] == [0, 4, 4, 4, 4, 0]


def test_an_episode_shows_rewards_credit_and_why_a_turn_is_left_out(run):
    text = as_text(transcript(find_episode(tables_of(run), "00000/t1/1")))
    for part in ("question", "Paris", "0.75  (f1 0.75)", "return 0.75, advantage +0.25", "none: no llm turn"):
        assert part in text
    assert "not trained on: truncated" in text
    assert "Be brief." not in text
    assert "Be brief." in as_text(transcript(find_episode(tables_of(run), "00000/t1/1"), full=True))


def test_a_long_text_says_how_much_is_left_out_and_full_leaves_nothing_out(run):
    played = find_episode(tables_of(run), "00000/t1/0")
    played.turns[5]["response_text"] = "a" * 599 + "bcd"
    assert "ab … (2 more characters; --full)" in as_text(transcript(played), 2000)
    assert "abcd" in as_text(transcript(played, full=True), 2000)


def test_an_episode_as_json_has_its_columns_decoded_and_each_turn_its_reward(run):
    data = transcript_dict(find_episode(tables_of(run), "00000/t0/1"))
    json.dumps(data, allow_nan=False)
    assert data["task"]["inputs"] == {"question": "Capital?"}
    assert [t["turn_index"] for t in data["turns"]] == list(range(6))
    assert data["turns"][5]["parsed"] == {"answer": HOSTILE}
    assert data["turns"][5]["reward"] == 1.0
    assert data["turns"][4]["excluded"] == "truncated"
    assert "prompt_token_ids" not in data["turns"][0]
    full = transcript_dict(find_episode(tables_of(run), "00000/t0/1", full=True))
    assert full["turns"][0]["response_token_ids"] == [1, 2]
    assert "prompt_token_ids" in full["turns"][0]


def test_a_sample_spans_the_returns_and_is_the_same_every_time(run):
    tables = tables_of(run)
    ids = [p.episode["episode_id"] for p in sample_episodes(tables, 3)]
    assert ids[0] == "00000/t0/0"
    assert ids[-1] == "00000/t0/1"
    assert ids == [p.episode["episode_id"] for p in sample_episodes(tables, 3)]
    assert len(sample_episodes(tables, 99)) == 4
    assert sample_episodes(tables, 0) == []
    without_credit = {name: table for name, table in tables.items() if name != "credit"}
    assert len(sample_episodes(without_credit, 2)) == 2


def test_the_trackers_files_are_readable(run):
    tables, accounts = tables_of(run), [Account("rewards", "turn", 3, 1, {"why": 2})]
    files = iteration_files(tables, accounts, "[run]\n", choose_episodes(tables, 2, 0), Text("the page"))
    assert files["settings.toml"] == b"[run]\n"
    assert b"2 why" in files["rows.txt"]
    assert files["summary.txt"] == b"the page\n"
    assert files["updates.csv"].splitlines()[1].startswith(b",team,summary,,2,3,0.5")
    assert files["updates.parquet"][:4] == b"PAR1"
    assert files["episodes.txt"].count(b"episode 00000/") == 2
    assert files["episodes.txt"].startswith(b"best ")
    none = iteration_files({}, [], "", [])
    assert {"episodes.txt", "summary.txt"}.isdisjoint(none)
    assert none["updates.csv"].startswith(b"iteration,model_id,kind")


def test_alarms_of_a_stored_iteration_are_shown(run, capsys):
    alarm = Alarm("cut_off", "reader", 3, f"80% are {HOSTILE}", "look there")
    run.iteration(0).folder.write_text("done.json", json.dumps({"alarms": [alarm.as_dict()]}))
    print_place(shelf_of(run), None, episode=None, episodes=0, full=False, as_json=False)
    out = capsys.readouterr().out
    assert "alarm: cut_off/reader since iteration 3: 80% are [bold]x[/]" in out
    assert "\x1b" not in out
    print_place(shelf_of(run), None, episode=None, episodes=0, full=False, as_json=True)
    assert json.loads(capsys.readouterr().out)["alarms"] == [str(alarm)]


def test_a_stored_iteration_is_shown_as_text_and_as_json(run, capsys):
    print_place(shelf_of(run), None, episode=None, episodes=2, full=False, as_json=False)
    out = capsys.readouterr().out
    assert "iteration 0 of run demo: mean return 0.5" in out
    assert "4 no llm turn" in out
    assert "http://host/#/experiments/1/runs/abc" in out
    assert out.count("episode 00000/") == 2
    print_place(shelf_of(run), 0, episode=None, episodes=2, full=False, as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert data["updates"][0]["version_after"] == 3
    assert len(data["episodes"]) == 2
    print_place(shelf_of(run), None, episode="00000/t0/1", episodes=2, full=False, as_json=True)
    out = capsys.readouterr().out
    assert json.loads(out)["turns"][5]["response_text"] == HOSTILE
    assert out.isascii()  # so no control character reaches the terminal


def test_an_unfinished_iteration_shows_what_there_is(run, capsys):
    folder = run.iteration(0).folder
    for name in ("done.json", "credit", "updates"):
        folder.remove(name)
    print_place(shelf_of(run), None, episode=None, episodes=1, full=False, as_json=False)
    out = " ".join(capsys.readouterr().out.split())
    assert "unfinished; finished stages: tasks, rollout, rewards" in out


@pytest.mark.parametrize(
    ("iteration", "episode", "says"),
    [
        (7, None, "no iteration 7"),
        (None, "00000/t9/9", "for example: 00000/t"),
        (None, "00005/t/0", "iteration 5"),
    ],
)
def test_what_is_not_there_is_refused_with_what_there_is(run, iteration, episode, says):
    with pytest.raises(UsageError, match=says):
        print_place(shelf_of(run), iteration, episode=episode, episodes=1, full=False, as_json=False)
