"""Rewards that score a whole part at once say what they say of one episode, to the last bit."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from rewards.base import PlayedEpisode
from rewards.exact_match import ExactMatch
from rewards.f1_by_round import F1ByRound
from rewards.format import Format
from rewards.grading.qa import MODES
from rewards.length import Length
from rewards.part import PlayedPart
from rewards.passage_recall import PassageRecall
from rewards.scoring.reasons import kind_of
from rewards.scoring.score import score_turns
from rewards.scoring.variants import score_variants
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from rewards.testing import OneByOne, check_forms
from rewards.token_f1 import TokenF1
from tests.support.tables import named_values
from workflows.data.tasks import load_tasks
from workflows.loading import load_workflow
from workflows.testing import play_once
from workflows.trajectory import EPISODES, STATUSES, TASKS, TURNS, rows_to_table

Tables = tuple[pa.Table, pa.Table, pa.Table]

TEXTS = [
    "Paris",
    "the Paris",
    "",
    "a",
    "İstanbul",
    "ΣΑΣ",
    'x "y",',
    "yes",
    "no",
    "1,000",
    "1000",
    "3.5",
    "東京 tower",
]
TEXTS += ["<think>Paris</think>Rome", "<think>Paris", "Paris</think>"]
TEXTS += ["Paris France Paris", "e\u0301", "new\nline", "\u00a0the\u2003Paris", "a\x00b"]
PARSED = [
    None,
    "null",
    "7",
    "3.5",
    "true",
    '["a"]',
    '{"answer": "Paris"}',
    '{"answer": ["x"]}',
    '"\\ud800"',
    "1e400",
]
PARSED += ['{"action": "end"}', '{"action": "search", "answer": 4}', "{}", "NaN"]
GOLDS = [
    '{"answers": ["Paris"]}',
    '{"answers": ["Paris", "a", "İstanbul"], "passages": ["p1", "p2"]}',
    "{}",
    "[]",
]
GOLDS += [
    '{"answers": []}',
    '{"answers": "Paris"}',
    '{"answers": [7, null]}',
    '{"answers": ["1000"], "passages": "p1"}',
]
RESULTS = [
    None,
    '{"documents": [{"id": "p1"}, {"id": "p3"}]}',
    '{"documents": [{"x": 1}]}',
    "[]",
    '{"documents": 3}',
]
RESULTS += ['{"documents": [{"id": ["no key"]}]}', '"text"', "{}"]


def drawn(seed: int) -> Tables:
    """A few tasks, their plays, and all that can be odd about a turn; rows in any order."""
    draw = random.Random(seed)
    tasks: list[dict[str, Any]] = [
        {"task_id": f"t{i}", "inputs": "{}", "gold": draw.choice(GOLDS[: 2 if i else None])} for i in range(4)
    ]
    turns, episodes = [], []
    for task in tasks:
        for sample in range(draw.randint(0, 11)):
            episode_id = f"{task['task_id']}/{sample}"
            status = draw.choice([*["ok"] * 60, *STATUSES])
            episodes.append({"episode_id": episode_id, "task_id": task["task_id"], "status": status})
            turns += [_turn(draw, episode_id, index) for index in range(draw.randint(0, 9))]
    for rows in (tasks, turns, episodes):
        draw.shuffle(rows)
    return rows_to_table(tasks, TASKS), rows_to_table(turns, TURNS), rows_to_table(episodes, EPISODES)


def _turn(draw: random.Random, episode_id: str, index: int) -> dict[str, Any]:
    step = draw.choice(["plan", "answer", "search", "summarise", "update", "other"])
    odd = draw.random() < 0.1
    said = json.dumps(draw.choice(TEXTS), ensure_ascii=draw.random() < 0.5)
    return {
        "episode_id": episode_id,
        "turn_index": index,
        "step": step,
        "role": draw.choice([step, None]) if odd else step,
        "round": draw.choice([0, 1, 1, 2, 3, -1, None]) if odd else draw.randint(0, 2),
        "branch": draw.choice(["", "1"]),
        "event": draw.choice(["tool", "control", None]) if odd else "llm",
        "trainable": draw.choice([True, False, None]) if odd else True,
        "status": draw.choice([*["ok"] * 300, *STATUSES, *["truncated"] * 20, None]),
        "parsed": draw.choice(PARSED) if draw.random() < 0.2 else said,
        "format_valid": draw.choice([True, True, False, None]),
        "response_text": draw.choice([*TEXTS, None]),
        "num_response_tokens": None if draw.random() < 0.02 else draw.randint(0, 40),
        "tool_result": draw.choice(RESULTS),
        "metrics": draw.choice([None, named_values({"a": 1.0})]),
    }


def any_reward(draw: random.Random) -> Any:
    mode, share = draw.choice(MODES), draw.choice(["full", "split"])
    how: dict[str, Any] = {"mode": mode, "share": share, "malformed": draw.choice(["raw", "zero"])}
    kind = draw.randrange(6)
    if kind == 0:
        return TokenF1(draw.choice(["answer", "plan"]), draw.choice([None, "answer"]), **how)
    if kind == 1:
        return ExactMatch(**how)
    if kind == 2:
        steps = {
            "plan_step": draw.choice(["plan", "answer"]),
            "search_step": draw.choice(["search", "update"]),
        }
        return F1ByRound(plan_key=draw.choice([None, "answer"]), **steps, **how)
    if kind == 3:
        return Format({"plan": 3, "answer": 0.1}, valid=draw.choice([0, 1]), invalid=-0.3)
    if kind == 4:
        return Length(draw.choice([1, 0.001]), draw.choice([0, 5, 10.5]), draw.choice([None, 4]))
    return PassageRecall()


@pytest.mark.parametrize("seed", range(25))
def test_columns_and_episodes_give_the_same_tables(seed) -> None:
    """For several variants at once, addressed in every way, beside a reward that has no columns."""
    draw, tables = random.Random(seed), drawn(seed)
    narrow = [None, None, frozenset({"plan", "answer"})]
    items = [
        WeightedReward(name, draw.choice([1.0, 0.3, 0.0]), reward, draw.choice(narrow), draw.choice(narrow))
        for name, reward in [*((f"r{k}", any_reward(draw)) for k in range(3)), ("three", not_of_three_turns)]
    ]
    variants = [tuple(draw.sample(items, draw.randint(1, 4))) for _ in range(3)]
    rules: list[Any] = [draw.choice(["as_malformed", "exclude"]) for _ in variants]
    slow = {item.name: WeightedReward(item.name, item.weight, OneByOne(item.reward), item.roles, item.steps)
            for item in items}  # fmt: skip
    by_columns, by_episodes = (
        score_variants(
            *tables, [(WeightedRewards(its), rule) for its, rule in zip(of_all, rules, strict=True)]
        )
        for of_all in (variants, [tuple(slow[item.name] for item in its) for its in variants])
    )
    for one, other in zip(by_columns, by_episodes, strict=True):
        assert one.equals(other)
    for item in items[:3]:
        check_forms(item.reward, *tables)  # type: ignore[arg-type]


def not_of_three_turns(episode: PlayedEpisode) -> list[float | None]:
    if len(episode.turns) == 3:
        raise ValueError("three turns")
    return [None if i % 2 else i / 2 for i in range(len(episode.turns))]


@pytest.mark.parametrize("use", ["single", "qa_decompose", "qa_rewrite", "qa_summarise", "qa_select", "mask"])
def test_columns_and_episodes_agree_on_what_the_shipped_workflows_play(use) -> None:
    workflow = load_workflow(use, {})
    tasks = load_tasks("facts").tasks.slice(0, 2).to_pylist()
    turns, episodes = [], []
    for task in tasks:
        for sample in range(3):
            played = play_once(workflow, json.loads(task["inputs"]), sample=sample)
            identity = {"task_id": task["task_id"], "episode_id": f"{task['task_id']}/{sample}"}
            episodes.append(played.episode | identity)
            turns += [turn | identity for turn in played.turns]
    tables = rows_to_table(tasks, TASKS), rows_to_table(turns, TURNS), rows_to_table(episodes, EPISODES)
    step = workflow.answer_step or "answer"
    for reward in (TokenF1(step), ExactMatch(step), F1ByRound(step), Format(), Length(), PassageRecall()):
        check_forms(reward, *tables)


# A user's own.


@dataclass(frozen=True)
class Brevity:
    """1 for a reply of few tokens; what it has no count for, its one-episode form decides."""

    most: int = 7

    def __call__(self, episode: PlayedEpisode) -> list[float | None]:
        values: list[float | None] = [None] * len(episode.turns)
        for position in episode.trainable():
            tokens = episode.turns[position]["num_response_tokens"]
            if tokens is None:
                raise ValueError(f"turn {position} has no count")
            values[position] = float(tokens <= self.most)
        return values

    def by_columns(self, part: PlayedPart) -> pl.Series:
        tokens = pl.col("num_response_tokens")
        short = (tokens <= self.most).cast(pl.Float64).fill_null(math.nan)
        return part.turns.select(pl.when("receives").then(short)).to_series()


class Scripted(Brevity):
    """`Brevity` whose column form does what it is told."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        object.__setattr__(self, "form", form)

    def by_columns(self, part: PlayedPart) -> pl.Series:
        return self.form(part)  # type: ignore[attr-defined,no-any-return]


