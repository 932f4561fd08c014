"""A value head for each role, on one trunk: whose value a token has, and who learns from whom."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pipeline.store.export import VALUE_HEADS, export_model
from pipeline.store.run import Run
from stages.training.checkpoint import foreign, read_manifest
from stages.training.loss.loss import value_loss
from stages.training.loss.spec import CriticSpec
from stages.training.network.critic import Critic
from stages.training.network.packing import empty_micro_batch
from stages.training.spec import TrainerSpec
from tests.support.tiny_training import SMOOTH, partition, save, score, token_advantages
from workflows.errors import RunFailed, UsageError

WIDTH = 3
RETURNS = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0]
ADVANTAGES = [1.0, -0.5, 0.25, -2.0, 0.0, 1.5]


def critic_of(*roles):
    spec = CriticSpec(learning_rate=0.02, value_clip=None, coefficient=1.0, roles=roles)
    critic = Critic(
        TrainerSpec("m", "m", "nowhere", critic=spec, gradient_clip=0.0), WIDTH, torch.device("cpu"), None
    )
    with torch.no_grad():
        critic.layer.weight.copy_(torch.arange(critic.layer.weight.numel()).reshape(-1, WIDTH) / 10)
        critic.layer.bias.copy_(torch.arange(len(critic.layer.bias)))
    return critic


def batch_of(roles, rows):
    """Rows of these roles, one token for each entry of `rows`."""
    size = len(rows)
    return replace(
        empty_micro_batch(packed=False),
        token_ids=torch.zeros((1, size), dtype=torch.int64),
        positions=torch.arange(size),
        targets=torch.zeros(size, dtype=torch.int64),
        mask=torch.ones(size, dtype=torch.bool),
        row=torch.tensor(rows),
        advantages=torch.zeros(size),
        behaviour_logprobs=torch.zeros(size),
        temperatures=torch.ones(size),
        roles=tuple(roles),
        keys=tuple((f"e{i}", 0) for i in range(len(roles))),
        num_forward_tokens=size,
    )


HIDDEN = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0], [3.0, 0.0, 0.0], [0.5, 0.5, 0.5]])
BATCH = batch_of(("b", "a"), [0, 0, 1, 1])


def test_a_token_has_the_value_of_its_roles_head() -> None:
    """Weights a (0, .1, .2), b (.3, .4, .5); biases 0 and 1. The first row is b's."""
    values = critic_of("a", "b").values(BATCH, HIDDEN)
    assert values.tolist() == pytest.approx([1 + 0.3 + 1.0, 1 + 0.4, 0.0, 0.15])
    shared = critic_of().values(BATCH, HIDDEN)
    assert shared.tolist() == pytest.approx([0.4, 0.1, 0.0, 0.15])


def test_a_head_has_the_gradient_of_its_own_rows_alone() -> None:
    """Of 0.5·(V - R)²: the sum of (V - R)·h over the role's tokens, in double precision by hand."""
    critic, returns = critic_of("a", "b"), [1.0, 2.0, -1.0, 0.0]
    values = critic.values(BATCH, HIDDEN)
    mask = torch.ones(4, dtype=torch.bool)
    value_loss(values, values.detach(), torch.tensor(returns), mask, torch.ones(4), None).loss.backward()
    hidden = HIDDEN.double().numpy()
    error = np.array([2.3, 1.4, 0.0, 0.15]) - np.array(returns)
    by_hand = np.stack([(error[2:, None] * hidden[2:]).sum(0), (error[:2, None] * hidden[:2]).sum(0)])
    np.testing.assert_allclose(critic.layer.weight.grad.numpy(), by_hand, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(critic.layer.bias.grad.numpy(), [error[2:].sum(), error[:2].sum()], rtol=1e-6)


def test_a_row_of_a_role_without_a_head_is_named() -> None:
    with pytest.raises(RunFailed, match="a row of role 'c' has no value head; there are heads for a, b"):
        critic_of("a", "b").values(batch_of(("a", "c"), [0, 1, 1, 1]), HIDDEN)
    with pytest.raises(UsageError, match="name each role once"):
        CriticSpec(roles=("a", "a"))


def spec(**changes):
    return CriticSpec(
        **{"learning_rate": 0.02, "value_clip": None, "coefficient": 1.0, "roles": ("a", "b"), **changes}
    )


def values(worker, folder, version):
    rows = score(
        worker, partition(folder / f"v{version}", version=version, roles="ab"), folder / "s", "values"
    )
    return [row["values"] for row in sorted(rows.read().to_pylist(), key=lambda r: r["episode_id"])]


def train(worker, folder, versions, roles="ab"):
    for version in versions:
        ref = partition(folder / f"p{version}", version=version, cut=(0, 1, 0, 1, 2, 2), roles=roles)
        worker.update(ref, version, token_advantages(folder / f"a{version}", ADVANTAGES, returns=RETURNS))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["head", "model"])
