"""Plans for machines that are described: what fits on which device, and what to change where it does not."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.plan import capacity
from pipeline.plan.assemble import Plan, assemble
from pipeline.plan.capacity import machine_problem, memory_shortage, nodes_described, placed
from pipeline.plan.devices import Node, Process, place, shortage
from pipeline.plan.overview import overview
from pipeline.run import cluster
from pipeline.settings.reading import parse_settings
from pipeline.settings.schema import NodeSection
from pipeline.views.overview import overview_lines
from stages.engines.base import EngineSpec
from stages.engines.kinds import device_need as engine_need
from stages.process.devices import DeviceNeed, parse_devices
from stages.training.device_memory import activation_bytes, device_need, state_bytes
from stages.training.spec import TrainerSpec, activation_estimate
from stages.weights.adapters import AdapterSpec
from stages.weights.checkpoints import describe_checkpoint
from stages.weights.dimensions import dimensions_of
from stages.weights.resolve import resolve_checkpoint
from tests.support.headers import SIZES, checkpoint_of
from workflows.errors import RunFailed, UsageError

ONE = [NodeSection(gpus=1, gpu_memory_gib=141, memory_gib=200)]
SIXTEEN = [NodeSection(count=2, gpus=8, gpu_memory_gib=80, memory_gib=1000)]
CPU = [NodeSection(memory_gib=64)]
TURNS = {"num_gpus": 0.4, "gpu_memory_fraction": 0.3, "trainer": {"num_gpus": 0.6}}  # on one device


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    folder, tokenizer = tmp_path_factory.mktemp("models"), Path(resolve_checkpoint("tiny"))
    return lambda name: str(checkpoint_of(SIZES[name], folder / name, tokenizer))


@pytest.fixture
def plan_of(scripted: Callable[..., dict[str, Any]], models: Callable[[str], str]) -> Callable[..., Plan]:
    def plan(name: str, nodes: list[NodeSection] | None = None, address: str = "local", **model: Any) -> Plan:
        team = {"checkpoint": models(name), "engine": "vllm", "engine_options": {}, **model}
        team["trainer"] = {"precision": "auto", **team.get("trainer", {})}
        raw = scripted(ppo={"micro_batch_tokens": 1024})
        raw["models"] = {"team": team}
        raw["cluster"]["address"] = address
        raw["cluster"]["nodes"] = [node.model_dump() for node in nodes or []]
        return assemble(parse_settings(raw))

    return plan


@pytest.mark.parametrize(
    ("name", "nodes", "model", "fits"),
    [
        ("0.5b", ONE, TURNS, True),
        ("1.5b", ONE, TURNS, True),
        ("3b", ONE, TURNS, True),
        ("7b", ONE, TURNS, False),  # 18 bytes a parameter
        ("7b", ONE, TURNS | {"adapter": {"rank": 16}}, True),
        ("14b", ONE, TURNS | {"adapter": {"rank": 16}}, True),
        ("7b", SIXTEEN, {"num_gpus": 1, "gpu_memory_fraction": 0.8, "trainer": {"num_gpus": 1}}, False),
        (
            "7b",
            SIXTEEN,
            {"num_gpus": 1, "gpu_memory_fraction": 0.8, "trainer": {"num_gpus": 1, "ranks": 4}},
            True,
        ),
        (
            "14b",
            SIXTEEN,
            {
                "num_gpus": 2,
                "gpu_memory_fraction": 0.8,
                "trainer": {"num_gpus": 1, "ranks": 8, "zero_stage": 2},
            },
            True,
        ),
        ("0.5b", CPU, {}, True),
        ("7b", CPU, {}, False),
    ],
)
def test_a_model_fits_where_a_described_cluster_has_room(
    name: str, nodes: list[NodeSection], model: dict[str, Any], fits: bool, plan_of: Callable[..., Plan]
) -> None:
    problem = machine_problem(plan_of(name, **model), nodes_described(nodes))
    assert (problem is None) is fits, problem


def test_check_plans_for_the_described_machines_and_prints_every_device(plan_of: Callable[..., Plan]) -> None:
    model = {"num_gpus": 1, "gpu_memory_fraction": 0.8, "trainer": {"num_gpus": 1, "ranks": 4}}
    values = overview(plan_of("7b", SIXTEEN, **model))
    assert values["problems"] == []
    lines = [line for line in overview_lines(values) if line.startswith("devices")]
    assert lines[1].startswith("devices     GPU 0: 64.6 of 80.0 GiB: engine team (CUDA context 1.0")
    assert lines[2] == (
        "devices     GPUs 1 to 4, each: 72.8 of 80.0 GiB: trainer team (CUDA context 1.0, weights 14.2, "
        "gradients 28.4, optimizer 21.3; at work activations 7.9)"
    )
    assert lines[3:] == ["devices     GPUs 5 to 7, each: nothing", "devices   node 1: nothing, GPUs 8"]


def test_the_remedy_that_is_named_makes_it_fit(plan_of: Callable[..., Plan]) -> None:
    """Whatever settings the message names: with them in place the same machines have room."""
    apart = {"num_gpus": 1, "gpu_memory_fraction": 0.8, "trainer": {"num_gpus": 1, "ranks": 2}}
    seen = set()
    for name, nodes, model in [
        ("7b", SIXTEEN, apart),
        ("7b", ONE, TURNS),
        ("3b", ONE, TURNS | {"gpu_memory_fraction": 0.7}),
        (
            "3b",
            [NodeSection(gpus=2, gpu_memory_gib=80, memory_gib=100)],
            apart | {"trainer": {"num_gpus": 1}},
        ),
    ]:
        problem = memory_shortage(plan_of(name, **model), nodes_described(nodes))
        if problem is None:
            continue
        where, fits, words = problem.partition("; it fits with ")
        assert fits, problem
        assert "GPU" in where
        words = words.removeprefix("an adapter in the place of all weights, ")
        changed = _with(model, words)
        assert machine_problem(plan_of(name, **changed), nodes_described(nodes)) is None, problem
        seen.add(words.partition(" ")[0])
    assert len(seen) > 1


@pytest.mark.parametrize("regime", ["adapters", "separate"])
def test_what_several_trainers_lack_is_remedied_for_all_of_them(
    regime: str, scripted: Callable[..., dict[str, Any]], models: Callable[[str], str]
) -> None:
    """Adapters on one base share its trainer's settings, and of models apart no single one may be enough."""

    def plan(tokens: int, recompute: bool) -> Plan:
        raw = scripted(ppo={"micro_batch_tokens": tokens}, sharing={"regime": regime})
        team = {"checkpoint": models("1.5b"), "engine": "vllm", "engine_options": {}}
        team["trainer"] = {"precision": "auto", "activation_checkpointing": recompute}
        if regime == "adapters":
            team["adapter"] = {"rank": 16}
        raw["models"] = {"team": team}
        return assemble(parse_settings(raw))

    found = set()
    for gib in range(12, 240, 3):
        nodes = [Node("this machine", (), float(gib))]
        problem = memory_shortage(plan(4096, False), nodes)
        if problem is None:
            break
        fits, words = problem.partition("; it fits with ")[1:]
        if not fits or not words.startswith(("ppo.", "models.team.trainer.")):
            continue  # nothing does, or less of an engine does
        tokens = int(match.group(1)) if (match := re.search(r"micro_batch_tokens = (\d+)", words)) else 4096
        assert memory_shortage(plan(tokens, "activation_checkpointing" in words), nodes) is None, words
        found.add((tokens < 4096, "activation_checkpointing" in words))
    assert len(found) > 1, found


