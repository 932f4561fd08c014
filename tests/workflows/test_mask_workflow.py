"""The workflow `mask`: rounds, the learned stop, knowledge and what each role is shown; and its reward."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import pytest

from pipeline.metrics.turns import step_metrics
from rewards.f1_by_round import F1ByRound
from rewards.format import Format
from rewards.scoring.score import score_turns
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from rewards.token_f1 import TokenF1
from stages.tables.parquet import TableSink
from workflows.errors import InfraError, ToolRefusal
from workflows.graph import Workflow
from workflows.playing.attempts import PlayLimits
from workflows.playing.record import Played
from workflows.roles import RoleSettings
from workflows.teams.mask import build
from workflows.teams.mask_knowledge import learned, next_id, planned, query_lines, trajectory_lines
from workflows.testing import Reply, play_once
from workflows.trajectory import EPISODES, INFRA_ERROR, MALFORMED, TASKS, TOOL_ERROR, TURNS, rows_to_table

QUESTION = "In which city was the author of Emma born?"
PLAN = (
    "<q1>Who wrote Emma?</q1><a1>Jane Austen</a1>"
    "<q2>Where was she born?</q2><a2>London</a2><final_answer>London</final_answer>"
)


@functools.cache
def mask(**options: Any) -> Workflow:
    return build(**options)


class Shelf:
    """Finds one passage for each query, and fails for some as told."""

    def __init__(self, refused: str = "", unknown: str = "", down: str = ""):
        self.refused = refused
        self.unknown = unknown
        self.down = down
        self.queries: list[str] = []

    async def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        query = request["query"]
        self.queries.append(query)
        if query == self.down:
            raise InfraError("connection refused")
        if query == self.refused:
            raise ToolRefusal("no")
        text = f"about {query}"
        found = [] if query == self.unknown else [{"id": query, "title": "", "text": text, "score": 1.0}]
        return {"documents": found}


def turn_by_turn(*replies: str) -> Reply:
    """A role that says one thing after the other, and the last one from then on."""
    said = iter(range(10**6))
    return lambda messages, sampling: replies[min(next(said), len(replies) - 1)]


def play(
    shelf: Shelf | None = None,
    options: Mapping[str, Any] | None = None,
    limits: PlayLimits | None = None,
    settings: Mapping[str, RoleSettings] | None = None,
    **said: str | Reply,
) -> Played:
    replies: dict[str, str | Reply] = {
        "planner": PLAN,
        "answerer": turn_by_turn(*(f"<final_answer>answer {n}</final_answer>" for n in range(9))),
        "searcher": turn_by_turn(*(f"<search>query {n}</search>" for n in range(9))),
        "summariser": turn_by_turn(*(f"<evidence>evidence {n}</evidence>" for n in range(9))),
        "updater": "<update>t2</update>",
    }
    return play_once(
        mask(**(options or {})),
        {"question": QUESTION},
        replies | said,
        tools={"retriever": shelf or Shelf()},
        limits=limits,
        role_settings=settings,
    )


def steps(played: Played) -> list[str]:
    return [f"{t['step']}{t['round']}" for t in played.turns if t["event"] != "control"]


def asked(played: Played, step: str) -> list[str]:
    return [json.loads(t["messages"])[-1]["content"] for t in played.turns if t["step"] == step]


def known(played: Played) -> list[dict[str, Any]]:
    return [json.loads(t["parsed"]) for t in played.turns if t["step"] == "knowledge"]


def trajectory(knowledge: Mapping[str, Any]) -> list[str]:
    return [f"{s['id']}|{s['sub_question']}|{s['sub_answer']}" for s in knowledge["trajectory"]]


def one_round(n: int) -> list[str]:
    return [f"search{n}", f"retrieve{n}", f"summarise{n}", f"update{n}", f"answer{n + 1}"]


def test_what_a_team_did_is_counted_by_episode(tmp_path: Any) -> None:
    """M-ASK's counts: one team goes three rounds, another is stopped in its second."""
    teams = [
        play(updater=turn_by_turn("<update>t2</update>", "<add>t3</add>", "<add>t4</add>")),
        play(searcher=turn_by_turn("<search>x</search>", "<end>"), updater="no such thing"),
    ]
    turns = [t | {"episode_id": str(n)} for n, team in enumerate(teams) for t in team.turns]
    sink = TableSink("turns", str(tmp_path), TURNS)
    metrics = step_metrics({"turns": sink.ref([sink.write_part(0, rows_to_table(turns, TURNS))])})
    assert metrics == {
        "step/plan/turns_mean": 1.0,
        "step/answer/turns_mean": (4 + 2) / 2,  # three and one answered rounds
        "step/search/turns_mean": (3 + 2) / 2,
        "step/search/search_mean": (3 + 1) / 2,
        "step/search/end_mean": 1 / 2,
        "step/retrieve/turns_mean": (3 + 1) / 2,
        "step/summarise/turns_mean": (3 + 1) / 2,
        "step/update/turns_mean": (3 + 1) / 2,
        "step/update/update_mean": 1 / 2,
        "step/update/add_mean": (2 + 1) / 2,  # what is no place is a new step
    }


