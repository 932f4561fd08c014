"""The check of GPU machines tells what it could not run, goes on after failures, and its plans fit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.plan.assemble import assemble
from pipeline.plan.capacity import machine_problem
from pipeline.plan.devices import Node
from pipeline.settings.reading import load_settings
from pipeline.settings.training import TrainerSection
from stages.training.spec import TrainerSpec
from tests.gpu import kernels, memory, runs
from tests.gpu.checks import CHECKS, NOT_BUILT, RUNS, TURNS
from tests.gpu.outcome import NO_ANSWER, Check, Outcome, exit_code, in_a_process, one, run_all
from workflows.errors import UsageError

ROOT = Path(__file__).parents[2]


def outcomes(*states: str) -> list[Outcome]:
    return [Outcome("name", state, "this", "that") for state in states]


@pytest.mark.parametrize(
    ("states", "code"),
    [
        (["ok", "ok"], 0),
        (["ok", "not run"], 3),
        (["not run"], 3),
        (["ok", "FAILED", "not run"], 1),
        ([], 3),
    ],
)
def test_only_checks_that_ran_are_ok(states: list[str], code: int) -> None:
    assert exit_code(outcomes(*states)) == code


def test_a_failure_ends_no_other_check_and_what_has_no_device_or_time_is_not_run() -> None:
    ran: list[str] = []

    def run(check: Check, seconds: float) -> Outcome:
        ran.append(check.name)
        return Outcome(check.name, "FAILED" if check.name == "breaks" else "ok", check.expected, "")

    checks = [
        Check("breaks", "x", "m:f", seconds=1),
        Check("two devices", "x", "m:f", devices=2, seconds=1),
        Check("works", "x", "m:f", seconds=1),
    ]
    told: list[Outcome] = []
    found = run_all(checks, 1, told.append, 600, run)
    assert ran == ["breaks", "works"]
    assert told == found
    assert [outcome.state for outcome in found] == ["FAILED", "not run", "ok"]
    assert "it needs 2 GPUs, this machine has 1" in found[1].line()
    late = run_all(checks, 2, told.append, 5, run)
    assert [outcome.state for outcome in late] == ["not run"] * 3
    assert "5 s of 5 are left" in late[0].line()


def test_a_check_that_the_end_of_the_time_cuts_off_is_not_run() -> None:
    def run(check: Check, seconds: float) -> Outcome:
        assert seconds < 60
        return Outcome(check.name, "FAILED", "x", "late", seconds)

    (found,) = run_all([Check("late", "x", "m:f", seconds=60)], 1, lambda outcome: None, 50, run)
    assert found.state == "not run"
    assert "cut off" in found.found


def test_a_check_that_dies_or_hangs_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    broken = in_a_process(Check("absent", "x", "nowhere:f"), 60)
    assert broken.state == "FAILED"
    assert "No module named 'tests.gpu.nowhere'" in broken.found
    late = in_a_process(Check("late", "x", "machine:devices"), 0.01)
    assert (late.state, late.found) == ("FAILED", NO_ANSWER.format(seconds=0))


def test_without_a_gpu_everything_is_not_run_and_nothing_is_ok(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 3, done.stderr
    assert f"0 ok, 0 FAILED, {len(CHECKS)} not run, {len(NOT_BUILT)} not built" in done.stdout
    for name in (*(check.name for check in CHECKS), *NOT_BUILT):
        assert name in done.stdout


def test_what_is_called_not_built_is_not_built() -> None:
    """Whoever builds one of these adds its check and takes it off the list."""
    assert not any("offload" in name for name in TrainerSection.model_fields)
    with pytest.raises(UsageError, match="zero_stage"):
        TrainerSpec("m", "m", "", zero_stage=3)


def test_every_check_is_a_function_that_takes_its_arguments() -> None:
    import importlib
    import inspect

    for check in CHECKS:
        module, _, name = check.use.partition(":")
        function = getattr(importlib.import_module(f"tests.gpu.{module}"), name)
        inspect.signature(function).bind(**check.arguments)
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize("name", RUNS)
def test_the_runs_of_the_check_fit_devices_of_24_and_of_141_gib(name: str, tmp_path: Path) -> None:
    devices = next(c.devices for c in CHECKS if c.arguments.get("name") == name)
    overrides = [each.removeprefix("--set=") for each in runs.arguments(str(tmp_path), RUNS[name])]
    plan = assemble(load_settings(str(ROOT / "pipeline.toml"), overrides))
    for gib in (24.0, 141.0):
        assert machine_problem(plan, [Node("gpu", (gib,) * devices, 100.0)]) is None
    if devices > 1:
        assert machine_problem(plan, [Node("gpu", (141.0,) * (devices - 1), 100.0)]) is not None


def test_the_run_that_trains_and_evaluates_fits_one_device(tmp_path: Path) -> None:
    overrides = [each.removeprefix("--set=") for each in runs.arguments(str(tmp_path), TURNS)]
    plan = assemble(load_settings(str(ROOT / "pipeline.toml"), [*overrides, "evaluate.every=1"]))
    assert machine_problem(plan, [Node("gpu", (24.0,), 64.0)]) is None


@pytest.mark.parametrize(
    ("gib", "expected"), [(24.0, ("7b", 16)), (80.0, ("7b", 16)), (141.0, ("7b", 0)), (12.0, ("3b", 16))]
)
def test_the_largest_trainer_is_one_that_the_plan_says_fits(gib: float, expected: tuple[str, int]) -> None:
    assert memory.largest_for(gib) == expected


def test_attention_is_compared_with_its_definition_on_cpu_too() -> None:
    assert "differ by" in one('["kernels:flex_attention", {"device": "cpu"}]')


@pytest.mark.slow
def test_the_trainer_is_compared_with_plain_torch_on_cpu_too() -> None:
    found = in_a_process(
        Check("trainer", "x", "kernels:trainer", arguments={"precision": "fp32", "num_gpus": 0.0}), 120
    )
    assert found.state == "ok", found.found
    assert "on cpu in fp32" in found.found
    assert kernels.trainer.__defaults__ == ("bf16", 1.0, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, pytest.param(16, marks=pytest.mark.long)])
def test_models_without_weights_can_be_trained_for_their_memory(rank: int) -> None:
    arguments = {"size": "small", "num_gpus": 0.0, "adapter_rank": rank}
    found = in_a_process(Check("memory", "x", "memory:trainer", arguments=arguments), 120)
    assert found.state == "ok", found.found
