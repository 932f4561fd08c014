"""A whole iteration of a team of which one role speaks through an API."""

from __future__ import annotations

import polars as pl
import pytest

from pipeline.plan.assemble import assemble
from pipeline.settings.reading import parse_settings
from tests.support.chat_api import (
    KEY,
    Api,
    Scripted,
    said,
    with_api,
)
from workflows.engine import Sampling
from workflows.errors import RunFailed
from workflows.testing import echo_qa


@pytest.mark.slow
@pytest.mark.usefixtures("api_key")
def test_a_team_trains_while_one_role_speaks_through_an_api(
    scripted: Scripted, api: Api, ray_cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipeline.run.session import session
    from pipeline.store.shelf import shelf_of
    from pipeline.views.stored import print_place

    api.reply = lambda body: said(echo_qa(body["messages"], Sampling(max_tokens=9, seed=body["seed"])))
    plan = assemble(parse_settings(with_api(scripted, api.url)))
    with session(plan, signals=False) as runner:
        done = runner.run_iteration()
        tables = {name: pl.DataFrame(ref.read()) for name, ref in done.tables.items()}
        print_place(shelf_of(runner.run), 0, episode=None, episodes=2, full=True, as_json=False)
    turns, partition = tables["turns"], tables["partition/team"]
    remote = turns.filter(model_id="judge")
    assert remote.height == len(api.asked) > 0
    assert set(tables["episodes"]["status"]) == {"ok"}
    assert remote["response_token_ids"].null_count() == remote.height
    assert remote["response_text"].null_count() == 0
    assert set(partition["model_id"]) == {"team"}
    assert partition.height == turns.filter(model_id="team").height
    for account in done.accounts:
        account.check()
    left_out = remote.join(tables["credit"], on=["episode_id", "turn_index"])["excluded"]
    assert set(left_out) == {"model is frozen"}
    assert tables["updates/team"].filter(kind="summary")["version_after"].to_list() == [1]
    shown = capsys.readouterr().out
    assert "7 → 5 tokens" in shown
    assert KEY not in shown + str(plan.settings)

    api.models = (401, {}, {"error": {"message": "who are you?"}})
    played = len(api.asked)
    with session(plan, signals=False) as runner, pytest.raises(RunFailed, match="who are you"):
        runner.run_iteration()
    assert len(api.asked) == played
