"""Credit in channels and replays of messages in a whole run: what is written, trained on, credited again."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from pipeline.replays.plan import replay_plan
from pipeline.replays.replayer import replay
from pipeline.replays.settings import overridden
from pipeline.replays.source import Source
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from stages.base import Quiet
from tests.whole.test_iteration import play
from tests.whole.test_suffix import line

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]


def settings(raw: dict[str, Any], name: str) -> dict[str, Any]:
    """Three roles that speak in turn; the messages of the first two are replayed, about half of them."""
    raw = line(raw, name)
    raw.pop("schedule")
    raw["models"] = {"team": raw["models"]["r0"]}
    raw["roles"] = {role: {"model": "team"} for role in raw["roles"]}
    raw["data"]["tasks_per_iteration"] = 4
    raw["credit"] = {
        "use": "group_relative",
        "channels": [
            {"use": "credit"},
            {"use": "message", "weight": 0.5},
            {"use": "outcome", "name": "team", "weight": 0.25},
            {"use": "surprise", "weight": 0.125, "options": {"share": 0.1}},
        ],
    }
    raw["counterfactuals"] = {"ops": ["resample"], "tokens": 31 * 32}
    return raw


@pytest.fixture(scope="module")
def whole(ray_cluster: None, scripted_module: dict[str, Any]) -> tuple[Run, Finished]:
    run, (done,) = play(settings(scripted_module, "channels"))
    return run, done


def frame(done: Finished, table: str) -> pl.DataFrame:
    return pl.DataFrame(done.tables[table].read())


def test_what_is_trained_on_is_the_declared_sum_token_by_token(whole: tuple[Run, Finished]) -> None:
    _, done = whole
    keys = ["episode_id", "turn_index"]
    rows = frame(done, "credit_channels").with_columns(amount=pl.col("weight") * pl.col("value"))
    assert set(rows["channel"]) == {"credit", "message", "team", "surprise"}
    tokens = pl.concat([frame(done, t) for t in done.tables if t.startswith("token_advantages/")])
    checked = 0
    for turn in tokens.drop_nulls("advantages").iter_rows(named=True):
        of_turn = rows.filter(episode_id=turn["episode_id"], turn_index=turn["turn_index"])
        expected = [
            sum(
                row["amount"]
                for row in of_turn.iter_rows(named=True)
                if (row["first_token"] or 0) <= place < (row["end_token"] or len(turn["advantages"]))
            )
            for place in range(len(turn["advantages"]))
        ]
        assert turn["advantages"] == pytest.approx(expected, abs=1e-6)
        checked += 1
    assert checked == 4 * 4 * 3
    credit = frame(done, "credit").drop_nulls("advantage")
    sums = rows.group_by(keys).agg(pl.col("amount").sum())
    assert (
        credit.join(sums, on=keys).select((pl.col("advantage") - pl.col("amount")).abs().max()).item()
    ) < 1e-12


def test_replays_are_accounted_apart_and_nothing_trains_on_them(whole: tuple[Run, Finished]) -> None:
    _, done = whole
    played, turns = frame(done, "counterfactual_turns"), frame(done, "turns")
    assert not set(played["episode_id"]) & set(turns["episode_id"])
    trained = pl.concat(
        [frame(done, t).select("episode_id") for t in done.tables if t.startswith("partition/")]
    )
    assert not set(played["episode_id"]) & set(trained["episode_id"])
    messages, credit = frame(done, "messages"), frame(done, "message_credit")
    assert messages.height == credit.height == 4 * 4 * 2  # nobody reads the last role
    assert (messages["select_probability"] > 0).all()
    expected = (messages["select_probability"] * messages["tokens"]).sum()
    assert expected == pytest.approx(31 * 32, rel=1e-6)
    chosen = messages["is_chosen"].sum()
    assert 0 < chosen < messages.height
    rows = frame(done, "interventions")
    assert rows.filter(op="resample").height == chosen
    assert credit["replays"].sum() == chosen
    metrics = done.metrics
    assert metrics["counterfactual/tokens"] == played.filter(origin="sampled")["num_response_tokens"].sum()
    assert metrics["total/replayed_tokens"] == metrics["counterfactual/tokens"]
    assert metrics["rollout/response_tokens"] == turns["num_response_tokens"].sum()
    assert metrics["counterfactual/resample/messages"] == messages.height
    assert metrics["credit/team/gap_abs_mean"] == pytest.approx(0, abs=1e-12)
    assert metrics["credit/message/rows"] == credit.height


def test_a_stored_run_is_credited_again_bit_for_bit_and_with_other_weights(
    whole: tuple[Run, Finished],
) -> None:
    run, _ = whole
    source = Source(run)
    same = replay(replay_plan(source, overridden(run, []), label="same", again=True), [0], Quiet())
    assert same.verified >= 7  # rewards, replay rewards, interventions, message credit, credit, channels, …
    other = replay_plan(source, overridden(run, ["credit.channels.1.weight=2.0"]), label="other")
    again = replay(other, [0], Quiet()).done[0]
    rows = pl.DataFrame(again.tables["credit_channels"].read())
    assert set(rows.filter(channel="message")["weight"]) == {2.0}
