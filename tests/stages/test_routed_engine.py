"""A model behind replicas as a player sees it, on actors that are plain objects."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from ray.exceptions import RayActorError

from stages.engines.base import EngineSpec
from stages.engines.routed import RoutedEngine, Routes, totals
from stages.engines.scripted import ScriptedServer, _renders_only
from stages.players.actor import PlayerActor
from workflows.engine import TASK, Message, Sampling
from workflows.errors import InfraError
from workflows.testing import ScriptedModel


class Method:
    """A method as Ray makes it: `remote` gives something to await."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.remote = work


@dataclass
class Fake:
    """The actor of a scripted engine, which can be killed."""

    server: ScriptedServer = field(default_factory=lambda: ScriptedServer(EngineSpec("team", "scripted", "")))
    is_dead: bool = False
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Method:
        async def answer(*arguments: Any) -> Any:
            self.asked.append(arguments)
            await asyncio.sleep(0)
            if self.is_dead:
                raise RayActorError()
            return await getattr(self.server, name)(*arguments)

        return Method(answer)


def _prompt(number: int) -> list[int]:
    asked: Message = {"role": "user", "content": f"Question: who is number {number}?"}
    return ScriptedModel(_renders_only).render([asked])


def engine_of(handles: dict[int, Any], model_id: str = "team", routes: Routes | None = None) -> RoutedEngine:
    return RoutedEngine(
        routes or Routes("team", handles, 64),
        model_id=model_id,
        base_id="team",
        description=ScriptedServer(EngineSpec("team", "scripted", "")).describe(),
        renderer=ScriptedModel(_renders_only),
    )


PROMPT = _prompt(0)


def test_a_call_that_a_replica_dies_under_is_asked_the_same_of_the_other() -> None:
    handles = {1: Fake(), 2: Fake()}
    engine = engine_of(handles)
    sampling = Sampling(32, seed=77)

    async def play() -> list[Any]:
        TASK.set("task")
        first = await engine.generate(PROMPT, sampling)
        home = next(n for n, fake in handles.items() if fake.asked)
        handles[home].is_dead = True
        again = await engine.generate(PROMPT, sampling)
        weighed = await engine.weigh(PROMPT, [[1], [2]], 1.0)
        return [home, first, again, weighed]

    home, first, again, weighed = asyncio.run(play())
    assert again == first
    assert handles[home].asked[1] == handles[3 - home].asked[0] == ("team", PROMPT, sampling)
    assert len(weighed.logprobs) == 2
    counts = {n: each.as_dict() for n, each in engine.routes.counts.items()}
    assert (counts[home]["calls"], counts[home]["asked_again"]) == (1, 0)
    assert (counts[3 - home]["calls"], counts[3 - home]["asked_again"]) == (2, 1)
    assert counts[3 - home]["prompt_tokens"] == 2 * len(PROMPT)
    assert engine.routes.router.serving == {3 - home}


def test_the_death_of_a_replica_does_not_close_its_successor() -> None:
    old, new, other = Fake(is_dead=True), Fake(), Fake()
    engine = engine_of({1: old, 2: other})

    async def play() -> None:
        calls = [asyncio.create_task(engine.generate(_prompt(n), Sampling(32, seed=n))) for n in range(8)]
        await asyncio.sleep(0)  # some of them are at the old one
        engine.routes.set({1: new})
        await asyncio.gather(*calls)

    asyncio.run(play())
    assert old.asked
    assert engine.routes.router.serving == {1, 2}
    assert sum(each.calls for each in engine.routes.counts.values()) == 8


def test_when_no_replica_is_left_a_call_fails_as_infrastructure() -> None:
    engine = engine_of({1: Fake(is_dead=True), 2: Fake(is_dead=True)})
    with pytest.raises(InfraError, match="'team': 2 of its replicas died under this call"):
        asyncio.run(engine.generate(PROMPT, Sampling(32)))
    with pytest.raises(InfraError, match="no replica that serves"):
        asyncio.run(engine.generate(PROMPT, Sampling(32)))


def test_models_of_one_engine_share_its_routes_in_every_process() -> None:
    routes = Routes("team", {1: "one", 2: "two"}, 64)
    routes.router.down(2)
    routes.counts[1].calls = 5
    engines = {model_id: engine_of({}, model_id, routes) for model_id in ("a", "b")}
    copies = pickle.loads(pickle.dumps(engines))
    assert copies["a"].routes is copies["b"].routes
    assert copies["a"].routes.handles == {1: "one", 2: None}
    assert copies["a"].routes.router.serving == {1}
    assert copies["a"].routes.counts[1].calls == 0  # each process counts its own
    player = PlayerActor(None, copies)  # type: ignore[arg-type]
    asyncio.run(player.set_replicas({"team": {2: "new"}, "other": {1: "x"}}))
    assert copies["b"].routes.handles[2] == "new"
    assert copies["b"].routes.router.serving == {1, 2}
    copies["a"].routes.counts[1].calls = 3
    added = totals([asyncio.run(player.replica_counts()), {"team": {1: routes.counts[1].as_dict()}}])
    assert added["team"][1].calls == 8