def scored(reward: Any, tables: Tables) -> list[dict[str, Any]]:
    return score_turns(*tables, WeightedRewards((WeightedReward("mine", 1.0, reward),))).to_pylist()


@pytest.mark.parametrize("seed", range(5))
def test_a_users_own_column_reward_is_used_and_checked(seed) -> None:
    check_forms(Brevity(), *drawn(seed))


def test_the_reward_in_the_docs_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs/rewards.md").read_text("utf-8")
    (text,) = [t for t in re.findall(r"```python\n(.*?)^```", page, re.M | re.S) if "class Brevity" in t]
    names: dict[str, Any] = {"dataclass": dataclass, "pl": pl}
    exec(text, names)
    check_forms(names["Brevity"](), *drawn(1))


def test_a_subclass_that_changes_the_one_episode_form_alone_is_asked_in_that_form() -> None:
    class Doubled(Brevity):
        def __call__(self, episode: PlayedEpisode) -> list[float | None]:
            return [None if value is None else 2 * value for value in super().__call__(episode)]

    once, twice = scored(Brevity(), drawn(1)), scored(Doubled(), drawn(1))
    assert [row["reward"] and 2 * row["reward"] for row in once] == [row["reward"] for row in twice]
    assert any(row["reward"] for row in once)


def test_forms_that_disagree_are_told_turn_by_turn() -> None:
    wrong = Scripted(lambda part: part.turns["num_response_tokens"].cast(pl.Float64))
    with pytest.raises(AssertionError, match=r"turn \d+ of episode 't\d/\d+': by columns .*, by episode"):
        check_forms(wrong, *drawn(1))


