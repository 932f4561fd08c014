"""Trainers and players come up beside the engines: what is begun when, and what a failure leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.run import fleet as module
from pipeline.run.fleet import Fleet
from stages.training import group
from workflows.errors import RunFailed
from workflows.models import Model, ModelMap


class Group:
    """A trainer group that comes up when it is told to."""

    def __init__(self, events: list[str], spec: Any, version: int, resume: str | None) -> None:
        self.events, self.spec, self.version, self.resume = events, spec, version, resume
        self.failure: str | None = None

    def wait_ready(self) -> None:
        self.check_start()
        self.events.append(f"wait {self.spec.model_id}")

    def check_start(self) -> None:
        if self.failure:
            raise RunFailed(self.failure)

    def close(self) -> None:
        self.events.append(f"close {self.spec.model_id}")


class Run:
    """Checkpoints of the versions that were made."""

    def __init__(self, versions: list[int]) -> None:
        self.versions = versions

    def checkpoint_uri(self, model_id: str, version: int) -> str:
        return f"{model_id}/{version}"

    def checkpoint_versions(self, model_id: str) -> list[int]:
        return self.versions

    weights_versions = checkpoint_versions


class Started:
    """A fleet whose engines, players and trainers only say when they are started."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.groups: list[Group] = []
        self.engine_failure: str | None = None
        patch.setattr(group, "TrainerGroup", SimpleNamespace(begin=self._begin, start=self._start))
        patch.setattr(module, "player_process", lambda spec: self._note(f"process of a {spec} player"))
        patch.setattr(module, "start_players", lambda handles, *_: self._note("start players"))
        patch.setattr(module, "_kill", lambda actors: self.events.extend(f"kill {a}" for a in actors))
        patch.setattr(Fleet, "_start_engines", lambda _: self._engines())

    def _note(self, event: str) -> str:
        self.events.append(event)
        return event

    def _engines(self) -> None:
        self._note("start engines")
        if self.engine_failure:
            raise RunFailed(self.engine_failure)

    def _begin(self, spec: Any, *, version: int, resume: str | None, beside: Any = None) -> Group:
        self._note(f"begin {spec.model_id}")
        self.groups.append(Group(self.events, spec, version, resume))
        return self.groups[-1]

    def _start(self, spec: Any, **options: Any) -> Group:
        self._note(f"start {spec.model_id}")
        return Group(self.events, spec, options["version"], options["resume"])

    def fleet(
        self,
        *models: str,
        base: str | None = None,
        gpus: tuple[float, float] = (0, 0),
        version: int = 0,
        saved: tuple[int, ...] = (),
        room: bool = True,
    ) -> Fleet:
        specs = {m: SimpleNamespace(model_id=m, num_gpus=gpus[0], begins=0) for m in models}
        found = Fleet(
            checkpoints=Run(list(saved)),
            models=ModelMap(
                {m: Model(m, base or m, "tiny") for m in models}, {f"role-{m}": m for m in models}
            ),
            engine_specs={base or m: SimpleNamespace(num_gpus=gpus[1]) for m in models},  # type: ignore[misc]
            trainer_specs=specs,  # type: ignore[arg-type]
            player_specs={"train": "training", "greedy": "greedy"},  # type: ignore[dict-item]
            num_players=1,
            checkpoint_every=1,
            version_of=lambda _: version,
            redo=lambda *_: [],
            has_room=lambda: room,
        )
        found.expect(models)
        return found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    return Started(monkeypatch)


def begun(started: Started) -> list[str]:
    return [event for event in started.events if event.startswith("begin")]


def test_trainers_and_players_come_up_while_engines_start(started: Started) -> None:
    fleet = started.fleet("a", "b")
    fleet.players()
    assert started.events == [
        *("begin a", "begin b", "process of a training player", "start engines", "start players")
    ]
    fleet.players()  # the next rollout finds all of them there
    assert started.events.count("begin a") == started.events.count("start players") == 1
    assert fleet.trainer("a") is started.groups[0]
    assert fleet.trainer("a") is started.groups[0]
    assert started.events.count("wait a") == 1
    assert "wait b" not in started.events
    fleet.close()
    assert started.events.count("close a") == started.events.count("close b") == 1


def test_a_trainer_is_begun_from_its_newest_checkpoint(started: Started) -> None:
    started.fleet("a", version=2, saved=(1, 2)).players()
    assert (started.groups[0].version, started.groups[0].resume) == (2, "a/2")


@pytest.mark.parametrize(
    ("fleet", "expected"),
    [
        ({"room": False}, []),
        ({"gpus": (1, 1)}, []),  # of one device, an engine leaves nothing
        ({"gpus": (0, 1)}, ["begin a"]),
        ({"gpus": (1, 0)}, ["begin a"]),
        ({"version": 2, "saved": (1,)}, []),  # an update has to be made again first
    ],
)
def test_a_trainer_is_begun_where_it_can_be(started: Started, fleet: Any, expected: list[str]) -> None:
    started.fleet("a", **fleet).players()
    assert begun(started) == expected


def test_adapters_on_one_base_begin_one_process(started: Started) -> None:
    started.fleet("a", "b", base="base").players()
    assert begun(started) == ["begin a"]


def test_what_trains_nothing_begins_no_trainer(started: Started) -> None:
    started.fleet("a").players("greedy")
    fleet = started.fleet("a")
    fleet.expect([])
    fleet.players()
    assert begun(started) == []


def test_a_trainer_that_fails_before_the_rollout_ends_it(started: Started) -> None:
    fleet = started.fleet("a")

    def broken() -> None:
        started.groups[0].failure = "no such checkpoint"

    _after(started, "start players", broken)
    with pytest.raises(RunFailed, match="no such checkpoint"):
        fleet.players()
    fleet.close()
    assert started.events[-2:] == ["close a", "kill process of a training player"]


def test_a_trainer_that_fails_during_the_rollout_is_told_of_at_its_update(started: Started) -> None:
    fleet = started.fleet("a")
    fleet.players()
    started.groups[0].failure = "it ran out of memory"
    with pytest.raises(RunFailed, match="it ran out of memory"):
        fleet.trainer("a")


def test_an_engine_that_fails_is_what_is_told_and_nothing_stays(started: Started) -> None:
    fleet = started.fleet("a")
    started.engine_failure = "no such model"
    _after(started, "start engines", lambda: setattr(started.groups[0], "failure", "it fails, too"))
    with pytest.raises(RunFailed, match="no such model"):
        fleet.players()
    fleet.close()
    assert started.events[-2:] == ["kill process of a training player", "close a"]


def _after(started: Started, event: str, do: Callable[[], None]) -> None:
    """Do something when an event is noted."""
    note = started._note

    def noting(what: str) -> str:
        note(what)
        if what == event:
            do()
        return what

    started._note = noting  # type: ignore[method-assign]