# Rounds and the learned stop.


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
def test_it_searches_as_often_as_it_may_and_answers_once_more(rounds: int) -> None:
    played = play(options={"max_rounds": rounds})
    assert steps(played) == ["plan0", "answer0", *(s for n in range(rounds) for s in one_round(n))]
    calls = [t for t in played.turns if t["event"] == "llm"]
    assert len(calls) == 2 + 4 * rounds
    assert (played.episode["status"], played.episode["stop_reason"]) == ("ok", "finished")
    assert json.loads(played.turns[-1]["parsed"]) == f"answer {rounds}"


@pytest.mark.parametrize("end_at", [0, 1, 2])
@pytest.mark.parametrize("end", ["<end>", "", "?!"])
def test_the_searcher_stops_the_team_in_any_round(end_at: int, end: str) -> None:
    played = play(searcher=turn_by_turn(*["<search>x</search>"] * end_at, end))
    rounds = [s for n in range(end_at) for s in one_round(n)]
    assert steps(played) == ["plan0", "answer0", *rounds, f"search{end_at}"]
    assert played.episode["stop_reason"] == "finished"
    assert played.turns[-1]["format_valid"] == (end == "<end>")


def test_where_the_end_does_not_stop_the_team_the_question_itself_is_looked_up() -> None:
    shelf = Shelf()
    searcher = turn_by_turn("<end>", "<search>x</search>")
    played = play(shelf, {"stop_on_search_end": False, "max_rounds": 2}, searcher=searcher)
    assert steps(played) == ["plan0", "answer0", *one_round(0), *one_round(1)]
    assert shelf.queries == [QUESTION, "x"]
    assert f"New: {QUESTION} - evidence 0" in asked(played, "update")[0]


def test_a_limit_of_turns_ends_it_with_that_reason() -> None:
    played = play(limits=PlayLimits(max_turns=6))
    assert (played.episode["status"], played.episode["stop_reason"]) == ("ok", "max_turns")
    assert len(played.turns) == 6


def test_every_turn_names_those_whose_words_it_read() -> None:
    played = play(options={"max_rounds": 1})
    names = [f"{t['step']}{t['round']}" for t in played.turns]
    read = {name: {names[p] for p in t["parents"]} for name, t in zip(names, played.turns, strict=True)}
    assert read["plan0"] == set()
    assert read["knowledge0"] == {"plan0"}
    assert read["answer0"] == read["search0"] == {"knowledge0"}
    assert read["summarise0"] == {"search0", "retrieve0"}
    assert read["update0"] == {"knowledge0", "answer0", "search0", "summarise0"}
    assert read["knowledge1"] == {"knowledge0", "answer0", "search0", "summarise0", "update0"}


# Knowledge.


def test_the_plan_is_the_first_knowledge_and_the_updater_chooses_where_the_evidence_goes() -> None:
    played = play(updater=turn_by_turn("<update>t2</update>", "<add>t3</add>", "<update>t3</update>"))
    first, second, third, fourth = known(played)
    assert first["question"] == QUESTION
    assert trajectory(first) == ["t1|Who wrote Emma?|Jane Austen", "t2|Where was she born?|London"]
    assert trajectory(second) == ["t1|Who wrote Emma?|Jane Austen", "t2|query 0|evidence 0"]
    assert trajectory(third) == [*trajectory(second), "t3|query 1|evidence 1"]
    assert trajectory(fourth) == [*trajectory(second), "t3|query 2|evidence 2"]
    assert [k["answer"] for k in known(played)] == ["London", "answer 0", "answer 1", "answer 2"]
    assert fourth["queries"] == ["query 0", "query 1", "query 2"]


@pytest.mark.parametrize("shown", ["t1", "t2", "t3"])
def test_the_ids_that_a_prompt_shows_are_those_that_an_update_accepts(shown: str) -> None:
    tag = "add" if shown == "t3" else "update"
    played = play(options={"max_rounds": 1}, updater=f"<{tag}>{shown}</{tag}>")
    prompt = asked(played, "update")[0]
    assert f"<add>{shown}</add>" in prompt if tag == "add" else f"\n{shown}: " in prompt
    (update,) = [t for t in played.turns if t["step"] == "update"]
    assert update["format_valid"]
    changed = set(trajectory(known(played)[1])) - set(trajectory(known(played)[0]))
    assert changed == {f"{shown}|query 0|evidence 0"}


