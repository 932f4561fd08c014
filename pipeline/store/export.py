"""Writing a trained model where others find it: a Hugging Face folder with a note of where it is from.

An adapter is written as PEFT's folder, or merged into its base.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from pipeline.store.folder import Folder
from pipeline.store.initial_weights import refuse_others
from pipeline.store.run import Run
from pipeline.store.shelf import replay_run
from stages.tables.filesystem import filesystem, make_parent
from stages.weights.resolve import resolve_checkpoint
from workflows.errors import CadreError, UsageError, did_you_mean

CHUNK = 1 << 24
VALUE_HEADS = "critic/value_heads.safetensors"
ALL_ROLES = "all roles"  # the name of a head that they share


def export_model(
    run: Run,
    folder: str,
    *,
    model_id: str | None,
    version: str,
    merge: bool = False,
    replay: str | None = None,
) -> dict[str, Any]:
    """Copy a model's weights and tokenizer to `folder`, every file checked against its hash.

    Value heads on the model itself are written beside them, where the version is a whole checkpoint.

    Args:
        run: with its info read.
        folder: a path or fsspec URL that does not exist or is empty.
        model_id: None for the only model of the run.
        version: a number, "latest", "best" (that of the best evaluation), or "result": the best where
            `evaluate.patience` ended the training, else the latest.
        merge: write an adapter's base with the adapter in it, instead of the adapter alone.
        replay: the label of a replay, for the weights that it trained.

    Raises:
        UsageError: no such model, version or replay, nothing to merge, or the folder has something in it.
        CadreError: a file of the checkpoint is missing or is not what its manifest says.
    """
    origin: dict[str, Any] = {"run": run.folder.url, **({"replay": replay} if replay else {})}
    of_run = run
    if replay is not None:
        run = replay_run(run, replay)
    model = _model(run, model_id)
    number = _version(run, model, version)
    source = Folder(run.checkpoint_uri(model, number))
    manifest = json.loads(source.read_text("manifest.json") or "{}")
    target = Folder(folder)
    if target.names():
        raise UsageError(f"{target.url} is not empty; export to a new folder")
    weights = run.info["identity"]["models"].get(model)
    if merge:
        _merge(of_run, model, weights, manifest, source, target)
    else:
        _copy_weights(manifest, source, target.url)
    heads = _write_value_heads(manifest, source, target.url)
    origin |= {
        "model": model,
        "version": number,
        "hash": manifest["hash"],
        "workflow": run.info["identity"]["workflow"]["use"],
        "checkpoint": weights,
        "merged": merge,
        "value_heads": heads,
        "packages": run.info.get("packages", {}),
    }
    target.write_text("cadre.json", json.dumps(origin, indent=1, sort_keys=True))
    said = {"model": model, "version": number, "folder": target.url}
    return said | ({"critic": f"{target.url}/{VALUE_HEADS}, for {', '.join(heads)}"} if heads else {})


def _write_value_heads(manifest: dict[str, Any], source: Folder, target: str) -> list[str]:
    """Write the value heads that sit on the model itself, where the checkpoint has them; whose they are.

    They are in a folder of their own: programs that load a model take every file of weights beside it.
    """
    states = [f for f in manifest["files"] if f["name"] == "trainer/values-0.pt"]
    if manifest.get("critic") != "head" or not states:  # one that was published for engines has no state
        return []
    import torch
    from safetensors.torch import save_file

    names = manifest.get("critic_heads") or [ALL_ROLES]
    with tempfile.TemporaryDirectory() as temporary:
        _copy(f"{source.url}/{states[0]['name']}", f"{temporary}/state", states[0])
        layer = torch.load(f"{temporary}/state", weights_only=True, map_location="cpu")["layer"]
        tensors = {}
        for place, name in enumerate(names):
            tensors[f"{name}.weight"] = layer["weight"][place].clone()
            tensors[f"{name}.bias"] = layer["bias"][place].clone()
        save_file(tensors, f"{temporary}/heads")
        fs, path = filesystem(f"{target}/{VALUE_HEADS}")
        make_parent(fs, path)
        fs.put_file(f"{temporary}/heads", path)
    return list(names)


def _model(run: Run, model_id: str | None) -> str:
    models = run.folder.child("checkpoints").names()
    if model_id is None and len(models) == 1:
        return models[0]
    if model_id is None or model_id not in models:
        what = (
            "has several models; name one with --model" if model_id is None else f"has no model {model_id!r}"
        )
        hint = did_you_mean(model_id, models) if model_id else ""
        raise UsageError(f"run {run.name!r} {what}{hint}; trained: {', '.join(models) or 'none yet'}")
    return model_id


def _version(run: Run, model: str, version: str) -> int:
    have = run.weights_versions(model)
    if version == "result":  # of a run that stopped at its peak that, else the newest
        version = "best" if run.info.get("result") else "latest"
    if version == "best":
        found = [b["versions"].get(model) for b in run.info.get("best", {}).values()]
        if not found:
            raise UsageError(f"run {run.name!r} has no evaluation to be best in; use --version latest")
        if found[0] == 0:
            raise UsageError(
                f"the best evaluation of run {run.name!r} is that of the initial weights: training has not "
                "improved on them; export a version by its number, or --version latest"
            )
        wanted = int(found[0])
    elif version == "latest":
        wanted = have[-1] if have else 0
    elif version.isdigit():
        wanted = int(version)
    else:
        raise UsageError(f"--version {version!r} is neither a number, nor result, latest or best")
    if wanted not in have:
        raise UsageError(
            f"run {run.name!r} has no weights of version {wanted} of model {model!r}; it keeps: "
            f"{', '.join(map(str, have)) or 'none'}"
        )
    return wanted


def _merge(
    run: Run, model: str, weights: Any, manifest: dict[str, Any], source: Folder, target: Folder
) -> None:
    if manifest.get("adapter") is None:
        raise UsageError(f"model {model!r} is not an adapter: it is exported whole; leave out --merge")
    from stages.weights.merge import merge_adapter

    base = resolve_checkpoint(weights["checkpoint"])
    refuse_others(run, {model: base})

    with tempfile.TemporaryDirectory() as temporary:
        _copy_weights(manifest, source, f"{temporary}/adapter")
        merge_adapter(base, f"{temporary}/adapter", f"{temporary}/merged")
        fs, path = filesystem(target.url)
        make_parent(fs, f"{path}/cadre.json")
        for file in sorted(Path(f"{temporary}/merged").iterdir()):
            fs.put_file(str(file), f"{path}/{file.name}")


def _copy_weights(manifest: dict[str, Any], source: Folder, target: str) -> None:
    for file in manifest["files"]:
        directory, _, name = str(file["name"]).partition("/")
        if directory == "weights":
            _copy(f"{source.url}/{file['name']}", f"{target}/{name}", file)


def _copy(source: str, target: str, file: dict[str, Any]) -> None:
    digest = hashlib.sha256()
    source_fs, source_path = filesystem(source)
    target_fs, target_path = filesystem(target)
    make_parent(target_fs, target_path)
    try:
        with source_fs.open(source_path, "rb") as read, target_fs.open(target_path, "wb") as write:
            while chunk := read.read(CHUNK):
                digest.update(chunk)
                write.write(chunk)
    except FileNotFoundError as error:
        raise CadreError(f"{source} is missing, though its checkpoint lists it") from error
    if digest.hexdigest() != file["hash"]:
        raise CadreError(f"{source} is not what its checkpoint's manifest says; export another version")
