"""Random spawn trees: plays call, spawn, join, cancel, write, fail and overspend, as a seed has it."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from rewards.credit.assign import credit_turns
from rewards.credit.group_relative import GroupRelative
from rewards.format import Format
from rewards.scoring.score import score_turns
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from workflows.acts import TRUNK, acted
from workflows.crew import Crew
from workflows.engine import Message, Sampling
from workflows.errors import InfraError
from workflows.models import Model, ModelMap
from workflows.pace import Budget, Pace, Spawning
from workflows.parsers import Tag
from workflows.playing.attempts import PlayLimits
from workflows.playing.base_episode import BaseEpisode
from workflows.playing.play import Player
from workflows.playing.record import Played
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.state import Output
from workflows.testing import ScriptedEngine
from workflows.trajectory import EPISODES, TASKS, TURNS, rows_to_table
from workflows.vocabulary import Act, Event, Status


def workflow(order: str, depth: int = 2, width: int = 3) -> ScriptWorkflow:
    """A team whose course depends on what its replies say alone."""
    return ScriptWorkflow(
        "tree",
        [
            Role("lead", "{said}", parser=Tag("answer"), conversation=True, max_response_tokens=64),
            Role("helper", "{said}", parser=Tag("answer"), max_response_tokens=64),
        ],
        _lead,
        tools={"look": _look},
        steps={"lead": "lead", "helper": "helper", "look": "look", "mark": None},
        spawning=Spawning(depth, width, Pace(order=order, prompt_tokens_per_second=100.0)),
    )


async def _look(request: Any) -> Any:
    await asyncio.sleep(0)
    return {"seen": request}


async def _lead(team: Crew, task: Mapping[str, Any]) -> None:
    await _live(team, "lead", task["seed"])


async def _help(team: Crew, brief: Output) -> Any:
    last = await _live(team, "helper", brief)
    return last if random.Random(last.text).random() < 0.7 else last.text


async def _live(team: Crew, role: str, said: Any) -> Output:
    """A few rounds, each as the reply before it has it."""
    last = await team.call(role, {"said": said})
    members: list[Any] = []
    for _ in range(3):
        luck = random.Random(last.text)
        chance = luck.random()
        for number in range(min(luck.randrange(4), team.room)):
            limits = luck.choice([{}, {"turns": luck.randrange(1, 3)}, {"tokens": 9}, {"seconds": 1.5}])
            members.append(
                team.spawn(
                    "helper", {"do": f"{last.text[:9]} {number}"}, _help, by=last, budget=Budget(**limits)
                )
            )
        if chance < 0.2 and members:
            team.message([member.instance for member in members[:2]], "hurry", by=last)
        elif chance < 0.3 and team.depth:
            team.message([TRUNK], "news", by=last)
        elif chance < 0.4 and members:
            team.delegate(members[-1], {"more": last.text[:5]}, by=last)
        if luck.random() < 0.3:
            heard = await team.inbox()
            team.note("mark", len(heard), reads=heard)
        if luck.random() < 0.1:
            await team.receive()
        if luck.random() < 0.2:
            await team.tool("look", {"at": last.text[:4]}, reads=[last])
        if luck.random() < 0.2:
            await team.each(range(2), lambda branch, n: branch.call("helper", {"said": f"{n}"}))
        if luck.random() < 0.2 and role == "lead":
            team.compact("lead", last)
        came = []
        if members and luck.random() < 0.7:
            came = await team.join(members, want=luck.choice([None, 1, 2]))
            members = [m for m in members if m.instance not in {each.instance for each in came}]
        if members and luck.random() < 0.4:
            await team.cancel(members[: luck.randrange(1, len(members) + 1)], "enough", by=last)
            members = [m for m in members if m in team._members]
        if came:
            team.aggregate([each.output.value for each in came], came, by=last, how="listed")
        if luck.random() < 0.25:
            break
        said = [each.output.key.branch for each in came] or "on"
        last = await team.call(role, {"said": said}, reads=[each.output for each in came])
    return last


def reply(messages: Sequence[Message], sampling: Sampling) -> str:
    """Words of random length, one in five outside of the form."""
    luck = random.Random(sampling.seed)
    words = f"{luck.randrange(10**6)} " * luck.randrange(1, 6)
    return words if luck.random() < 0.2 else f"<answer>{words}</answer>"


class Trees:
    """Plays of one tree, each time with the replies back in another order.

    Args:
        fails: the share of calls that fail, whoever makes them.
    """

    def __init__(self, order: str, seed: int, fails: float = 0.0):
        self.workflow = workflow(order)
        self._seed = seed
        self._fails = fails
        self.asked = 0

    def play(self, arrival: int, base: BaseEpisode | None = None) -> Played:
        """One play; `arrival` decides when replies come back, and nothing else."""
        luck = random.Random(arrival)

        async def before(messages: Sequence[Message], sampling: Sampling) -> None:
            self.asked += 1
            for _ in range(luck.randrange(15)):
                await asyncio.sleep(0)
            digest = hashlib.blake2b(f"{sampling.seed}".encode(), digest_size=4).digest()
            if int.from_bytes(digest, "little") / 2**32 < self._fails:
                raise InfraError("the engine is gone")

        engine = ScriptedEngine(reply, model_id="team", before=before)
        models = ModelMap({"team": Model("team", "team", "x")}, dict.fromkeys(self.workflow.roles, "team"))
        limits = PlayLimits(max_turns=10_000, call_attempts=1)
        player = Player(self.workflow, {"team": engine}, models, {}, limits, self._seed)
        task = {"task_id": "tree", "split": "train", "inputs": {"seed": "go"}}
        return asyncio.run(player.play(task, iteration=0, sample=0, base=base))


def check_accounts(*plays: Played) -> None:
    """Rows in = rows out + excluded, by reason, from turns to credit; every spawned play ends once.

    Several plays are checked as one table, each as an episode of its own.
    """
    numbered = [(f"e{number:05d}", played) for number, played in enumerate(plays)]
    turns = [{**row, "episode_id": name, "group_id": name} for name, p in numbered for row in p.turns]
    ends = [{**p.episode, "episode_id": name, "group_id": name} for name, p in numbered]
    task = {"task_id": "tree", "split": "train", "source": "x", "inputs": "{}", "gold": "{}", "row_hash": ""}
    tasks = rows_to_table([task], TASKS)
    table, episodes = rows_to_table(turns, TURNS), rows_to_table(ends, EPISODES)
    rewards = score_turns(tasks, table, episodes, WeightedRewards((WeightedReward("format", 1.0, Format()),)))
    credit = credit_turns(table, episodes, rewards, GroupRelative()).table
    assert credit.num_rows == rewards.num_rows == table.num_rows == sum(len(p.turns) for p in plays)
    used = credit.filter(pc.is_null(credit["excluded"])).select(["episode_id", "turn_index"])
    trained = [
        (name, row["turn_index"])
        for name, played in numbered
        for row in played.turns
        if row["event"] == Event.LLM
        and row["status"] != Status.CALLED_OFF
        and played.episode["status"] == Status.OK
    ]
    assert sorted(zip(*used.to_pydict().values(), strict=True)) == sorted(trained)
    for played in plays:
        acts = acted(played.turns)
        spawned = [play for each in acts if each.act == Act.SPAWN for play in each.recipients]
        ended = [each.instance for each in acts if each.act == Act.RETURN]
        ended += [play for each in acts if each.act == Act.CANCEL for play in each.recipients]
        assert sorted(spawned) == sorted(ended)
