"""An OpenAI-compatible API before the first episode: reached or refused, and its settings."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pipeline.plan.assemble import assemble
from pipeline.plan.overview import key_problem, overview
from pipeline.settings.reading import parse_settings
from pipeline.views.overview import overview_lines
from stages.engines.openai.endpoint import read_endpoint
from stages.engines.openai.engine import OpenAIEngine
from tests.support.chat_api import (
    KEY,
    Answer,
    Api,
    Scripted,
    engine,
    with_api,
)
from workflows.errors import RunFailed, UsageError

pytestmark = pytest.mark.usefixtures("api_key")


def reach(asked: OpenAIEngine) -> None:
    async def once() -> None:
        try:
            await asked.reach()
        finally:
            await asked.close()

    asyncio.run(once())


def test_a_model_that_is_listed_is_asked_nothing(api: Api) -> None:
    reach(engine(api.url))
    assert not api.asked


NO_LIST = [{"data": [{"id": "another"}]}, {"object": "list"}, "<html>home</html>"]


@pytest.mark.parametrize("models", [(404, {}, {}), (405, {}, ""), *((200, {}, body) for body in NO_LIST)])
def test_a_model_that_is_not_listed_is_asked_a_question(api: Api, models: Answer) -> None:
    api.models = models
    reach(engine(api.url))
    assert len(api.asked) == 1
    api.answers = [(404, {}, {"error": {"message": "no model m"}})]
    with pytest.raises(RunFailed, match="no model m"):
        reach(engine(api.url))


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_server_that_can_t_be_used_is_one_error_without_the_key(api: Api, status: int) -> None:
    api.models = (status, {}, {"error": {"message": "key {key} is bad"}})
    with pytest.raises(RunFailed, match=f"model 'judge' can't be asked.*status {status}") as error:
        reach(engine(api.url))
    assert KEY not in str(error.value)


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"base_url": None}, "needs base_url"),
        ({"base_url": "localhost:8000"}, "must be an address"),
        ({"base_url": f"http://me:{KEY}@host/v1"}, "must be an address"),
        ({"base_url": f"http://host/v1?key={KEY}"}, "must be an address"),
        ({"base_url": "http://host:99999/v1"}, "must be an address"),
        ({"model": ""}, "must be the name of a model"),
        ({"api_key": KEY}, "keys are no settings"),
        ({"api_key_env": KEY}, "not the key itself"),
        ({"extra": {"api-key": KEY}}, "keys to the environment"),
        ({"extra": {"temperature": 0}}, "sampling belongs to the roles"),
        ({"omit": ["max_tokens"]}, "a list of some of"),
        ({"omit": "seed"}, "a list of some of"),
        ({"timeout_seconds": 0}, "above 0"),
        ({"timeout_seconds": True}, "above 0"),
        ({"max_concurrency": 1.5}, "whole number"),
        ({"requests_per_minut": 3}, "did you mean 'requests_per_minute'"),
        ({"max_tokens_key": ""}, "the name of a key"),
        ({"tokenizer": 3}, "a checkpoint"),
    ],
)
def test_options_that_can_t_work_are_refused_and_secrets_not_repeated(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as error:
        read_endpoint({"base_url": "http://host/v1", "model": "m", **options}, "models.judge")
    assert "models.judge" in str(error.value)
    assert KEY not in str(error.value)


def test_a_model_behind_an_api_is_never_trained(scripted: Scripted) -> None:
    with pytest.raises(UsageError, match=r"models\.judge\.train = false"):
        assemble(parse_settings(with_api(scripted, "http://host/v1", train=True)))
    plan = assemble(parse_settings(with_api(scripted, "http://host/v1", checkpoint="nowhere/at-all")))
    assert list(plan.trainer_specs) == ["team"]


def test_check_shows_the_endpoint_and_whether_there_is_a_key(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = assemble(parse_settings(with_api(scripted, "http://host/v1")))
    monkeypatch.delenv("TEST_API_KEY", raising=False)
    assert "TEST_API_KEY" in str(key_problem(plan))
    monkeypatch.setenv("TEST_API_KEY", KEY)
    assert key_problem(plan) is None
    shown = "\n".join(overview_lines(overview(plan)))
    assert "m at http://host/v1, key from TEST_API_KEY (set)" in shown
    assert KEY not in shown


def test_how_fast_an_api_is_asked_changes_no_fingerprint(scripted: Scripted) -> None:
    raw = with_api(scripted, "http://host/v1")
    plans = [assemble(parse_settings(raw))]
    for name, value in (("max_concurrency", 3), ("model", "other")):
        raw["models"]["judge"]["engine_options"][name] = value
        plans.append(assemble(parse_settings(raw)))
    first, paced, other = (p.fingerprints["rollout"] for p in plans)
    assert first == paced != other
    assert plans[0].identity == plans[1].identity != plans[2].identity
