"""The weights that a run stands on, by content: those its models began with, and the anchors of KL terms.

Updates, adapters, KL terms, merging and replays read these folders again and again. A folder whose weights
were replaced in between would make a run of two models, without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.store.run import Run
from stages.training.spec import TrainerSpec
from stages.weights.content import content_fingerprint
from workflows.errors import UsageError

KEY = "initial_weights"  # in run.json: by name, the folder and its content


def folders_of(
    trainers: Mapping[str, TrainerSpec], frozen: Mapping[str, str] | None = None
) -> dict[str, str]:
    """By name, the folders of weights that a run stands on.

    Args:
        trainers: by model id.
        frozen: folders of models that are not trained, by model id.
    """
    folders = dict(frozen or {})
    for model_id, spec in trainers.items():
        folders[model_id] = spec.checkpoint
        if spec.reference is not None and spec.reference.checkpoint != "initial":
            folders[f"{model_id} reference"] = spec.reference.checkpoint
    return folders


def refuse_others(run: Run, folders: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Refuse weights that are not those of the run; what there is of each folder, by name.

    Nothing is written. A name that the run has no record of is not refused, and neither is another folder
    as the reference, which is a setting.

    Raises:
        UsageError: a folder's weights were replaced since the run began.
    """
    recorded = run.info.get(KEY, {})
    contents = {name: {"folder": f, "content": content_fingerprint(f)} for name, f in folders.items()}
    for name, now in contents.items():
        before = recorded.get(name)
        if before is None or before["content"] == now["content"]:
            continue
        if name.endswith(" reference") and before["folder"] != now["folder"]:
            continue
        moved = "" if before["folder"] == now["folder"] else f" (it was in {before['folder']})"
        raise UsageError(
            f"the weights of {name!r} in {now['folder']} are not those that run {run.name!r} began with: "
            f"their content is {now['content']}, the run's is {before['content']}{moved}; put the old files "
            "back, or start another run with --new: this run's updates, adapters and KL terms stand on them"
        )
    return contents


def check_and_record(run: Run, folders: Mapping[str, str]) -> str | None:
    """`refuse_others`, and note the content of what there is no record of; a remark where the run is older
    than such records.

    Raises:
        UsageError: a folder's weights were replaced since the run began.
    """
    contents = refuse_others(run, folders)
    recorded = run.info.get(KEY, {})
    if recorded != (now := {**recorded, **contents}):
        run.write_info(**{KEY: now})
    new = [name for name in contents if name not in recorded]
    if not new or not run.iterations():
        return None
    return (
        f"run {run.name!r} had no record of the content of its initial weights ({', '.join(new)}); what is "
        "there now is recorded, and other weights are refused from now on"
    )