def test_roles_with_opposite_returns_are_told_apart_and_resume_bit_for_bit(start, tmp_path, kind) -> None:
    """Rows of role a earn 1, those of b -1, on one trunk."""
    settings = {**SMOOTH, "critic": spec(kind=kind, warmup_updates=9), "learning_rate": 0.0}
    worker = start(**settings)
    train(worker, tmp_path, range(2))
    saved = save(worker, f"{tmp_path}/checkpoints/2")
    train(worker, tmp_path, range(2, 4))
    unbroken = values(worker, tmp_path / "u", 4)
    for index, row in enumerate(unbroken):
        assert all(value > 0 for value in row) if index % 2 == 0 else all(value < 0 for value in row)
    worker = start(version=2, resume=saved, **settings)
    train(worker, tmp_path, range(2, 4))
    assert values(worker, tmp_path / "r", 4) == unbroken
    manifest = read_manifest(saved)
    assert manifest["critic_heads"] == ["a", "b"]
    for roles in ((), ("a", "c")):
        other = TrainerSpec(**{**vars_of(worker.spec), "critic": spec(kind=kind, roles=roles)})
        assert "it has critic_heads ['a', 'b']" in foreign(manifest, other, 2)
    old = {key: value for key, value in json.loads(json.dumps(manifest)).items() if key != "critic_heads"}
    shared = TrainerSpec(**{**vars_of(worker.spec), "critic": spec(kind=kind, roles=())})
    assert foreign(old, shared, 2) is None


def vars_of(spec):
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}


@pytest.mark.parametrize(("roles", "names"), [(("a", "b"), ["a", "b"]), ((), ["all roles"])])
def test_heads_are_exported_by_the_name_of_their_role(tmp_path, roles, names) -> None:
    """In a folder of their own: vLLM takes every file of weights that lies beside a model's."""
    critic = critic_of(*roles)
    run = Run(str(tmp_path / "runs"), "r")
    run.folder.write_text("run.json", json.dumps({"identity": {"models": {}, "workflow": {"use": "w"}}}))
    uri = Path(run.checkpoint_uri("m", 1))
    for name in ("weights/config.json", "trainer/values-0.pt"):
        (uri / name).parent.mkdir(parents=True)
    (uri / "weights/config.json").write_text("{}")
    torch.save(critic.state(), uri / "trainer/values-0.pt")
    files = [
        {"name": name, "hash": hashlib.sha256((uri / name).read_bytes()).hexdigest()}
        for name in ("weights/config.json", "trainer/values-0.pt")
    ]
    manifest = {"files": files, "hash": "h", "critic": "head", "critic_heads": list(roles)}
    (uri / "manifest.json").write_text(json.dumps(manifest))
    run.read_info()
    said = export_model(run, str(tmp_path / "out"), model_id="m", version="1")
    assert said["critic"].endswith(f"for {', '.join(names)}")
    assert json.loads((tmp_path / "out/cadre.json").read_text())["value_heads"] == names
    assert {p.name for p in (tmp_path / "out").glob("*")} == {"config.json", "cadre.json", "critic"}
    heads = load_file(tmp_path / "out" / VALUE_HEADS)
    for place, name in enumerate(names):
        assert heads[f"{name}.weight"].tolist() == critic.layer.weight[place].tolist()
        assert heads[f"{name}.bias"].item() == critic.layer.bias[place].item()


def test_an_export_without_a_critics_state_has_no_heads(tmp_path) -> None:
    run = Run(str(tmp_path / "runs"), "r")
    run.folder.write_text("run.json", json.dumps({"identity": {"models": {}, "workflow": {"use": "w"}}}))
    uri = Path(run.checkpoint_uri("m", 1))
    (uri / "weights").mkdir(parents=True)
    (uri / "weights/config.json").write_text("{}")
    files = [{"name": "weights/config.json", "hash": hashlib.sha256(b"{}").hexdigest()}]
    (uri / "manifest.json").write_text(json.dumps({"files": files, "hash": "h", "critic": "head"}))
    run.read_info()
    said = export_model(run, str(tmp_path / "out"), model_id="m", version="1")
    assert set(said) == {"model", "version", "folder"}


@pytest.mark.slow
def test_a_head_that_no_row_asks_for_stays_as_it_is(start, tmp_path) -> None:
    worker = start(**{**SMOOTH, "critic": spec(warmup_updates=9)})
    train(worker, tmp_path, range(2), roles="a")
    layer = worker.unit.critic.layer
    assert layer.weight[1].abs().max() == 0
    assert layer.bias[1] == 0
    assert layer.weight[0].abs().max() > 0


@pytest.mark.slow
def test_the_gradient_is_one_however_a_batch_is_cut(start, tmp_path) -> None:
    found = []
    for number, cut in enumerate(((0,) * 6, (1, 0, 0, 1, 2, 3))):
        worker = start(**{**SMOOTH, "critic": spec(), "shared_prefix": number == 0})
        ref = partition(tmp_path / f"p{number}", cut=cut, roles="ab")
        worker.update(ref, 0, token_advantages(tmp_path / f"a{number}", ADVANTAGES, returns=RETURNS))
        found.append(values(worker, tmp_path / f"x{number}", 1))
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