@pytest.mark.parametrize("said", ["<update>t7</update>", "<update>tau1</update>", "<add>t9</add>", "t1", ""])
def test_an_update_of_what_is_not_there_is_malformed_and_adds_the_next_step(said: str) -> None:
    played = play(options={"max_rounds": 1}, updater=said)
    (update,) = [t for t in played.turns if t["step"] == "update"]
    assert update["status"] == MALFORMED
    assert trajectory(known(played)[1])[-1] == "t3|query 0|evidence 0"


def test_knowledge_is_never_changed_in_place() -> None:
    before = planned("Q", {"steps": [{"sub_question": "a", "sub_answer": "b"}], "answer": "c"})
    kept = json.dumps(before)
    after = learned(before, where={"action": "update", "id": "t1"}, query="q", evidence="e", answer="x")
    more = learned(after, where={"action": "add", "id": next_id(after)}, query="r", evidence="f", answer="y")
    assert json.dumps(before) == kept
    assert trajectory_lines(more) == ["t1: q - e", "t2: r - f"]
    assert query_lines(more) == ["1. q", "2. r"]
    assert (next_id(before), next_id(more)) == ("t2", "t3")


# What roles are shown, and replies that break their form.


def test_every_role_sees_what_it_needs() -> None:
    played = play(options={"max_rounds": 2})
    assert QUESTION in asked(played, "plan")[0]
    first, second = asked(played, "search")
    assert "\nKnown:\nt1: Who wrote Emma? - Jane Austen\nt2: Where was she born? - London\n" in first
    assert "\nSearched:\n(nothing yet)\n" in first
    assert "\nSearched:\n1. query 0\n" in second
    reading = asked(played, "summarise")[1]
    assert reading.startswith(f"Text: about query 1\nQuestion: {QUESTION}\nQuery: query 1\n")
    update = asked(played, "update")[1]
    assert "\nt2: query 0 - evidence 0\nAnswer so far: answer 1\nNew: query 1 - evidence 1\n" in update
    assert "\nt2: query 0 - evidence 0\n" in asked(played, "answer")[1]


@pytest.mark.parametrize(
    ("role", "step", "said", "seen"),
    [
        (
            "planner",
            "plan",
            "I would ask around.",
            ["t1: In which city was the author of Emma born? - Unknown"],
        ),
        ("searcher", "search", "who wrote Emma?", ["Query: who wrote Emma\n"]),
        (
            "summariser",
            "summarise",
            "She did.\nIndeed.",
            ["New: query 0 - She did.\n", "t2: query 0 - She did."],
        ),
        ("answerer", "answer", "It is Bath", ["Answer so far: It is Bath\n"]),
    ],
)
def test_a_reply_that_breaks_its_form_is_read_leniently_and_the_round_goes_on(
    role: str, step: str, said: str, seen: list[str]
) -> None:
    played = play(options={"max_rounds": 1}, **{role: said})
    assert steps(played) == ["plan0", "answer0", *one_round(0)]
    assert {t["status"] for t in played.turns if t["step"] == step} == {MALFORMED}
    prompts = "\n".join(json.loads(t["messages"])[-1]["content"] for t in played.turns if t["messages"])
    for text in seen:
        assert text in prompts


def test_a_query_that_finds_nothing_or_is_refused_is_summed_up_as_nothing_found() -> None:
    for shelf in (Shelf(unknown="query 0"), Shelf(refused="query 0")):
        played = play(shelf, {"max_rounds": 1})
        assert steps(played) == ["plan0", "answer0", *one_round(0)]
        assert "Text: (nothing found)\n" in asked(played, "summarise")[0]
        (retrieve,) = [t for t in played.turns if t["step"] == "retrieve"]
        assert (retrieve["status"] == TOOL_ERROR) == bool(shelf.refused)
        assert played.episode["status"] == "ok"


def test_a_retriever_that_is_down_is_no_empty_result_and_what_was_said_is_kept() -> None:
    limits = PlayLimits(call_attempts=2, backoff_seconds=0)
    played = play(Shelf(down="query 1"), limits=limits)
    assert steps(played) == ["plan0", "answer0", *one_round(0), "search1", "retrieve1"]
    assert (played.episode["status"], played.episode["stop_reason"]) == (INFRA_ERROR, "call_failed")


