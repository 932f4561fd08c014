"""A reward model from its pairs to a folder that rewards load. Each step is done once: the same call goes on.

<out>/training.json          what was asked, and what each optimizer step did
<out>/plays/ pairs/          what it learned from, and what measured it
<out>/training/…             rows of the trainer and its newest checkpoint; gone when it is finished
<out>/weights/               Hugging Face layout; not where the head alone was trained
<out>/reward_model.json      last: see `stages.reward_model.model`
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pipeline.reward_model.asked import MODEL_ID, Asked
from pipeline.reward_model.judged import judged
from pipeline.reward_model.tables import pairs_table, plays_table, rows_for, stored
from pipeline.store.differences import differences, plain
from pipeline.store.folder import Folder
from pipeline.store.fork import link_tree
from pipeline.store.lock import RunLock
from pipeline.store.manifest import package_versions
from rewards.preferences.render import RENDERING
from stages.base import Progress
from stages.reward_model.model import FILE, FORMAT, WEIGHTS, tokenizer_hash
from stages.tables.parquet import TableSink
from stages.training.group import TrainerGroup
from stages.training.spec import RankingSpec
from stages.weights.checkpoints import weights_hash
from stages.weights.merge import merge_adapter
from stages.weights.resolve import fetched
from workflows.errors import RunFailed, UsageError
from workflows.preference_tables import PAIRS, PLAYS
from workflows.trajectory import PARTITION, SCORES

STATE: Final = "training.json"
_LEAST_DEVIATION: Final = 1e-6  # of scores: all plays are scored alike


def run_training(asked: Asked, progress: Progress, start: Callable[[], None]) -> dict[str, Any]:
    """Train, measure and write a reward model, or go on where it was stopped; what its file says.

    Args:
        asked: what is asked, checked.
        progress: counts optimizer steps.
        start: starts Ray, if it has not; called before anything needs it.

    Raises:
        UsageError: the folder holds another model.
        RunFailed: an optimizer step failed.
    """
    asked.folder.fs.makedirs(asked.folder.path, exist_ok=True)
    with RunLock(asked.folder):
        state = _state(asked)
        text = asked.folder.read_text(FILE)
        if text is not None:
            asked.folder.remove("training")
            return dict(json.loads(text))
        start()
        stored(f"{asked.folder.url}/plays", PLAYS, [plays_table(asked)])
        stored(f"{asked.folder.url}/pairs", PAIRS, [pairs_table(asked, asked.pairs.pairs)])
        group = _begun(asked, state)
        try:
            _learn(asked, group, state, progress)
            scores = _scores(asked, group)
            head = group.value_head()
            info = _info(asked, state, scores, head) | _published(asked, group)
        finally:
            group.close()
        info["hash"] = _hash(info)
        asked.folder.write_text(FILE, json.dumps(plain(info), indent=1, ensure_ascii=False))
        asked.folder.remove("training")
    return info


def _state(asked: Asked) -> dict[str, Any]:
    """What was done before, or a new beginning."""
    text = asked.folder.read_text(STATE)
    identity = plain(asked.identity)
    if text is None:
        state: dict[str, Any] = {"asked": identity, "steps": []}
        asked.folder.write_text(STATE, json.dumps(state))
        return state
    state = json.loads(text)
    if state["asked"] != identity:
        raise UsageError(
            f"{asked.folder.url} holds another reward model: {differences(state['asked'], identity)}; use "
            "another --out, or ask for the same again to go on with it"
        )
    return state


def _checkpoints(asked: Asked) -> list[int]:
    """Versions with a whole checkpoint, ascending."""
    folder = asked.folder.child("training/checkpoints")
    named = [name for name in folder.names() if name.isdigit()]
    return sorted(int(name) for name in named if folder.read_text(f"{name}/manifest.json") is not None)


def _uri(asked: Asked, version: int) -> str:
    return f"{asked.folder.url}/training/checkpoints/{version:06d}"


def _begun(asked: Asked, state: dict[str, Any]) -> TrainerGroup:
    """The trainer at the newest checkpoint; steps that were made after it are made again."""
    versions = _checkpoints(asked)
    version = versions[-1] if versions else 0
    state["steps"] = state["steps"][:version]
    resume = _uri(asked, version) if version else None
    return TrainerGroup.start(asked.trainer(), version=version, resume=resume)


def _learn(asked: Asked, group: TrainerGroup, state: dict[str, Any], progress: Progress) -> None:
    """Make the optimizer steps that are left, with a checkpoint after every `save_steps`."""
    home = f"{asked.folder.url}/training"
    partition = stored(f"{home}/rows", PARTITION, rows_for(asked, asked.steps))
    pairs = stored(f"{home}/pairs", PAIRS, [pairs_table(asked, asked.train)])
    spec = RankingSpec(not asked.section.head_only, asked.section.centring, asked.seed)
    progress.start("learn pairs", asked.total_steps - group.version, "step")
    while group.version < asked.total_steps:
        before = group.version
        until = min(asked.total_steps, before + asked.section.save_steps)
        report = group.learn_ranking(partition, pairs, spec, until)
        state["steps"] += report.steps
        asked.folder.write_text(STATE, json.dumps(plain(state)))
        group.save(_uri(asked, until))
        for version in _checkpoints(asked)[:-1]:
            asked.folder.remove(f"training/checkpoints/{version:06d}")
        progress.advance(until - before)
    progress.finish()


def _scores(asked: Asked, group: TrainerGroup) -> dict[str, float]:
    """The raw score of every play that is in a pair."""
    home = f"{asked.folder.url}/training"
    tasks = sorted({pair.task for pair in asked.pairs.pairs})
    partition = stored(f"{home}/scored", PARTITION, rows_for(asked, [tasks]))
    sink = TableSink(f"scores/{MODEL_ID}", f"{home}/scores", SCORES)
    scores = sink.ref(group.score(partition, sink, frozenset({"values"}), off_policy=True))
    rows = scores.read(["episode_id", "values"]).to_pylist()
    return {row["episode_id"]: float(row["values"][0]) for row in rows}


def _info(
    asked: Asked, state: dict[str, Any], scores: dict[str, float], head: dict[str, Any]
) -> dict[str, Any]:
    """What `reward_model.json` says, but for where the weights are."""
    of_training = [scores[p.play] for p in asked.paired if p.task not in asked.held_out]
    deviation = statistics.pstdev(of_training)
    if deviation < _LEAST_DEVIATION:
        raise RunFailed(
            f"the model gives all {len(of_training)} plays the same score, so it has learned nothing; raise "
            "reward_model.learning_rate, head_learning_rate or passes"
        )
    return {
        "format": FORMAT,
        "rendering": RENDERING,
        "asked": state["asked"],
        "runs": [run.folder.url for run in asked.runs],
        "context": asked.section.context,
        "precision": asked.trainer().precision,
        "tokenizer_hash": tokenizer_hash(asked.weights),
        "head": head,
        "scale": {"mean": statistics.fmean(of_training), "deviation": deviation},
        "accounts": [account.as_dict() for account in asked.accounts],
        "tasks": asked.num_tasks,
        "cut": asked.cut,
        "steps": state["steps"],
        "judged": judged(asked, scores),
        "packages": package_versions(),
    }


def _published(asked: Asked, group: TrainerGroup) -> dict[str, Any]:
    """Write the weights where any were trained; where they are, and their hash."""
    if asked.section.head_only:
        return {"base": asked.base, "weights_hash": weights_hash(asked.weights)}
    uri = f"{asked.folder.url}/training/published"
    group.publish(uri)
    target = asked.folder.child(WEIGHTS)
    asked.folder.remove(WEIGHTS)
    target.fs.makedirs(target.path, exist_ok=True)
    if asked.section.adapter is None:
        link_tree(Folder(f"{uri}/weights"), target)
    else:
        _merge(asked, f"{uri}/weights", target)
    with fetched(target.url) as local:
        return {"base": None, "weights_hash": weights_hash(local)}


def _merge(asked: Asked, adapter: str, target: Folder) -> None:
    with fetched(adapter) as local, tempfile.TemporaryDirectory(prefix="cadre-reward-") as temporary:
        merge_adapter(asked.weights, local, f"{temporary}/merged")
        for file in sorted(Path(f"{temporary}/merged").iterdir()):
            target.fs.put_file(str(file), f"{target.path}/{file.name}")


def _hash(info: dict[str, Any]) -> str:
    """Of all that a score depends on."""
    import hashlib

    names = ("format", "rendering", "context", "precision", "tokenizer_hash", "weights_hash", "head", "scale")
    text = json.dumps(plain({name: info[name] for name in names}), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
