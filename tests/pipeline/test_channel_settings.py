"""Settings of channels and replays: what can't work, or has no effect, is refused with what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.plan.assemble import assemble
from pipeline.plan.overview import overview
from pipeline.settings.reading import parse_settings
from pipeline.views.overview import overview_lines
from stages.advantage import AdvantageStage
from workflows.errors import UsageError

Settings = Callable[..., dict[str, Any]]


def names(raw: dict[str, Any]) -> list[str]:
    return [stage.name for stage in assemble(parse_settings(raw)).stages]


def test_without_channels_the_plan_is_as_it_was(scripted: Settings) -> None:
    plan = assemble(parse_settings(scripted()))
    assert "counterfactual" not in [stage.name for stage in plan.stages]
    assert not any(isinstance(stage, AdvantageStage) for stage in plan.stages)
    assert "channel_sources" not in plan.fingerprints["credit"]
    assert "channels" not in plan.fingerprints["credit"]["credit"]


def test_replays_come_between_reward_and_credit_and_spans_need_token_advantages(scripted: Settings) -> None:
    raw = scripted(
        credit={"channels": [{"use": "credit"}, {"use": "message", "weight": 0.5}]},
        counterfactuals={"ops": ["resample"], "tokens": 100},
    )
    order = names(raw)
    at = order.index("reward")
    assert order[at + 1 : at + 5] == ["counterfactual", "counterfactual_reward", "messages", "credit"]
    assert "advantage" in order
    plan = assemble(parse_settings(raw))
    lines = overview_lines(overview(plan))
    assert any("advantage = 1 × credit + 0.5 × message" in line for line in lines)
    assert any("replayed by resample: about 100 tokens" in line for line in lines)
    whole_turns = scripted(credit={"channels": [{"use": "outcome", "options": {"unit": "role"}}]})
    assert "advantage" not in names(whole_turns)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"credit": {"channels": [{"use": "mesage"}]}}, "message"),
        ({"credit": {"channels": [{"use": "message"}]}}, 'add "resample" to counterfactuals.ops'),
        ({"credit": {"channels": [{"use": "difference"}]}}, 'add "drop"'),
        ({"credit": {"channels": [{"use": "stop"}]}}, "no earlier stage writes"),
        ({"credit": {"channels": [{"use": "shapley"}]}}, "branch_steps"),
        ({"credit": {"channels": [{"use": "credit"}, {"use": "credit"}]}}, "two channels"),
        ({"credit": {"channels": [{"use": "credit", "weight": 0}]}}, "weight 0"),
        ({"credit": {"channels": [{"use": "outcome", "options": {"unit": "teem"}}]}}, "team"),
        ({"credit": {"channels": [{"use": "credit"}]}, "advantage": {"use": "gae"}, "critic": {}}, "gae"),
        ({"counterfactuals": {"tokens": 5}}, "without counterfactuals.ops"),
        ({"counterfactuals": {"ops": ["drop"], "alternatives": 2}}, "without resample"),
        ({"counterfactuals": {"ops": ["drop"], "explore": 0.5}}, "without counterfactuals.tokens"),
        ({"counterfactuals": {"ops": ["drop"], "roles": ["nobody"]}}, "nobody"),
        ({"counterfactuals": {"ops": ["paraphrase"]}}, "paraphrase"),
        ({"counterfactuals": {"ops": ["dorp"]}}, "drop"),
    ],
)
def test_what_has_no_effect_or_no_data_is_refused(
    changes: dict[str, Any], words: str, scripted: Settings
) -> None:
    with pytest.raises(UsageError, match=words):
        assemble(parse_settings(scripted(**changes)))