def test_a_long_history_loses_its_oldest_lines_and_never_the_question_or_the_form() -> None:
    settings = {
        "answerer": RoleSettings(max_prompt_tokens=480),
        "searcher": RoleSettings(max_prompt_tokens=480),
    }
    options = {"max_rounds": 8}
    played = play(
        options=options, limits=PlayLimits(max_turns=99), settings=settings, updater="<add>t99</add>"
    )
    assert steps(played)[-1] == "answer8"
    cut = {t["step"]: t for t in played.turns if t["cut"]}
    assert set(cut) == {"answer", "search"}
    for step, form in (
        ("answer", "<final_answer>your answer</final_answer>"),
        ("search", "if enough is known"),
    ):
        prompt = json.loads(cut[step]["messages"])[-1]["content"]
        assert prompt.startswith(f"Question: {QUESTION}\nKnown:\n")
        assert prompt.endswith(form)
    last = json.loads(cut["answer"]["messages"])[-1]["content"]
    assert "\nt10: query 7 - evidence 7\nReply: " in last
    assert "\nt1: " not in last
    assert set(json.loads(cut["answer"]["cut"])) == {"trajectory"}
    assert "queries" in json.loads(cut["search"]["cut"])  # what was searched goes before what is known


# Its reward, on played episodes: f(x) is 1 for Bath, 2/3 for "Bath city", 0 for the others.

WEIGHTS = WeightedRewards(
    (
        WeightedReward("f1_by_round", 1.0, F1ByRound()),
        WeightedReward("format", 1.0, Format()),
        WeightedReward("final_f1", 0.0, TokenF1()),
        WeightedReward("plan_f1", 0.0, F1ByRound(), steps=frozenset({"plan"})),
    )
)


def rewards(played: Played) -> dict[str, float | None]:
    """By step and round, with what the task reward and the format give together."""
    gold = json.dumps({"answers": ["Bath"]})
    task = {"task_id": "task", "inputs": json.dumps({"question": QUESTION}), "gold": gold}
    scored = score_turns(
        rows_to_table([task], TASKS),
        rows_to_table(played.turns, TURNS),
        rows_to_table([played.episode], EPISODES),
        WEIGHTS,
    ).to_pylist()
    named = {f"{t['step']}{t['round']}": r for t, r in zip(played.turns, scored, strict=True)}
    for name, row in named.items():
        if not name.startswith(("knowledge", "retrieve")):
            assert row["reward"] is not None, f"{name} has no reward: {row['no_reward_reason']}"
    return {name: row["reward"] for name, row in named.items() if row["reward"] is not None}


def final(*answers: str) -> Reply:
    return turn_by_turn(*(f"<final_answer>{a}</final_answer>" for a in answers))


def test_each_turn_is_paid_for_what_its_round_changed() -> None:
    played = play(answerer=final("Rome", "Bath city", "Rome", "Bath"))
    near, back = pytest.approx(2 / 3), pytest.approx(-2 / 3)
    assert rewards(played) == {
        "plan0": 0.0, "answer0": 0.0,
        "search0": near, "summarise0": near, "update0": near, "answer1": near,
        "search1": back, "summarise1": back, "update1": back, "answer2": 0.0,
        "search2": 1.0, "summarise2": 1.0, "update2": 1.0, "answer3": 1.0,
    }  # fmt: skip


def test_the_plan_is_paid_for_its_own_prediction_and_not_for_the_first_answer() -> None:
    played = play(
        options={"max_rounds": 1},
        planner=PLAN.replace("London</final", "Bath</final"),
        answerer=final("Rome", "Rome"),
        updater="t2",
    )
    assert rewards(played) == {
        "plan0": 1.0, "answer0": 0.0, "search0": 0.0, "summarise0": 0.0, "update0": -1.0, "answer1": 0.0
    }  # fmt: skip


def test_an_end_is_worth_nothing_and_a_search_for_nothing_costs_its_format() -> None:
    assert rewards(play(searcher="<end>", answerer=final("Bath"))) == {
        "plan0": 0.0,
        "answer0": 1.0,
        "search0": 0.0,
    }
    assert rewards(play(searcher="", answerer=final("Bath")))["search0"] == -1.0


def test_where_an_end_does_not_stop_the_team_the_rest_of_its_round_is_paid_and_the_next_delta_is_right() -> (
    None
):
    played = play(
        options={"stop_on_search_end": False, "max_rounds": 2},
        searcher=turn_by_turn("<end>", "<search>x</search>"),
        answerer=final("Rome", "Bath city", "Bath"),
    )
    near, rest = pytest.approx(2 / 3), pytest.approx(1 / 3)
    assert rewards(played) == {
        "plan0": 0.0, "answer0": 0.0,
        "search0": 0.0, "summarise0": near, "update0": near, "answer1": near,
        "search1": rest, "summarise1": rest, "update1": rest, "answer2": 1.0,
    }  # fmt: skip


def test_a_round_that_was_cut_short_changed_nothing() -> None:
    played = play(limits=PlayLimits(max_turns=7), answerer=final("Bath"))
    assert [t["step"] for t in played.turns][-1] == "update"
    found = rewards(played)
    assert [found[s] for s in ("answer0", "search0", "summarise0", "update0")] == [1.0, 0.0, 0.0, 0.0]
