"""Checkpoints: what engines load, what a trainer resumes from, and a manifest that is written last.

    <uri>/weights/…       Hugging Face layout, in the dtype of the initial checkpoint, or in that of the
                          computation where the former would round; of an adapter PEFT's, in the latter
    <uri>/trainer/…       DeepSpeed's state (fp32 master weights, moments, step), critic, RNG of each rank
    <uri>/manifest.json   versions, and size and hash of every file; a folder without it is not a checkpoint

On a local disk the ranks write beside the target and one rename makes the checkpoint appear; elsewhere
each rank writes to its own disk and uploads. Nothing here deletes another version's folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.engines.base import Weights
from stages.tables.filesystem import filesystem, is_local, make_parent
from stages.tables.parquet import write_bytes
from stages.training.spec import TrainerSpec, UpdateReport
from stages.weights.adapters import AdapterSpec
from workflows.errors import RunFailed

if TYPE_CHECKING:
    from stages.training.unit import Unit

MANIFEST = "manifest.json"
FORMAT = 1
TAG = "state"  # DeepSpeed's name for the one state in a folder


def prepare(uri: str) -> None:
    """Clear what an interrupted write left where the ranks will write. Driver, before `write`."""
    fs, path, local = _place(uri)
    if local:
        shutil.rmtree(_partial(path), ignore_errors=True)
        _partial(path).mkdir(parents=True)
    elif fs.exists(path):  # the manifest goes first: half of a folder must not look whole
        if fs.exists(f"{path}/{MANIFEST}"):
            fs.rm(f"{path}/{MANIFEST}")
        fs.rm(path, recursive=True)


def write(unit: Unit, uri: str, trainer_state: bool) -> dict[str, Any]:
    """Write this rank's files and say what they are. Collective; every rank calls it."""
    fs, path, local = _place(uri)
    with _staging(_partial(path) if local else None) as folder:
        if unit.rank == 0:
            _write_weights(unit, folder / "weights")
        if trainer_state:
            _write_state(unit, folder / "trainer")
        names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        files = [{**_describe(folder / name), "name": name, "rank": unit.rank} for name in names]
        receipt: dict[str, Any] = {"files": files, "version": unit.version}
        if unit.rank == 0:
            from stages.weights.checkpoints import weights_hash

            receipt["hash"] = weights_hash(str(folder / "weights"))
            receipt["last_report"] = asdict(unit.last_report) if unit.last_report else None
        for name in names:
            if local:
                target = _partial(path) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(folder / name, target)
            else:
                make_parent(fs, f"{path}/{name}")
                fs.put_file(str(folder / name), f"{path}/{name}")
    return receipt


def commit(uri: str, spec: TrainerSpec, receipts: Sequence[dict[str, Any]]) -> Weights:
    """Write the manifest, which makes the folder a checkpoint. Driver, after every rank's `write`."""
    first = receipts[0]
    manifest = {
        "format": FORMAT,
        "model_id": spec.model_id,
        "base_id": spec.base_id,
        "version": first["version"],
        "parent_version": _parent(first["version"], first["last_report"]),
        "hash": first["hash"],
        "ranks": spec.ranks,
        "zero_stage": spec.zero_stage,
        "precision": spec.precision,
        "critic": spec.critic.kind if spec.critic else None,
        "critic_checkpoint": spec.critic.checkpoint if spec.critic else None,
        "critic_heads": list(spec.critic.roles) if spec.critic else [],
        "adapter": _plain(spec.adapter),
        "last_report": first["last_report"],
        "files": [file for receipt in receipts for file in receipt["files"]],
    }
    data = json.dumps(manifest, indent=1).encode()
    _, path, local = _place(uri)
    if local:
        write_bytes(str(_partial(path) / MANIFEST), data)
        if Path(path).exists():  # the same version again: the trainer's own, redone
            shutil.rmtree(path)
        os.replace(_partial(path), path)
    else:
        write_bytes(f"{uri}/{MANIFEST}", data)
    return Weights(spec.model_id, f"{uri}/weights", first["version"], first["hash"])


