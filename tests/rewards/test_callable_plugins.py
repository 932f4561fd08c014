"""Plug-ins that can be called and are not plain functions are used like functions, under a stable name."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewards.base import RewardHooks
from rewards.loading import load_credit, load_reward
from tests.support.scored_turns import llm, only, score
from workflows.errors import UsageError
from workflows.hooks import hooks_of
from workflows.plugins import load_function, load_object, name_of, source_hash

MODULE = """
import functools
from acme_other import shared

def plain(episode, scale=1.0):
    return [scale * 2.0 for _ in episode.turns]

def scaled(scale, episode, bonus=0.0):
    return [scale + bonus for _ in episode.turns]

class Scorer:
    def __init__(self, value):
        self.value = value
    def __call__(self, episode, bonus=0.0):
        return [self.value + bonus for _ in episode.turns]
    def score(self, episode, bonus=0.0):
        return self(episode, bonus)
    @classmethod
    def of_class(cls, episode):
        return [2.0 for _ in episode.turns]
    @staticmethod
    def of_none(episode):
        return [2.0 for _ in episode.turns]
    def check_ready(self):
        raise RuntimeError("asked")

partial = functools.partial(scaled, 2.0)
twice = functools.partial(functools.partial(scaled, 2.0), bonus=0.0)
instance = Scorer(2.0)
method = instance.score
borrowed = functools.partial(shared, 2.0)

def decorated(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)
    return call

@decorated
def wrapped(episode):
    return [2.0 for _ in episode.turns]

def flat(by, turns):
    return turns

credit = functools.partial(flat, "task")

class Loss:
    def __call__(self, spec, batch):
        return batch

class Needs:
    def __init__(self, what):
        self.what = what
    def __call__(self, spec, batch):
        return batch

number = 3
"""
REWARDS = (
    "plain",
    "partial",
    "twice",
    "instance",
    "method",
    "Scorer.of_class",
    "Scorer.of_none",
    "wrapped",
    "borrowed",
)


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    import sys

    (tmp_path / "acme_callables.py").write_text(MODULE)
    (tmp_path / "acme_other.py").write_text(
        "def shared(value, episode):\n    return [value for _ in episode.turns]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("acme_callables", "acme_other"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", REWARDS)
def test_whatever_is_called_with_the_episode_is_a_reward(acme: Path, name: str) -> None:
    reward = pickle.loads(pickle.dumps(load_reward(f"acme_callables:{name}", {})))
    assert score([llm(0)], rewards=only(reward))["t/0", 0]["reward"] == 2.0


@pytest.mark.parametrize("name", ["partial", "instance", "method"])
def test_options_reach_it(acme: Path, name: str) -> None:
    reward = pickle.loads(pickle.dumps(load_reward(f"acme_callables:{name}", {"bonus": 0.5})))
    assert score([llm(0)], rewards=only(reward))["t/0", 0]["reward"] == 2.5
    with pytest.raises(UsageError, match="does not take options"):
        load_reward(f"acme_callables:{name}", {"bonsu": 0.5})


def test_a_partial_of_the_turns_is_a_credit_method(acme: Path) -> None:
    assert load_credit("acme_callables:credit", {})("frame") == "frame"


def test_an_instance_keeps_its_hooks(acme: Path) -> None:
    with pytest.raises(RuntimeError, match="asked"):
        hooks_of(load_reward("acme_callables:instance", {}), RewardHooks).check_ready()


def test_a_first_parameter_of_another_name_is_told(acme: Path) -> None:
    with pytest.raises(UsageError, match=r"needs 'self' first.*calls its first parameter 'episode'"):
        load_reward("acme_callables:Scorer.score", {})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", "plain"),
        ("partial", "scaled"),
        ("twice", "scaled"),
        ("instance", "Scorer"),
        ("method", "Scorer.score"),
        ("Scorer.of_class", "Scorer.of_class"),
        ("Scorer", "Scorer"),
        ("wrapped", "wrapped"),
        ("borrowed", "shared"),
    ],
)
def test_its_name_is_that_of_its_code_in_every_process(acme: Path, name: str, expected: str) -> None:
    assert name_of(load_object(f"acme_callables:{name}")) == expected


@pytest.mark.parametrize("name", REWARDS)
def test_the_hash_of_its_source_moves_with_its_file(acme: Path, name: str) -> None:
    use = f"acme_callables:{name}"
    before = source_hash(use)
    assert before is not None
    assert before == source_hash(use)
    file = acme / "acme_callables.py"
    file.write_text(MODULE.replace("2.0", "3.0"))
    assert source_hash(use) != before


def test_the_hash_of_a_partial_moves_with_the_file_of_its_function_too(acme: Path) -> None:
    before = source_hash("acme_callables:borrowed")
    (acme / "acme_other.py").write_text("def shared(value, episode):\n    return []\n")
    assert source_hash("acme_callables:borrowed") != before


def test_a_class_with_a_call_stands_for_an_instance_of_it(acme: Path) -> None:
    assert load_function("acme_callables:Loss", "loss")("spec", "batch") == "batch"
    with pytest.raises(UsageError, match="needs option 'what'"):
        load_function("acme_callables:Needs", "loss")
    with pytest.raises(UsageError, match="loss 'acme_callables:number' is an int, which can't be called"):
        load_function("acme_callables:number", "loss")