def _with(model: dict[str, Any], words: str) -> dict[str, Any]:
    """The section with the settings of a message, such as `models.team.trainer.ranks = 2, zero_stage = 2`."""
    prefix = words.partition(" = ")[0].removeprefix("models.team").removeprefix(".").rpartition(".")[0]
    values = tomllib.loads(words.removeprefix(f"models.team.{prefix}".rstrip(".") + ".").replace(", ", "\n"))
    return model | ({prefix: model.get(prefix, {}) | values} if prefix else values)


def test_without_enough_gpus_the_setting_is_named_and_memory_is_not_asked(
    plan_of: Callable[..., Plan],
) -> None:
    plan = plan_of("0.5b", num_gpus=1, trainer={"num_gpus": 1})
    assert placed(plan, nodes_described(ONE)) is None
    assert "there are 1 on node 0" in str(machine_problem(plan, nodes_described(ONE)))
    assert memory_shortage(plan, nodes_described(ONE)) is None


def test_devices_of_unknown_size_are_not_held_against_a_plan(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of("14b", **TURNS)
    assert memory_shortage(plan, [Node("far", (0.0,), None)]) is None


def test_a_cluster_without_description_says_that_it_is_asked_later(plan_of: Callable[..., Plan]) -> None:
    values = overview(plan_of("7b", address="10.0.0.1:6379", **TURNS))
    assert values["problems"] == []
    assert any("describe them in [[cluster.nodes]]" in line for line in overview_lines(values))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_gpus": 2}, "num_gpus must be 1 or less"),
        ({"num_gpus": 0.5, "ranks": 2}, "NCCL refuses two ranks on one device"),
    ],
)
def test_ranks_that_no_device_can_run_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        TrainerSpec("m", "m", "", **changes)


