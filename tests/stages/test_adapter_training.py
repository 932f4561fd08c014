"""Training adapters: one base, an optimizer for each, and an adapter that does not train does not move."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stages.engines.base import EngineSpec, Weights
from stages.engines.torch.server import TorchServer
from stages.tables.parquet import TableSink
from stages.training import checkpoint
from stages.training.loss.spec import CriticSpec, ReferenceSpec
from stages.training.rank import Rank
from stages.training.spec import TrainerSpec
from stages.weights.adapters import AdapterSpec
from stages.weights.checkpoints import weights_hash
from tests.support.tiny_training import SMOOTH, master, partition, same, save, score, token_advantages
from workflows.engine import Sampling
from workflows.errors import RunFailed
from workflows.trajectory import PARTITION, rows_to_table

pytestmark = pytest.mark.slow

LOW = AdapterSpec(rank=4, alpha=8.0)
FULL = AdapterSpec(rank=2, alpha=4.0, train_embeddings=True)


@pytest.fixture
def rank(tiny: str) -> Iterator[Any]:
    """One process of adapters on the tiny model, here: `rank(a=spec, …)` starts anew."""
    environment, ranks = dict(os.environ), []

    def close() -> None:
        while ranks:
            for worker in ranks.pop().workers.values():
                worker.close()

    def make(*, resume: dict[str, tuple[int, str]] | None = None, adapters: Any, **changes: Any) -> Rank:
        close()
        ranks.append(Rank(0))
        address = None
        for model_id, adapter in adapters.items():
            spec = TrainerSpec(model_id, "base", tiny, adapter=adapter, **(SMOOTH | changes))
            ranks[0].add(spec)
            address = address or ranks[0].call(model_id, "listen")
            ranks[0].call(model_id, "start", address, *(resume or {}).get(model_id, (0, None)))
        return ranks[0]

    yield make
    close()
    os.environ.clear()
    os.environ.update(environment)


def base_of(started: Rank) -> dict[str, Any]:
    (base,) = started.bases.values()
    return {k: v.clone() for k, v in base.model.state_dict().items()}


def test_an_update_moves_one_adapter_and_the_file_of_another_keeps_its_bytes(
    rank: Any, tmp_path: Path
) -> None:
    started = rank(adapters={"a": LOW, "b": FULL})
    a, b = started.workers["a"], started.workers["b"]
    base, before = base_of(started), master(b)
    save(b, str(tmp_path / "b0"), False)
    a.update(partition(tmp_path / "p", model_id="a"), 0)
    assert same(base_of(started), base)
    assert same(master(b), before)
    save(b, str(tmp_path / "b1"), False)
    assert weights_hash(str(tmp_path / "b0/weights")) == weights_hash(str(tmp_path / "b1/weights"))
    moved = master(a)
    report = b.update(partition(tmp_path / "q", model_id="b"), 0)
    assert (report.version_after, a.unit.version) == (1, 1)
    assert same(base_of(started), base)
    assert same(master(a), moved)
    assert not same(master(b), before)
    assert all(p.grad is None for p in started.bases["base"].model.parameters())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_two_updates_and_two_more_after_a_restart_are_four(rank: Any, tmp_path: Path, precision: str) -> None:
    """Also where the other adapter of the base trains in between in one run and not at all in the other."""
    adapters, changes = {"a": FULL, "b": LOW}, {"precision": precision, "learning_rate": 0.01, "eps": 1e-8}
    started = rank(adapters=adapters, **changes)
    a, b = started.workers["a"], started.workers["b"]
    tables = [partition(tmp_path / f"p{v}", version=v, model_id="a") for v in range(4)]
    for iteration, table in enumerate(tables):
        a.update(table, iteration)
        if iteration < 2:
            b.update(partition(tmp_path / f"q{iteration}", version=iteration, model_id="b"), iteration)
        if iteration == 1:
            half = save(a, str(tmp_path / "half"))
    unbroken = master(a)
    # the neighbour comes first this time, and has its own version
    again = rank(adapters={"b": LOW, "a": FULL}, resume={"a": (2, half)}, **changes)
    for iteration in (2, 3):
        again.workers["a"].update(tables[iteration], iteration)
    assert again.workers["a"].unit.version == 4
    assert same(master(again.workers["a"]), unbroken)
    with pytest.raises(RunFailed, match="adapter"):
        rank(adapters={"a": LOW}, resume={"a": (2, half)}, **changes)


def test_the_reference_of_an_adapter_is_its_base(rank: Any, start: Any, tmp_path: Path) -> None:
    changes = {"precision": "fp32", "num_threads": 1}
    whole = start(**changes)
    table = partition(tmp_path / "w")
    base = score(whole, table, tmp_path / "sw", "old").read()["old_logprobs"].to_pylist()
    a = rank(adapters={"a": FULL}, reference=ReferenceSpec()).workers["a"]
    a.update(partition(tmp_path / "p0", model_id="a"), 0)
    table = partition(tmp_path / "p1", model_id="a", version=1)
    scores = score(a, table, tmp_path / "s", "old", "reference").read()
    assert scores["reference_logprobs"].to_pylist() == base
    assert scores["old_logprobs"].to_pylist() != base


def test_a_critic_of_an_adapter_learns_beside_it(rank: Any, tmp_path: Path) -> None:
    a = rank(adapters={"a": LOW}, critic=CriticSpec("head", learning_rate=0.1)).workers["a"]
    table = partition(tmp_path / "p", model_id="a")
    tokens = token_advantages(tmp_path / "t", [1.0] * 6, returns=[1.0] * 6)
    first = a.update(table, 0, tokens).summary["value_loss"]
    again = partition(tmp_path / "q", model_id="a", version=1)
    second = a.update(again, 1, token_advantages(tmp_path / "u", [1.0] * 6, returns=[1.0] * 6))
    assert second.summary["value_loss"] < first


@pytest.mark.parametrize("checkpointing", [False, True])
def test_sampler_and_trainer_agree_before_and_after_updates_of_two_adapters(
    rank: Any, tiny: str, tmp_path: Path, checkpointing: bool
) -> None:
    adapters = {"a": FULL, "b": LOW}
    started = rank(adapters=adapters, activation_checkpointing=checkpointing)
    spec = EngineSpec("base", "torch", tiny, dtype="float32", adapters=adapters, num_threads=1)

    async def play() -> None:
        server = TorchServer(spec)
        try:
            for version in range(3):
                for model_id in adapters:
                    await check(server, model_id, version)
                for model_id in adapters if version < 2 else ():
                    await update(server, model_id, version)
        finally:
            await server.close()

    async def check(server: TorchServer, model_id: str, version: int) -> None:
        """The engine's logprobs, of rows asked beside rows of the other adapter, against the trainer's."""
        other = "b" if model_id == "a" else "a"
        table = partition(tmp_path / f"c{model_id}{version}", model_id=model_id, version=version)
        rows = table.read().to_pylist()
        asked = [
            server.generate(m, r["prompt_token_ids"], Sampling(6, temperature=r["temperature"], seed=i))
            for i, r in enumerate(rows)
            for m in (model_id, other)
        ]
        replies = (await asyncio.gather(*asked))[::2]
        assert {r.policy_version for r in replies} == {version}
        rows = [
            {**r, "response_token_ids": c.token_ids, "behaviour_logprobs": c.logprobs}
            for r, c in zip(rows, replies, strict=True)
        ]
        sink = TableSink(f"partition/{model_id}", str(tmp_path / f"d{model_id}{version}"), PARTITION)
        played = sink.ref([sink.write_part(0, rows_to_table(rows, PARTITION))])
        scored = score(started.workers[model_id], played, tmp_path / f"s{model_id}{version}", "old").read()
        for reply, logprobs in zip(replies, scored["old_logprobs"].to_pylist(), strict=True):
            assert reply.logprobs == pytest.approx(logprobs, abs=3e-5)

    async def update(server: TorchServer, model_id: str, version: int) -> None:
        worker, uri = started.workers[model_id], str(tmp_path / f"{model_id}-{version + 1}")
        worker.update(
            partition(tmp_path / f"p{model_id}{version}", model_id=model_id, version=version), version
        )
        save(worker, uri, False)
        found = checkpoint.read_manifest(uri)
        await server.reload(Weights(model_id, f"{uri}/weights", version + 1, found["hash"]))

    asyncio.run(play())


def test_an_adapter_keeps_its_start_whatever_starts_before_it(rank: Any) -> None:
    alone = master(rank(adapters={"b": LOW}).workers["b"])
    behind = rank(adapters={"a": FULL, "b": LOW}).workers["b"]
    assert same(master(behind), alone)
    other_seed = rank(adapters={"b": LOW}, seed=1).workers["b"]
    assert not same(master(other_seed), alone)
    assert replace(LOW, rank=5).scale == 8.0 / 5