def read_manifest(uri: str) -> dict[str, Any]:
    """The manifest of a checkpoint.

    Raises:
        RunFailed: there is none, or it can't be read: the folder is not a whole checkpoint.
    """
    try:
        fs, path, _ = _place(uri)
        manifest = json.loads(fs.cat_file(f"{path}/{MANIFEST}"))
        if manifest["format"] != FORMAT:
            raise RunFailed(f"checkpoint {uri} has format {manifest['format']}, this version reads {FORMAT}")
        return dict(manifest)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFailed(
            f"{uri} is not a whole checkpoint ({type(error).__name__}: {error}); "
            "resume from another version, or start a new run"
        ) from None


def load(unit: Unit, uri: str, version: int) -> UpdateReport | None:
    """Restore weights, optimizer state and RNG of this rank; the report of the last update. Collective.

    Raises:
        RunFailed: the checkpoint is truncated, of another model, version or cut, or without state.
    """
    import torch

    manifest = read_manifest(uri)
    if problem := foreign(manifest, unit.spec, version):
        raise RunFailed(f"can't resume model {unit.spec.model_id!r} from {uri}: {problem}")
    with _fetched(uri, manifest, unit.rank) as folder:
        loaded, _ = unit.engine.load_checkpoint(str(folder / "trainer"), tag=TAG)
        if loaded is None:
            raise RunFailed(f"DeepSpeed found no state in {uri}; resume from another version")
        if unit.critic is not None:
            if unit.critic.network is not None:
                unit.critic.network.engine.load_checkpoint(str(folder / "trainer/critic"), tag=TAG)
            state = torch.load(folder / f"trainer/values-{unit.rank}.pt", weights_only=True)
            unit.critic.restore(state)
        means = folder / f"trainer/gradients-{unit.rank}.pt"
        if means.is_file():  # of a run that measures gradients by role, or damps them
            unit.restore_gradients(torch.load(means, weights_only=True))
        _restore_rng(torch.load(folder / f"trainer/rng-{unit.rank}.pt", weights_only=True))
    report = manifest["last_report"]
    return UpdateReport(**report) if report else None


def foreign(manifest: dict[str, Any], spec: TrainerSpec, version: int) -> str | None:
    """Why a trainer of `spec` can't resume from the checkpoint of this manifest, in words; None if it can."""
    if not any(file["name"].startswith("trainer/") for file in manifest["files"]):
        return "it holds weights only, without the optimizer's state; choose one that was saved whole"
    expected = {
        "model_id": spec.model_id,
        "version": version,
        "ranks": spec.ranks,
        "zero_stage": spec.zero_stage,
        "precision": spec.precision,
        "critic": spec.critic.kind if spec.critic else None,
        "adapter": _plain(spec.adapter),
    }
    if "critic_checkpoint" in manifest:  # checkpoints that an older version wrote do not say
        expected["critic_checkpoint"] = spec.critic.checkpoint if spec.critic else None
    heads = list(spec.critic.roles) if spec.critic else []
    for name, want in (expected | {"critic_heads": heads}).items():
        # checkpoints from before there were heads of roles have one head for all
        if manifest.get(name, [] if name == "critic_heads" else None) != want:
            return (
                f"it has {name} {manifest.get(name)!r}, the trainer wants {want!r}; "
                "use the settings that it was saved with, or start a new run"
            )
    return None


def _parent(version: int, report: dict[str, Any] | None) -> int | None:
    """The version that these weights were made from: the one before, but for rejected candidates' numbers."""
    if not version:
        return None
    is_its_own = report is not None and report["version_after"] == version > report["version_before"]
    return report["version_before"] if report is not None and is_its_own else version - 1


def _plain(adapter: AdapterSpec | None) -> dict[str, Any] | None:
    """As JSON has it."""
    return json.loads(json.dumps(asdict(adapter))) if adapter else None