def test_heads_that_do_not_spread_over_the_gpus_are_refused(plan_of: Callable[..., Plan]) -> None:
    with pytest.raises(UsageError, match=r"num_gpus = 3, .* 28 attention heads; use 1, 2, 4, 7 or 14"):
        plan_of("7b", num_gpus=3)


def test_a_share_that_does_not_hold_the_weights_says_what_would(models: Callable[[str], str]) -> None:
    spec = EngineSpec("team", "vllm", models("7b"), num_gpus=1.0, gpu_memory_fraction=0.1)
    small = engine_need(spec, 80.0)
    assert "gpu_memory_fraction = 0.1 is 8.0 GiB of a device of 80 GiB" in str(small.problem)
    assert engine_need(spec, 24.0).problem is not None
    assert engine_need(spec, 192.0).problem is None
    needs_more = EngineSpec("team", "vllm", models("14b"), num_gpus=1.0, gpu_memory_fraction=0.9)
    assert "give it more devices (models.team.num_gpus = 2)" in str(engine_need(needs_more, 24.0).problem)


def test_states_are_those_of_zero(models: Callable[[str], str]) -> None:
    """16 + 4 bytes a number without ZeRO in bf16; what stage 1 and 2 spread is divided by the ranks."""

    def of(**changes: Any) -> tuple[float, float]:
        return state_bytes(TrainerSpec("m", "m", "", **changes), 1000)

    assert of(zero_stage=0) == (6000, 12000)
    assert of(zero_stage=1, ranks=4) == (4000, 3000)
    assert of(zero_stage=2, ranks=4) == (1000, 3000)
    assert of(zero_stage=0, precision="fp32") == (4000, 8000)
    # 7.6 B on 8 ranks at stage 1: weights 15, gradients 30, optimizer 11 GB
    need = device_need(TrainerSpec("m", "m", models("7b"), ranks=8), 7_615_616_512, 2048)
    gb = {name: gib * 2**30 / 1e9 for name, gib in need.kept.items()}
    assert gb["weights"] == pytest.approx(15.2, abs=0.1)
    assert gb["gradients"] == pytest.approx(30.5, abs=0.1)
    assert gb["optimizer"] == pytest.approx(11.4, abs=0.1)


def test_activations_of_the_formula_are_near_those_that_were_measured_on_cpu() -> None:
    spec = TrainerSpec("m", "m", resolve_checkpoint("smollm2-135m-instruct"))
    parameters = describe_checkpoint(spec.checkpoint).parameters
    measured = activation_estimate(spec, parameters, 1152) * 2**30
    assert 0.5 < activation_bytes(spec, parameters, 1152) / measured < 1.2


def test_headers_hold_the_published_numbers_of_parameters(models: Callable[[str], str]) -> None:
    for name, billions in {"0.5b": 0.494, "7b": 7.62, "14b": 14.8}.items():
        assert describe_checkpoint(models(name)).parameters / 1e9 == pytest.approx(billions, rel=0.01)
    sizes = dimensions_of(models("7b"))
    assert sizes is not None
    assert (sizes.layers, sizes.head_size, sizes.feed_forward) == (28, 128, 18944)


def test_adapters_on_one_base_share_its_ranks(models: Callable[[str], str]) -> None:
    folder = models("1.5b")
    parameters = describe_checkpoint(folder).parameters
    trainers = {
        name: TrainerSpec(name, "base", folder, AdapterSpec(16), num_gpus=1.0) for name in ("one", "two")
    }
    numbers = dict.fromkeys(trainers, 1)
    sizes = dict.fromkeys(trainers, parameters)
    demand = capacity.Demand({}, trainers, sizes, dict.fromkeys(trainers, 512), numbers)
    (process,) = capacity.processes_of(demand)
    alone = device_need(trainers["one"], parameters, 512)
    both = process.need(80.0)
    assert process.name == "trainer base"
    assert both.kept["CUDA context"] == alone.kept["CUDA context"]
    assert both.kept["optimizer"] == 2 * alone.kept["optimizer"]
    assert both.kept["weights"] < 1.1 * alone.kept["weights"]
    assert both.host == alone.host


