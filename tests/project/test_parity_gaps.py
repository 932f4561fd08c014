"""Laws of the whole that docs/parity.md names and that no single part can state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.plan.assemble import Plan, assemble
from pipeline.plan.evaluation import metric_sections
from pipeline.plan.rewards import weighted_rewards
from pipeline.settings.reading import load_settings, parse_settings
from pipeline.settings.training import AdvantageSection, CriticSection, PpoSection
from rewards.scoring.score import score_turns
from stages.evaluate import evaluate
from stages.players.actor import PlayerActor, PlayerSpec
from stages.players.shards import Shard
from stages.tables.parquet import TableSink
from workflows.echo import echo_form
from workflows.engine import Message, Sampling
from workflows.models import Model, ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.testing import ScriptedEngine, echo_qa, play_once
from workflows.trajectory import EPISODES, TASKS, TURNS, rows_to_table

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.toml"))

FORMS = ("code", "math", "voting", "evaluate_optimise")  # whose prompts end with a form of tags

Settings = Callable[..., dict[str, Any]]
Reply = Callable[[Sequence[Message], Sampling], str]


def nonsense(messages: Sequence[Message], sampling: Sampling) -> str:
    return "la"


def silence(messages: Sequence[Message], sampling: Sampling) -> str:
    return ""


def plan_of(file: Path, tmp_path: Path) -> Plan:
    # programs of a few words are run here: what this machine has to isolate them with is no matter
    overrides = ["sandbox.isolation=none"] if "[sandbox]" in file.read_text("utf-8") else []
    return assemble(load_settings(file, [f'run.root="{tmp_path}"', *overrides]))


def played(plan: Plan, reply: Reply) -> tuple[pa.Table, pa.Table, pa.Table]:
    """The first task of the plan, its turns and its episode."""
    task = plan.tasks.tasks.slice(0, 1).to_pylist()[0]
    found = play_once(plan.workflow, json.loads(task["inputs"]), reply)
    task |= {"task_id": "task"}
    return (
        rows_to_table([task], TASKS),
        rows_to_table(found.turns, TURNS),
        rows_to_table([found.episode], EPISODES),
    )


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_shipped_team_plays_is_rewarded_and_is_evaluated_whatever_it_says(
    file: Path, tmp_path: Path
) -> None:
    """Faults M6 and 7.A 1: a topology that ships has never been played, or not in an evaluation."""
    plan = plan_of(file, tmp_path)
    team = plan.resolved
    of_team = (team.workflow, team.format_weights, team.sandbox)
    rewards = weighted_rewards(team.rewards, *of_team)
    metrics = weighted_rewards(metric_sections(team.evaluate, team.rewards), *of_team)
    for reply in (echo_form if file.stem in FORMS else echo_qa, nonsense, silence):
        tables = played(plan, reply)
        assert tables[2]["status"].to_pylist() == ["ok"], tables[2]["error"].to_pylist()
        spoken = [turn["turn_index"] for turn in tables[1].to_pylist() if turn["event"] == "llm"]
        scored = {row["turn_index"]: row for row in score_turns(*tables, rewards).to_pylist()}
        for index in spoken:
            row = scored[index]
            assert (row["reward"] is None) == bool(row["no_reward_reason"]), row
        assert any(scored[index]["reward"] is not None for index in spoken)
        (evaluated,) = evaluate(*tables, metrics).to_pylist()
        # a judge that talks nonsense gives no mark, which is said and no 0
        unmarked = {"no value of judge"} if file.stem == "debate" else set()
        assert evaluated["failed"] in {None} | unmarked
        assert [value["name"] for value in evaluated["values"]] == list(metrics.names)


def test_the_numbers_of_an_update_are_those_of_the_published_settings() -> None:
    ppo, critic, advantage = PpoSection().settled(), CriticSection(), AdvantageSection()
    assert (ppo.clip_low, ppo.clip_high, ppo.dual_clip, ppo.epochs) == (0.2, 0.2, 3.0, 1)
    assert (ppo.learning_rate, ppo.betas, ppo.weight_decay) == (1e-6, (0.9, 0.999), 0.01)
    assert (ppo.schedule, ppo.warmup_updates, ppo.gradient_clip) == ("constant", 0, 1.0)
    assert (ppo.kl_coefficient, ppo.entropy_coefficient) == (0.0, 0.0)
    assert (critic.learning_rate, critic.value_clip, critic.warmup_updates) == (1e-5, 0.5, 0)
    assert (advantage.gamma, advantage.lam, advantage.across_turns) == (1.0, 1.0, False)


def test_limits_and_a_roles_own_sampling_reach_the_players(scripted: Settings) -> None:
    """A setting that nothing reads is worse than none: time limits, tokens, temperatures."""
    plan = assemble(
        parse_settings(
            scripted(
                rollout={
                    "call_timeout_seconds": 11,
                    "tool_timeout_seconds": 12,
                    "episode_timeout_seconds": 13,
                    "call_attempts": 4,
                    "max_turns": 15,
                    "temperature": 0.5,
                },
                roles={"reader": {"max_response_tokens": 17, "sampling": {"temperature": 0.25}}},
            )
        )
    )
    limits, roles = plan.player_spec.limits, plan.player_spec.roles
    assert (limits.call_timeout_seconds, limits.tool_timeout_seconds) == (11, 12)
    assert (limits.episode_timeout_seconds, limits.call_attempts, limits.max_turns) == (13, 4, 15)
    assert (roles["reader"].max_response_tokens, roles["reader"].temperature) == (17, 0.25)
    assert roles["answerer"].temperature == 0.5


def test_a_player_has_no_more_episodes_in_flight_than_it_may(tmp_path: Path) -> None:
    now, most = 0, 0

    async def before(messages: Sequence[Message], sampling: Sampling) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(10):  # turns of the event loop, no clock
            await asyncio.sleep(0)
        now -= 1

    async def run() -> None:
        engine = ScriptedEngine(echo_qa, before=before)
        models = ModelMap({"m": Model("m", "m", "scripted")}, {"solver": "m"})
        actor = PlayerActor(PlayerSpec("single", {}, models, {}, PlayLimits(), 0, 3), {"m": engine})
        await actor.start()
        tasks = [{"task_id": str(n), "inputs": json.dumps({"question": f"Who is {n}?"})} for n in range(4)]
        sink = TableSink("tasks", str(tmp_path / "tasks"), TASKS)
        asked = sink.ref([sink.write_part(0, rows_to_table(tasks, TASKS))])
        sinks = {
            name: TableSink(name, str(tmp_path / name), schema)
            for name, schema in (("turns", TURNS), ("episodes", EPISODES))
        }
        await actor.play_shard(Shard(0, 0, 4, asked, sinks, str(tmp_path / "receipts")))

    asyncio.run(run())
    assert most == 3