def _write_weights(unit: Unit, folder: Path) -> None:
    """The weights as they are computed with, bit for bit, and everything else that an engine needs.

    They are in the initial checkpoint's dtype where that holds them. bfloat16 does not hold what was trained
    in float32: it has no room for steps of a usual learning rate, so a sampler would hardly see them.
    """
    import torch

    from stages.training.network.adapted import AdaptedPolicy

    policy, base = unit.policy, unit.spec.checkpoint
    if isinstance(policy, AdaptedPolicy):
        policy.base.adaptable.save(policy.adapter, folder, base)
        return
    model = policy.model
    dtype = torch.promote_types(unit.stored_dtype, model.dtype)
    copies: dict[int, Any] = {}  # tied weights stay one tensor; DeepSpeed's are views of one flat buffer
    state = {
        name: copies.setdefault(tensor.data_ptr(), tensor.detach().to("cpu", dtype, copy=True))
        for name, tensor in model.state_dict().items()
    }
    model.save_pretrained(str(folder), state_dict=state)
    for file in Path(base).iterdir():
        weights = file.suffix in (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")
        if file.is_file() and not weights and not file.name.endswith((".index.json", ".lock")):
            shutil.copyfile(file, folder / file.name)
    if dtype != unit.stored_dtype:  # for whoever loads weights in the dtype that the folder names
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config.pop("torch_dtype", None)  # the older name
        config["dtype"] = str(dtype).removeprefix("torch.")
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _write_state(unit: Unit, folder: Path) -> None:
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    unit.engine.save_checkpoint(str(folder), tag=TAG)
    if unit.critic is not None:
        if unit.critic.network is not None:
            unit.critic.network.engine.save_checkpoint(str(folder / "critic"), tag=TAG)
        torch.save(unit.critic.state(), folder / f"values-{unit.rank}.pt")
    if means := unit.gradient_state():
        torch.save(means, folder / f"gradients-{unit.rank}.pt")
    torch.save(_rng_state(), folder / f"rng-{unit.rank}.pt")


def _rng_state() -> dict[str, Any]:
    import torch

    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _restore_rng(state: dict[str, Any]) -> None:
    import torch

    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


@contextmanager
def _staging(beside: Path | None) -> Iterator[Path]:
    """A folder of this rank's own: beside the target, so that files move by rename, or on the local disk."""
    if beside is not None:
        beside.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix=".rank-", dir=beside)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _fetched(uri: str, manifest: dict[str, Any], rank: int) -> Iterator[Path]:
    """A local folder with this rank's files of the state, each checked against the manifest."""
    fs, path, local = _place(uri)
    wanted = [
        file
        for file in manifest["files"]
        if file["name"].startswith("trainer/") and (file["rank"] == rank or "model_states" in file["name"])
    ]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(path) if local else Path(temporary)
        for file in wanted:
            target = folder / file["name"]
            if not local:
                target.parent.mkdir(parents=True, exist_ok=True)
                fs.get_file(f"{path}/{file['name']}", str(target))
            actual = _describe(target) if target.is_file() else {"bytes": None, "hash": None}
            if actual != {"bytes": file["bytes"], "hash": file["hash"]}:
                raise RunFailed(
                    f"checkpoint {uri} is damaged: {file['name']} should have {file['bytes']} bytes and hash "
                    f"{file['hash']}, found {actual['bytes']} and {actual['hash']}; resume from another "
                    "version"
                )
        yield folder


def _describe(file: Path) -> dict[str, Any]:
    with file.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256")  # hardware support makes it the fastest safe one
    return {"bytes": file.stat().st_size, "hash": digest.hexdigest()}


def _place(uri: str) -> tuple[Any, str, bool]:
    """Filesystem, path within it, and whether that is a local disk."""
    fs, path = filesystem(uri)
    return fs, path.rstrip("/"), is_local(fs)


def _partial(path: str) -> Path:
    target = Path(path)
    return target.parent / f".{target.name}.partial"
