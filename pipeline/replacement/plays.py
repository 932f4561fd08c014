"""Plays of a team on tasks that train nobody, and a newcomer's replies to stored contexts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pipeline.replacement.contexts import Contexts
from pipeline.replacement.gate import scores_of
from pipeline.replacement.ladder import Rung, format_rung
from pipeline.replacement.team import Team
from pipeline.run.execution import run_stages
from pipeline.run.fleet import Checkpoints, Fleet
from pipeline.store.folder import Folder
from pipeline.store.place import IterationStore
from stages.base import Progress
from workflows.engine import Engine, Sampling
from workflows.errors import InfraError
from workflows.parsers import read_reply
from workflows.trajectory import seed_for

AT_ONCE: Final = 32  # replies that are asked for at the same time
ATTEMPTS: Final = 3


@contextmanager
def fleet_of(
    team: Team, checkpoints: Checkpoints, versions: Mapping[str, int], progress: Progress
) -> Iterator[Fleet]:
    """Engines and players of a team at these versions, without trainers. Version 0 is a model's own
    checkpoint."""
    plan = team.plan
    fleet = Fleet(
        checkpoints=checkpoints,
        models=plan.models,
        engine_specs=plan.engine_specs,
        trainer_specs={},
        player_specs={"train": plan.player_spec},
        num_players=plan.resolved.rollout.players,
        checkpoint_every=1,
        version_of=dict(versions).__getitem__,
        redo=lambda model_id, version: [],
        progress=progress,
        limits=plan.resolved.cluster.limits,
    )
    try:
        yield fleet
    finally:
        fleet.close()


def played(
    team: Team, fleet: Fleet, folder: Folder, label: str, index: int, progress: Progress
) -> dict[str, float]:
    """The score of each task of the probe, at the weights that the fleet has; loaded where they are there.

    Every call with the same `index` samples with the same seeds, so that teams are compared in pairs.

    Args:
        folder: of the replacement.
        label: of these plays.
        index: the finished iterations of the parent.
    """
    evaluation = team.evaluation
    fleet.player_specs["evaluate"] = evaluation.player_spec
    place = IterationStore(folder.child(f"plays/{label}"), index)
    done = run_stages(
        evaluation.stages,
        place,
        evaluation.fingerprints,
        what=f"the plays {label!r} of the replacement in {folder.url}",
        progress=progress,
        fleet=fleet.lend("evaluate"),
        remedy="replace under another --name",
    )
    return scores_of(done.tables["evaluation"].read().to_pylist(), evaluation.best)


def answered(
    team: Team, fleet: Fleet, model: str, contexts: Contexts, count: int, least: float, is_taught: bool
) -> Rung:
    """The newcomer's own replies to stored contexts, parsed as their roles parse them.

    Raises:
        InfraError: the engine failed.
    """
    rows = contexts.rows[:count]
    client = fleet.client(model)
    texts = asyncio.run(_replies(client, rows, team.plan.resolved.run.seed))
    verdicts = [_parses(team, row["role"], text) for row, text in zip(rows, texts, strict=True)]
    judged = [v for v in verdicts if v is not None]
    known = [row["format_valid"] for row in rows if row["format_valid"] is not None]
    before = sum(known) / len(known) if known else None
    return format_rung(sum(judged), len(judged), len(rows), before, least, is_taught)


async def _replies(client: Any, rows: Sequence[Mapping[str, Any]], seed: int) -> list[str]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(row: Mapping[str, Any]) -> str:
        async with slots:
            return await _reply(client, row, seed_for(seed, "replace", row["episode_id"], row["turn_index"]))

    return list(await asyncio.gather(*(one(row) for row in rows)))


async def _reply(client: Engine, row: Mapping[str, Any], seed: int) -> str:
    prompt = client.render(json.loads(row["messages"]))
    stored = json.loads(row["sampling"])
    names = ("max_tokens", "temperature", "top_p", "top_k", "min_p")
    values = {name: stored[name] for name in names if stored.get(name) is not None}
    room = client.max_model_len - len(prompt)
    if room < 1:
        return ""  # a context that does not fit has no reply
    values["max_tokens"] = min(values["max_tokens"], room)
    sampling = Sampling(**values, stop=tuple(stored.get("stop") or ()), seed=seed)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return (await client.generate(prompt, sampling)).text
        except InfraError:
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def _parses(team: Team, role: str, text: str) -> bool | None:
    """Whether the reply parses; None where the parser needs the variables of the prompt, which are gone."""
    try:
        return bool(read_reply(team.plan.workflow.roles[role].parser, text, {}).valid)
    except Exception:  # a parser may ask any variable for anything
        return None
