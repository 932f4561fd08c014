"""What tests share: a pipeline that runs in seconds, on the scripted engine and the tiny model."""

from __future__ import annotations

import contextlib
import copy
import os
import random
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

SCRIPTED: dict[str, Any] = {
    "run": {"name": "r"},
    "data": {"path": "facts", "tasks_per_iteration": 4},
    "workflow": {"use": "qa_decompose", "options": {"top_k": 2}},
    "models": {
        "team": {
            "checkpoint": "tiny-scripted",
            "engine": "scripted",
            "engine_options": {"reply": "workflows.testing:echo_qa"},
            "max_model_len": 2048,
            "trainer": {"precision": "fp32", "num_threads": 1},
        }
    },
    "rollout": {"group_size": 4, "tasks_per_shard": 2, "max_in_flight": 8},
    "credit": {"options": {"by": "task_role"}},
    "ppo": {"learning_rate": 1e-3, "micro_batch_tokens": 8192},
    "tracking": {"uri": "none"},
    "cluster": {"object_store_gib": 0.2},
}


# Machines differ in speed, and laws don't: no test fails because its examples took long.
hypothesis.settings.register_profile(
    "cadre", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("cadre")
pytest.register_assert_rewrite("tests.support")


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    out = copy.deepcopy(base)
    for key, value in changes.items():
        out[key] = (
            merge(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
        )
    return out


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start Ray, vLLM or DeepSpeed first: where two run at a time, the quick ones fill in."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def own_packages() -> Iterator[None]:
    """Packages that a test made as a user would (`acme_…`) are its own: no later test finds them imported."""
    yield
    for name in [name for name in sys.modules if name.startswith("acme_")]:
        del sys.modules[name]


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Raw settings of a scripted run under `tmp_path`, with changes merged in."""

    def settings(**changes: Any) -> dict[str, Any]:
        return merge(merge(SCRIPTED, {"run": {"root": str(tmp_path / "runs")}}), changes)

    return settings


@pytest.fixture(scope="module")
def scripted_module(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same for a run that the tests of one module share."""
    return merge(SCRIPTED, {"run": {"root": str(tmp_path_factory.mktemp("shared") / "runs")}})


@pytest.fixture(scope="session")
def s3_port() -> int:
    """The port where tests start a server that speaks S3: known before Ray starts, below those that a system
    gives to whoever asks for any."""
    while True:
        port = random.randrange(15000, 30000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


@pytest.fixture(scope="module")
def ray_cluster(s3_port: int) -> Iterator[None]:
    """A local Ray, which stays up for all modules: a start takes 4 to 20 s of a core. Processes of trainers
    and engines are handed on from one test to the next.

    Its workers inherit their environment when it starts, so that has what any test wants of a worker:
    which module comes first makes no difference.
    """
    import ray

    from pipeline.run.cluster import start_ray
    from tests.support.environment import of_workers
    from tests.support.kept import kept_processes

    if not ray.is_initialized():
        with pytest.MonkeyPatch.context() as patch:
            for name, value in of_workers(s3_port).items():
                patch.setenv(name, value)
            start_ray("local", 0.3)
    with kept_processes():
        yield


def pytest_sessionfinish() -> None:
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


@pytest.fixture(scope="module")
def tiny() -> str:
    """Folder of the tiny model with random weights."""
    from stages.weights.resolve import resolve_checkpoint

    return resolve_checkpoint("tiny")


@pytest.fixture(scope="module")
def tiny_half(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of the tiny model as most models are published: stored in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("half") / "tiny"
    shutil.copytree(tiny, folder)
    AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.bfloat16).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def start(tiny: str) -> Iterator[Callable[..., Any]]:
    """Trainers of one rank in this process: `start(**changes of the spec)` closes the one before."""
    from stages.training.spec import TrainerSpec
    from stages.training.worker import TrainWorker

    environment, workers = dict(os.environ), []

    def close() -> None:
        while workers:
            workers.pop().close()

    def make(*, version: int = 0, resume: str | None = None, **changes: Any) -> TrainWorker:
        close()
        spec = TrainerSpec("m", "m", **{"checkpoint": tiny, "num_threads": 1, **changes})
        workers.append(TrainWorker(spec, 0))
        workers[0].start(workers[0].listen(), version, resume)
        return workers[0]

    yield make
    close()
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless browser that reaches this machine only. Where there is none, its tests fail."""
    from tests.support.browser import start_browser

    with start_browser() as started:
        yield started
