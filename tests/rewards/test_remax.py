"""ReMax: sampled plays against one greedy play of the task, which lies beside them and is not trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from pipeline.plan.assemble import Plan, assemble
from pipeline.plan.engines import greedy_players
from pipeline.settings.reading import parse_settings
from rewards.credit.assign import NO_GREEDY, credit_turns
from rewards.credit.remax import Remax
from rewards.loading import load_credit
from stages.base import check_chain
from stages.greedy import GreedyStage
from workflows.errors import SchemaError, UsageError
from workflows.trajectory import EPISODES, REWARDS, TURNS, rows_to_table

Turn = tuple[str, float | None]
Settings = Callable[..., dict[str, Any]]


def tables(*plays: tuple[str, int, list[Turn]]) -> Any:
    """Plays of (task, sample, turns of (role, reward)) as turns, episodes and rewards."""
    turns, episodes, rewards = [], [], []
    for task, sample, spoken in plays:
        group = f"00000/{task}"
        episode = f"{group}/{sample}"
        episodes.append({"task_id": task, "group_id": group, "sample": sample, "episode_id": episode})
        for index, (role, reward) in enumerate(spoken):
            key = {"episode_id": episode, "turn_index": index}
            turns.append(key | {"role": role, "step": role, "model_id": "m", "num_response_tokens": 3})
            rewards.append(
                key | {"reward": reward, "no_reward_reason": None if reward is not None else "broken"}
            )
    return rows_to_table(turns, TURNS), rows_to_table(episodes, EPISODES), rows_to_table(rewards, REWARDS)


SAMPLED = [
    ("s", 0, [("plan", 1.0), ("code", 0.5)]),
    ("s", 1, [("plan", 0.25), ("code", 0.5)]),
    ("t", 0, [("plan", 2.0)]),
]
GREEDY = [("s", 2, [("plan", 0.5), ("code", 0.5)]), ("t", 2, [("plan", 1.0)])]


def credited(
    method: Any, sampled: Any = SAMPLED, greedy: Any = GREEDY
) -> list[tuple[float | None, str | None]]:
    table = credit_turns(*tables(*sampled), method, greedy=tables(*greedy)).table
    return list(zip(table["advantage"].to_pylist(), table["excluded"].to_pylist(), strict=True))


def test_each_turn_is_compared_with_the_greedy_play_of_its_task() -> None:
    """By role; the greedy plays themselves are in no row."""
    assert credited(load_credit("remax", {})) == [
        (0.5, None),
        (0.0, None),
        (-0.25, None),
        (0.0, None),
        (1.0, None),
    ]


def test_over_a_whole_task_it_is_the_mean_of_the_greedy_turns() -> None:
    by_task = [(0.5, None), (0.0, None), (-0.25, None), (0.0, None), (1.0, None)]
    assert credited(Remax("task")) == by_task
    uneven = [("s", 2, [("plan", 0.0), ("code", 1.0)]), GREEDY[1]]
    assert credited(Remax("task"), greedy=uneven)[0] == (0.5, None)
    assert credited(Remax("task_role"), greedy=uneven)[:2] == [(1.0, None), (-0.5, None)]


def test_a_return_to_go_is_compared_with_the_greedy_return_to_go() -> None:
    found = credited(Remax(returns="to_go", gamma=0.5))
    assert found[0] == (1.0 + 0.25 - (0.5 + 0.25), None)


def test_one_sampled_play_is_enough() -> None:
    Remax().check_group_size(1)
    assert credited(Remax(), sampled=SAMPLED[:1], greedy=GREEDY[:1]) == [(0.5, None), (0.0, None)]


@pytest.mark.parametrize(
    "greedy",
    [
        [("s", 2, [("plan", 0.5)]), GREEDY[1]],  # it took another way
        [("s", 2, [("plan", 0.5), ("code", None)]), GREEDY[1]],  # or it was broken
    ],
)
def test_a_turn_without_a_greedy_counterpart_is_left_out_and_counted(greedy: Any) -> None:
    found = credited(Remax(), greedy=greedy)
    assert [reason for _, reason in found] == [None, NO_GREEDY, None, NO_GREEDY, None]
    assert len(found) == sum(len(turns) for _, _, turns in SAMPLED)


def test_without_greedy_plays_it_says_so_instead_of_training_on_nothing() -> None:
    with pytest.raises(SchemaError, match="without the column greedy"):
        credit_turns(*tables(*SAMPLED), Remax())
    with pytest.raises(UsageError, match="gamma is 2"):
        Remax(gamma=2.0)


def test_sums_that_differ_by_rounding_alone_are_exact_zeros() -> None:
    sampled = [("s", 0, [("plan", 0.1 + 0.2)])]
    assert credited(Remax(), sampled=sampled, greedy=[("s", 1, [("plan", 0.3)])]) == [(0.0, None)]


def remax(scripted: Settings, **changes: Any) -> Plan:
    raw = scripted(**changes)
    raw["credit"] = {"use": "remax"}
    return assemble(parse_settings(raw))


def test_a_plan_plays_once_more_at_temperature_0_and_only_where_it_is_asked_to(scripted: Settings) -> None:
    found = remax(scripted, rollout={"group_size": 1})
    names = [stage.name for stage in found.stages]
    assert names[1:6] == ["rollout", "greedy", "reward", "greedy_reward", "credit"]
    check_chain(found.stages)
    assert set(names) <= set(found.fingerprints)
    greedy = next(stage for stage in found.stages if isinstance(stage, GreedyStage))
    assert (greedy.rollout.group_size, greedy.rollout.first_sample) == (1, 1)
    usual = assemble(parse_settings(scripted()))
    assert not {"greedy", "greedy_reward"} & ({s.name for s in usual.stages} | set(usual.fingerprints))


def test_greedy_players_sample_the_roles_that_are_trained_at_temperature_0(scripted: Settings) -> None:
    judge = {"checkpoint": "tiny", "engine": "scripted", "train": False}
    roles = {"decomposer": {"model": "judge"}, "reader": {"model": "team"}, "answerer": {"model": "team"}}
    spec = remax(scripted, models={"team": {}, "judge": judge}, roles=roles).player_spec
    temperatures = {name: role.temperature for name, role in greedy_players(spec).roles.items()}
    assert temperatures == {"decomposer": 1.0, "reader": 0.0, "answerer": 0.0}
    assert {role.temperature for role in spec.roles.values()} == {1.0}


def test_with_gae_which_would_not_read_them_greedy_plays_are_refused(scripted: Settings) -> None:
    with pytest.raises(
        UsageError, match=r'credit\.use = "remax" has no effect with \[advantage\] use = "gae"'
    ):
        remax(scripted, advantage={"use": "gae"}, critic={"kind": "head"})


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_greedy_plays_are_accounted_and_no_other_table_has_them(scripted: Settings) -> None:
    from pipeline.replays.plan import replay_plan
    from pipeline.replays.replayer import replay
    from pipeline.replays.settings import overridden
    from pipeline.replays.source import Source
    from pipeline.run.session import session
    from stages.base import Quiet

    tasks, plays = 2, 2
    small = {"data": {"tasks_per_iteration": tasks}, "rollout": {"group_size": plays}}
    with session(remax(scripted, **small), signals=False) as runner:
        done, run = runner.run_iteration(), runner.run
    for account in done.accounts:
        account.check()
    boundaries = {account.boundary: account for account in done.accounts}
    assert boundaries["greedy rollout"].rows_in == boundaries["greedy rollout"].rows_out == tasks
    assert boundaries["rollout"].rows_in == tasks * plays
    frames = {name: pl.DataFrame(done.tables[name].read()) for name in ("turns", "greedy_turns", "credit")}
    assert set(frames["turns"]["sample"]) == {0, 1}
    assert set(frames["greedy_turns"]["sample"]) == {plays}
    spoken = frames["greedy_turns"].filter(event="llm")
    assert spoken["sampling"].str.json_path_match("$.temperature").cast(pl.Float64).unique().to_list() == [
        0.0
    ]
    assert set(frames["credit"]["episode_id"]) == set(frames["turns"]["episode_id"])
    assert done.metrics["greedy/episodes"] == tasks
    assert done.metrics["rollout/episodes"] == tasks * plays
    assert done.metrics["total/episodes"] == tasks * (plays + 1)
    sampled = done.metrics["rollout/response_tokens"] + done.metrics["greedy/response_tokens"]
    assert done.metrics["total/sampled_tokens"] == sampled

    run.read_info()
    again = replay(replay_plan(Source(run), overridden(run, []), label="again", again=True), [0], Quiet())
    assert again.verified == 4  # rewards, greedy rewards, credit, partition