@pytest.mark.parametrize(
    ("form", "why"),
    [
        (
            lambda part: 1 / 0,
            "reward 'mine' failed on all episodes of a part: ZeroDivisionError: division by",
        ),
        (lambda part: [1.0] * part.turns.height, "by_columns gave list, expected a Polars series of numbers"),
        (lambda part: part.turns["step"], "by_columns gave a series of String"),
        (
            lambda part: pl.Series([1.0]),
            "reward 'mine' gave the wrong number of values: by_columns gave 1 for the",
        ),
    ],
)
def test_a_column_form_that_fails_costs_the_part_its_rewards_and_says_so_once(form, why) -> None:
    rows = scored(Scripted(form), drawn(2))
    lost = [row for row in rows if "mine" in (row["no_reward_reason"] or "")]
    assert lost
    assert all(row["reward"] is None for row in rows)
    assert len({row["no_reward_reason"] for row in lost}) == 1
    assert why in lost[0]["no_reward_reason"]
    assert ": " not in kind_of(lost[0]["no_reward_reason"])


def test_an_episode_that_the_columns_do_not_decide_is_asked_about_alone() -> None:
    asked = []

    class Undecided(Brevity):
        def __call__(self, episode: PlayedEpisode) -> list[float | None]:
            asked.append(episode.episode_id)
            return [0.25] * len(episode.turns)

        def by_columns(self, part: PlayedPart) -> pl.Series:
            odd = pl.col("episode") % 2 == 1
            value = pl.when(odd & (pl.col("turn_index") == pl.col("turn_index").min().over("episode")))
            return part.turns.select(value.then(math.inf).otherwise(0.5)).to_series()

    rows = scored(Undecided(), drawn(3))
    rewarded = {row["episode_id"]: row["reward"] for row in rows if row["reward"] is not None}
    assert asked == [e for e, value in rewarded.items() if value == 0.25]
    assert set(rewarded.values()) == {0.25, 0.5}


def test_a_column_form_sees_only_episodes_that_can_be_scored_in_the_order_of_their_turns() -> None:
    seen = []
    tables = drawn(4)

    def look(part: PlayedPart) -> pl.Series:
        seen.append(part)
        return pl.Series([0.0] * part.turns.height)

    rows = scored(Scripted(look), tables)
    (part,) = seen
    whole = {row["episode_id"] for row in rows} - {
        row["episode_id"] for row in rows if (row["no_reward_reason"] or "").startswith("episode")
    }
    assert part.turns["episode_id"].unique(maintain_order=True).to_list() == sorted(whole)
    assert part.turns.select("episode_id", "turn_index").rows() == [
        (row["episode_id"], row["turn_index"]) for row in rows if row["episode_id"] in whole
    ]
    assert part.turns["episode"].to_list() == [sorted(whole).index(e) for e in part.turns["episode_id"]]


def test_a_column_form_can_not_reach_turns_that_it_is_not_addressed_to() -> None:
    item = WeightedReward("mine", 1.0, Scripted(lambda part: pl.Series([1.0] * part.turns.height)),
                          steps=frozenset({"plan"}))  # fmt: skip
    tables = drawn(5)
    steps = {(t["episode_id"], t["turn_index"]): t["step"] for t in tables[1].to_pylist()}
    for row in score_turns(*tables, WeightedRewards((item,))).to_pylist():
        for part in row["reward_parts"]:
            assert (part["value"] is not None) == (steps[row["episode_id"], row["turn_index"]] == "plan")