def _process(name: str, gpus: float, kept: float, working: float, is_engine: bool, host: float) -> Process:
    need = DeviceNeed({"kept": kept}, {"working": working}, host)
    return Process(name, gpus, is_engine, lambda gib: need, trainer=name)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.25, 0.4, 0.6, 1.0, 2.0]),
            st.floats(0, 50),
            st.floats(0, 50),
            st.booleans(),
            st.floats(0, 20),
        ),
        max_size=6,
    ),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 24.0, 80.0])), min_size=1, max_size=3),
)
def test_no_process_is_lost_and_no_device_is_asked_for_more_than_itself(
    asked: list[tuple[float, float, float, bool, float]], machines: list[tuple[int, float]]
) -> None:
    processes = [_process(f"p{i}", *each) for i, each in enumerate(asked)]
    nodes = [Node(f"n{i}", (gib,) * count, 40.0) for i, (count, gib) in enumerate(machines)]
    result = place(processes, nodes)
    if result is None:  # then the counts do not fit either, in this order
        assert sum(p.gpus for p in processes) > 0
        return
    homes = [name for machine in result for name in machine.host if name != "driver"]
    assert sorted(homes) == sorted(p.name for p in processes)
    for machine in result:
        for device in machine.devices:
            assert sum(min(p.gpus, 1) for p, _ in device.held) <= 1 + 1e-3
    fits = all(not d.gib or d.total() <= d.gib for m in result for d in m.devices)
    fits = fits and all(m.host_total <= 40.0 for m in result)
    assert (shortage(result) is None) is fits


def test_engines_and_trainers_of_one_device_take_turns() -> None:
    """60 awake or 60 in an update beside 10 + 10 kept: 80 hold both, 79 do not."""
    processes = [_process("e", 0.4, 10, 60, True, 1), _process("t", 0.6, 10, 60, False, 1)]
    for gib, fits in ((80.0, True), (79.0, False)):
        result = place(processes, [Node("n", (gib,), None)])
        assert result is not None
        assert (shortage(result) is None) is fits
    engines = [_process("e", 0.4, 10, 60, True, 1), _process("f", 0.6, 10, 60, True, 1)]
    assert shortage(place(engines, [Node("n", (80.0,), None)]) or [])  # both are awake in a rollout


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, (79.6, 79.6, 23.7)),
        ("2,0", (23.7, 79.6)),
        ("GPU-b", (79.6,)),
        ("0,7,1", (79.6,)),  # an unknown one hides all that follow, as in CUDA
        ("", ()),
    ],
)
def test_devices_are_read_in_the_order_that_is_visible(
    visible: str | None, expected: tuple[float, ...]
) -> None:
    answer = "0, GPU-aa, 81559\n1, GPU-bb, 81559\n2, GPU-cc, 24268\nnot a line\n"
    assert parse_devices(answer, visible) == pytest.approx(expected, abs=0.1)


def test_devices_are_asked_of_the_tool_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, GPU-aa, 81559'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert capacity.this_machine(1).devices == pytest.approx((79.6,), abs=0.1)
    assert capacity.this_machine(2).devices == (0.0, 0.0)  # the two disagree: sizes are not known
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert capacity.this_machine(1).devices == (0.0,)


def test_a_cluster_that_is_joined_is_refused_for_its_memory(
    plan_of: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of("7b", num_gpus=1, trainer={"num_gpus": 1})
    monkeypatch.setattr(cluster, "_nodes", lambda resource: {"a": 1, "b": 1})
    asked: list[dict[str, int]] = []

    def machines(gpus: dict[str, int]) -> list[Node]:
        asked.append(gpus)
        return [Node(name, (80.0,) * count, 500.0) for name, count in gpus.items()]

    monkeypatch.setattr(cluster, "_machines", machines)
    cluster.check_gpus(plan)  # this machine was asked before it started
    assert asked == []
    plan = plan_of("7b", address="10.0.0.1:6379", num_gpus=1, trainer={"num_gpus": 1})
    assert overview(plan)["machines"]["asked_later"] == "10.0.0.1:6379"
    with pytest.raises(RunFailed, match=r"GPU 0 of [ab] has 80\.0 GiB, .* it fits with an adapter"):
        cluster.check_gpus(plan)
    assert asked == [{"a": 1, "b": 1}]
