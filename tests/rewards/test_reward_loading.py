"""Rewards and credit methods by name or by path."""

import pickle

import pytest

from rewards.credit.group_relative import GroupRelative
from rewards.format import Format
from rewards.loading import BUILTIN_CREDIT, BUILTIN_REWARDS, load_credit, load_reward, reward_takes
from rewards.scoring.score import score_turns
from rewards.token_f1 import TokenF1
from tests.support.scored_turns import BOTH, llm, only, score, tables
from tests.support.tables import assign_credit
from workflows.errors import SchemaError, UsageError


def test_built_in_names_load_with_their_options() -> None:
    assert load_reward("token_f1", {"share": "split"}) == TokenF1(share="split")
    assert load_reward("format", {"weights": {"answer": 0.5}}) == Format({"answer": 0.5})
    assert load_credit("group_relative", {"by": "task"}) == GroupRelative("task")
    needed = {"rejection": {"best": True}, "learned": {"model": "judge"}}
    for names, load in ((BUILTIN_REWARDS, load_reward), (BUILTIN_CREDIT, load_credit)):
        for name, path in names.items():
            options = needed.get(name, {})
            assert load(name, options) == load(path, options)


def test_whether_a_reward_has_an_option_is_known_without_making_it(acme) -> None:
    assert reward_takes("token_f1", "answer_step")
    assert not reward_takes("format", "answer_step")
    assert reward_takes("acme_rewards:length", "scale")
    for use in ("no_such", "no.such:thing", "acme_rewards:lenght"):
        assert not reward_takes(use, "answer_step")


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """A user's own module."""
    (tmp_path / "acme_rewards.py").write_text(
        "class Constant:\n"
        "    def __init__(self, value):\n        self.value = value\n"
        "    def __call__(self, episode):\n        return [self.value] * len(episode.turns)\n"
        "def length(episode, scale=1.0):\n"
        "    return [scale * len(t['response_text'] or '') for t in episode.turns]\n"
        "def number():\n    return 3\n"
        "def flat(turns):\n    return turns\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "acme_rewards"


def test_a_class_or_a_plain_function_of_the_episode_is_a_reward(acme) -> None:
    for use, options, expected in (("Constant", {"value": 4}, 4.0), ("length", {"scale": 0.5}, 2.5)):
        reward = pickle.loads(pickle.dumps(load_reward(f"{acme}:{use}", options)))
        assert score([llm(0)], rewards=only(reward))["t/0", 0]["reward"] == expected


@pytest.mark.parametrize(
    ("use", "options", "what"),
    [
        ("tokenf1", {}, "did you mean 'token_f1'"),
        ("token_f1", {"modes": "strict"}, "did you mean 'mode'"),
        ("token_f1", {"mode": "loose"}, "mode is 'loose'"),
        ("acme_rewards:length", {"size": 1}, "size"),
        ("acme_rewards:Constant", {}, "needs option 'value'"),
        ("acme_rewards:number", {}, "can't be called with episode"),
        ("acme_rewards:lenght", {}, "did you mean 'length'"),
    ],
)
def test_a_reward_that_can_not_be_loaded_is_refused_before_anything_runs(acme, use, options, what) -> None:
    with pytest.raises(UsageError, match=what):
        load_reward(use, options)


def test_a_credit_method_that_adds_nothing_is_named(acme) -> None:
    turns, episodes = tables([llm(0)])[1:]
    rewards = score_turns(*tables([llm(0)]), BOTH)
    with pytest.raises(SchemaError, match="credit method flat returned no column"):
        assign_credit(turns, episodes, rewards, load_credit(f"{acme}:flat", {}))
