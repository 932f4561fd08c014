"""What the blocks of an iteration are, read off schedules alone: they are pure, so nothing is started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.plan.assemble import Plan, assemble
from pipeline.plan.blocks import SCHEDULE, Block
from pipeline.settings.reading import parse_settings
from pipeline.store.manifest import Manifest
from stages.partition import PartitionStage
from stages.rollout import RolloutStage
from stages.sample import SampleStage
from workflows.errors import UsageError

Settings = Callable[..., dict[str, Any]]
MODELS = {"reader": "a", "decomposer": "b", "answerer": "c"}  # they speak b, a, c


def plan(
    scripted: Settings, use: str = "sequential", settings: dict[str, Any] | None = None, **options: Any
) -> Plan:
    sections = {name: options.pop(name) for name in ("advantage", "critic", "data") if name in options}
    raw = scripted(
        **(settings or {}),
        schedule={"use": use, "options": options},
        credit={"silent": "exclude" if use == "refill" else "keep"},
        **{"data": {"tasks_per_iteration": 5}, **sections},
    )
    team = raw["models"].pop("team")
    raw["models"] = {model: dict(team) for model in "abc"}
    raw["roles"] = {role: {"model": model} for role, model in MODELS.items()}
    return assemble(parse_settings(raw))


def blocks(plan: Plan, iteration: int = 0) -> list[Block]:
    """All of an iteration, as the runner asks for them: only the number of finished ones counts here."""
    made: list[Block] = []
    while (block := plan.schedule.next_block(plan, iteration, [{}] * len(made))) is not None:
        made.append(block)
    return made


def trained(block: Block) -> list[str]:
    (partition,) = (s for s in block.stages if isinstance(s, PartitionStage))
    updates = [s.name.partition("/")[2] for s in block.stages if s.name.startswith("update/")]
    assert [spec.model_id for spec in partition.models] == updates
    return updates


def slices(made: list[Block]) -> list[tuple[int, int]]:
    """Offset and number of the tasks of every rollout."""
    return [(s.offset, s.tasks_per_iteration) for b in made for s in b.stages if isinstance(s, SampleStage)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["a", "b", "c"]),
        ({"order": "forward"}, ["b", "a", "c"]),
        ({"order": "reverse"}, ["c", "a", "b"]),
        ({"order": ["c", "b", "a"]}, ["c", "b", "a"]),
        ({"groups": [["a", "c"]]}, ["ac", "b"]),
        ({"groups": [["a", "c"]], "order": "forward"}, ["b", "ac"]),
        ({"groups": [["b", "a"], ["c"]], "order": ["c", "a", "b"]}, ["c", "ab"]),
    ],
)
def test_units_are_updated_in_their_order(options: Any, expected: list[str], scripted: Settings) -> None:
    made = blocks(plan(scripted, **options))
    assert ["".join(sorted(trained(block))) for block in made] == expected
    assert [block.index for block in made] == list(range(len(expected)))


def test_a_random_order_is_another_in_every_iteration_and_the_same_again(scripted: Settings) -> None:
    one, again = plan(scripted, order="random"), plan(scripted, order="random")
    orders = [tuple(m for block in blocks(one, i) for m in trained(block)) for i in range(12)]
    assert orders == [tuple(m for block in blocks(again, i) for m in trained(block)) for i in range(12)]
    assert len(set(orders)) > 2
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    for i, order in enumerate(orders):  # the order that was drawn is written down with every stage
        for block in blocks(one, i):
            assert {tuple(f[SCHEDULE]["order"]) for f in block.fingerprints.values()} == {order}


@pytest.mark.parametrize(
    ("options", "plays", "pieces"),
    [
        ({"rollouts": "fresh"}, [0, 1, 2], [(0, 1), (1, 2), (3, 2)]),
        ({"rollouts": "stale"}, [0, 0, 0], [(0, 5)]),
        ({"rollouts": "every_k", "every": 2}, [0, 0, 2], [(0, 2), (2, 3)]),
        ({"rollouts": "every_k", "every": 9}, [0, 0, 0], [(0, 5)]),
    ],
)
def test_what_an_update_trains_on_was_played_at_the_newest_rollout(
    options: Any, plays: list[int], pieces: list[tuple[int, int]], scripted: Settings
) -> None:
    made = blocks(plan(scripted, **options))
    assert slices(made) == pieces
    for block, played in zip(made, plays, strict=True):
        if played == block.index:
            assert not block.shared
            assert block.stages[0].name == "sample"
        else:
            assert block.stages[0].name == "partition"
            assert block.shared == dict.fromkeys(("turns", "rewards", "credit"), (played,))
        assert set(block.fingerprints) == {stage.name for stage in block.stages}


def test_a_suffix_plays_one_slice_and_its_ends_again_in_every_block(scripted: Settings) -> None:
    made = blocks(plan(scripted, rollouts="suffix", order="reverse"), iteration=2)
    assert [trained(block) for block in made] == [["c"], ["a"], ["b"]]
    samples = [next(s for s in b.stages if isinstance(s, SampleStage)) for b in made]
    assert {(s.offset, s.tasks_per_iteration, s.stride) for s in samples} == {(0, 1, 1)}  # 5 tasks, 3 units
    plays = [next(s for s in b.stages if isinstance(s, RolloutStage)) for b in made]
    assert [stage.suffix for stage in plays] == [False, True, True]
    assert [dict(block.shared) for block in made] == [{}, {"base_turns": (0,)}, {"base_turns": (0,)}]
    assert all(f[SCHEDULE]["rollouts"] == "suffix" for b in made for f in b.fingerprints.values())
    assert "base_turns" in plays[1].inputs
    fresh = blocks(plan(scripted))
    assert all("rollouts" not in f[SCHEDULE] for b in fresh for f in b.fingerprints.values())


def test_a_suffix_with_gae_or_fewer_tasks_than_units_is_refused(scripted: Settings) -> None:
    with pytest.raises(UsageError, match='use = "gae" reads the values'):
        plan(scripted, rollouts="suffix", advantage={"use": "gae"}, critic={"learning_rate": 1e-3})
    with pytest.raises(UsageError, match="tasks_per_iteration to 3 or more"):
        plan(scripted, rollouts="suffix", data={"tasks_per_iteration": 2})


def test_slices_hold_every_task_of_the_iteration_once(scripted: Settings, tmp_path: Any) -> None:
    from stages.base import Context
    from stages.tables.parquet import TableSink
    from workflows.trajectory import TASKS

    def ids(stage: SampleStage, name: str) -> list[str]:
        sink = TableSink("tasks", str(tmp_path / name), TASKS)
        result = stage.run({}, {"tasks": sink}, Context(3))
        (account,) = result.accounts
        account.check()
        return [
            str(task) for task in sink.ref(result.parts["tasks"]).read(["task_id"])["task_id"].to_pylist()
        ]

    one = plan(scripted)
    whole = ids(next(s for s in one.stages if isinstance(s, SampleStage)), "whole")
    samples = [next(s for s in block.stages if isinstance(s, SampleStage)) for block in blocks(one)]
    parts = [ids(stage, f"block-{stage.offset}") for stage in samples]
    assert [task for part in parts for task in part] == whole
    assert [len(part) for part in parts] == [1, 2, 2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"order": "forwards"}, "did you mean 'forward'"),
        ({"order": ["a", "b"]}, "must name each model"),
        ({"order": ["a", "b", "b"]}, "names 'b' twice"),
        ({"groups": [["a", "d"]]}, "groups names 'd'"),
        ({"groups": [["a"], ["a", "b"]]}, "names 'a' twice"),
        ({"rollouts": "freshh"}, "did you mean 'fresh'"),
        ({"rollouts": "every_k", "every": 0}, "every = 0"),
        ({"evry": 2}, "did you mean 'every'"),
    ],
)
def test_options_that_can_not_work_are_refused(options: Any, words: str, scripted: Settings) -> None:
    with pytest.raises(UsageError, match=words):
        plan(scripted, **options)


def played(tasks: int, signal: int) -> Any:
    """The manifests of a finished rollout block."""
    of_stage = {
        "sample": {"tasks": tasks},
        "rollout": {},
        "reward": {},
        "credit": {"tasks_usable": tasks, "tasks_with_signal": signal},
    }
    return {
        name: Manifest(name, 0, {}, {}, {}, {}, [], {k: float(v) for k, v in metrics.items()}, [], 0.0)
        for name, metrics in of_stage.items()
    }


@pytest.mark.parametrize(
    ("finished", "expected"),
    [
        ([], (0, 5)),  # the whole slice first
        ([(5, 5)], "train"),
        ([(5, 4)], (5, 2)),  # one is missing, and four of five teach
        ([(5, 1)], (5, 5)),  # at most a slice
        ([(5, 0)], (5, 5)),
        ([(5, 2), (5, 2)], (10, 3)),
        ([(5, 4), (2, 1)], "train"),
        ([(5, 0), (5, 0), (5, 1)], "train"),  # the budget is spent
        ([(5, 0), (5, 0), (5, 0)], None),  # there is nothing to train on
    ],
)
def test_refill_plays_on_until_enough_tasks_teach_something(
    finished: list[tuple[int, int]], expected: Any, scripted: Settings
) -> None:
    one = plan(scripted, "refill")
    block = one.schedule.next_block(one, 2, [played(*counts) for counts in finished])
    if expected is None:
        assert block is None
    elif expected == "train":
        assert block is not None
        assert block.stages[0].name == "partition"
        assert block.shared == dict.fromkeys(("turns", "rewards", "credit"), tuple(range(len(finished))))
        assert trained(block) == ["a", "b", "c"]
        done = [*(played(*counts) for counts in finished), {"partition": played(1, 1)["sample"]}]
        assert one.schedule.next_block(one, 2, done) is None
    else:
        assert block is not None
        (sample,) = (s for s in block.stages if isinstance(s, SampleStage))
        assert (sample.offset, sample.tasks_per_iteration, sample.stride) == (*expected, 15)
        assert [s.name for s in block.stages] == ["sample", "rollout", "reward", "credit"]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"rollouts": 1}, "leaves nothing to refill"), ({"tasks": 16}, "expected 1 to 15")],
)
def test_a_refill_that_can_not_work_is_refused(options: Any, words: str, scripted: Settings) -> None:
    with pytest.raises(UsageError, match=words):
        plan(scripted, "refill", **options)
    raw = scripted(schedule={"use": "refill"})
    with pytest.raises(UsageError, match=r'credit\.silent = "exclude"'):
        assemble(parse_settings(raw))


GAE: dict[str, Any] = {"advantage": {"use": "gae"}, "critic": {"kind": "head"}}


@pytest.mark.parametrize("rollouts", ["fresh", "stale"])
def test_one_model_after_another_may_learn_from_its_own_critic(scripted: Settings, rollouts: str) -> None:
    """Where a turn answers for itself alone, its advantages need no other model's values."""
    made = blocks(plan(scripted, settings=GAE, rollouts=rollouts))
    assert [trained(block) for block in made] == [["a"], ["b"], ["c"]]
    for block in made:
        model = trained(block)[0]
        names = [stage.name for stage in block.stages]
        assert names[names.index("partition") + 1 :] == [f"score/{model}", "advantage", f"update/{model}"]
        assert set(block.fingerprints["advantage"]) == {model, SCHEDULE}


def test_values_after_cut_replies_are_scored_where_the_plays_lie(scripted: Settings) -> None:
    settings = GAE | {"advantage": {"use": "gae", "bootstrap_cut": True}}
    first, *later = blocks(plan(scripted, settings=settings, rollouts="stale"))
    assert not first.shared
    for block in later:
        assert {"turns", "episodes"} <= set(block.shared)


def test_a_chain_over_models_needs_all_of_them_at_once(scripted: Settings) -> None:
    across = GAE | {"advantage": {"use": "gae", "across_turns": True}}
    with pytest.raises(UsageError, match=r"true reads the values of all models; set advantage"):
        plan(scripted, settings=across)
