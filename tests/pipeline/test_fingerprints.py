"""Which stages are run again after a change: those whose result depends on it, and no other."""

import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.assemble import assemble, assemble_evaluation
from pipeline.settings.reading import parse_settings
from tests.conftest import merge

EVALUATE = {"split": "dev", "tasks": 4}
FROM_ROLLOUT = {"rollout", "evaluation rollout"}


def fingerprints(raw: dict[str, Any]) -> dict[str, Any]:
    plan = assemble(parse_settings(raw))
    evaluation = assemble_evaluation(plan).fingerprints
    return {**plan.fingerprints, **{f"evaluation {name}": f for name, f in evaluation.items()}}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rollout": {"max_in_flight": 3}}, set()),
        ({"rollout": {"group_size": 3}}, {"rollout"}),
        ({"rollout": {"call_timeout_seconds": 3.0}}, FROM_ROLLOUT),
        ({"rollout": {"temperature": 0.7}}, {"rollout"}),
        ({"workflow": {"options": {"top_k": 3}}}, FROM_ROLLOUT),
        ({"models": {"team": {"max_model_len": 1024}}}, FROM_ROLLOUT),
        ({"models": {"team": {"ppo": {"learning_rate": 1.0}}}}, {"update/team"}),
        ({"ppo": {"learning_rate": 1.0}}, {"update/team"}),
        ({"ppo": {"micro_batch_tokens": 4096}}, {"partition", "update/team"}),
        ({"roles": {"reader": {"frozen": True}}}, {"partition"}),
        ({"roles": {"reader": {"ppo": {"weight": 2.0}}}}, {"update/team"}),
        ({"roles": {"reader": {"format_weight": 2.0}}}, {"reward"}),
        ({"roles": {"reader": {"max_response_tokens": 9}}}, FROM_ROLLOUT),
        ({"rewards": [{"use": "exact_match"}]}, {"reward", "evaluation evaluate"}),
        ({"credit": {"options": {"by": "task"}}}, {"credit"}),
        ({"credit": {"truncated": "exclude"}}, {"reward", "credit"}),
        ({"evaluate": {"samples": 2, "temperature": 1.0}}, {"evaluation rollout"}),
        ({"evaluate": {"tasks": 5}}, {"evaluation sample"}),
    ],
)
def test_a_change_is_in_the_fingerprints_of_what_depends_on_it(
    scripted: Any, change: dict[str, Any], expected: set[str]
) -> None:
    raw = scripted(evaluate=EVALUATE)
    before, after = fingerprints(raw), fingerprints(merge(raw, change))
    assert {name for name in before if before[name] != after[name]} == expected


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"workflow": {"use": "acme_prints:build"}}, FROM_ROLLOUT),
        ({"models": {"team": {"engine_options": {"reply": "acme_prints:reply"}}}}, FROM_ROLLOUT),
        ({"rewards": [{"use": "acme_prints:Reward"}]}, {"reward", "evaluation evaluate"}),
        ({"credit": {"use": "acme_prints:Credit"}}, {"credit"}),
    ],
)
def test_another_source_of_a_plug_in_is_another_result(
    scripted: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    section: dict[str, Any],
    expected: set[str],
) -> None:
    source = tmp_path / "acme_prints.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_prints", raising=False)
    raw = scripted(evaluate=EVALUATE)
    raw["workflow"]["options"] = raw["credit"]["options"] = {}
    prints = []
    for remark in ("", "# another\n"):
        source.write_text(PLUG_INS + remark)
        prints.append(fingerprints(merge(raw, section)))
    before, after = prints
    assert {name for name in before if before[name] != after[name]} == expected


PLUG_INS = """
import polars as pl
from workflows.teams.qa_decompose import build as shipped_team
from workflows.testing import echo_qa as shipped

def build():
    return shipped_team()

def reply(messages, sampling):
    return shipped(messages, sampling)

class Reward:
    def __call__(self, episode, task):
        return 1.0

class Credit:
    group_keys = ("group_id",)
    def __call__(self, turns):
        return turns.with_columns(advantage=pl.col("return"))
"""
