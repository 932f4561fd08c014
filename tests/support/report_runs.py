"""Small runs on disk, as a pipeline leaves them, made without Ray: for tests of who reads them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.store.manifest import Manifest
from pipeline.store.place import IterationStore
from pipeline.store.run import Run
from stages.base import Account
from stages.tables.parquet import TableSink
from tests.support.tables import named_values
from workflows.draw import drawing
from workflows.playing.columns import context_hash
from workflows.teams.qa_decompose import build
from workflows.testing import ScriptedModel
from workflows.trajectory import rows_to_table, schema_of, to_json

Row = dict[str, Any]
PLACES = {
    "tasks": ("tasks", ""),
    "turns": ("rollout", "turns"),
    "episodes": ("rollout", "episodes"),
    "rewards": ("rewards", ""),
    "credit": ("credit", ""),
    "scores/team": ("scores/team", ""),
    "updates/team": ("updates/team", "steps"),
    "evaluation": ("evaluation", ""),
    "stop_curve": ("stops", ""),
    "interventions": ("interventions", ""),
}
MODEL = ScriptedModel(lambda messages, sampling: "")
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Capital of France?"}]


def store(place: IterationStore, tables: Mapping[str, Sequence[Sequence[Row]]], done: bool = True) -> None:
    """Write `tables` (name → parts → rows) with their manifests."""
    written: dict[str, dict[str, Any]] = {}
    for name, parts in tables.items():
        folder, inner = PLACES[name]
        schema = schema_of(name)
        sink = TableSink(name, "/".join(p for p in (place.folder.url, folder, inner) if p), schema)
        of_block = {"block": place.block} if "block" in schema.names else {}
        files = [
            sink.write_part(k, rows_to_table([of_block | row for row in rows], schema))
            for k, rows in enumerate(parts)
        ]
        written.setdefault(folder, {})[name] = files
    for number, (folder, its) in enumerate(written.items()):
        accounts = [Account("turns to rewards", "turn", 6, 4, {"not an llm turn": 2})]
        manifest = Manifest(
            stage=folder,
            iteration=place.index,
            fingerprint={},
            inputs={},
            tables=its,
            places={name: PLACES[name][1] for name in its},
            accounts=accounts if folder == "rewards" else [],
            metrics={},
            notes=["a note <b>"] if folder == "rewards" else [],
            seconds=1.0,
            finished_at=float(number),
            block=place.block,
        )
        place.folder.write_text(f"{folder}/manifest.json", manifest.to_json())
    if done:
        place.folder.write_text("done.json", "{}")


def new_run(root: str, name: str = "demo") -> Run:
    run = Run(root, name)
    run.write_info(name=name, created_at=0.0, used_at=0.0, regime="full", graph=drawing(build()))
    run.folder.write_text("settings.toml", '[run]\nname = "demo"\n[models.team]\ncheckpoint = "none"\n')
    return run


def spoken(text: str, chat: str | None = None) -> Row:
    """The columns of a turn that says `text`, its tokens those of the scripted model; `chat` is JSON."""
    ids, prompt = MODEL.encode(text)[:400], MODEL.render(MESSAGES)  # type: ignore[arg-type]
    chat = to_json(MESSAGES) if chat is None else chat
    luck = random.Random(len(text))
    return {
        "event": "llm",
        "model_id": "team",
        "policy_version": 2,
        "trainable": True,
        "messages": chat,
        "prompt_token_ids": prompt,
        "response_token_ids": ids,
        "behaviour_logprobs": [-luck.random() for _ in ids],
        "num_prompt_tokens": len(prompt),
        "num_response_tokens": len(ids),
        "context_hash": context_hash(MODEL.tokenizer_hash, chat, prompt),
        "response_text": text,
    }


def team_episode(
    number: int, score: float, text: str = "Paris", index: int = 0, **task: Any
) -> dict[str, list[Row]]:
    """Rows of every table for one episode: a trunk, two branches in parallel, an answer that says `text`.

    Two episodes in a row are of one group. The second reader is truncated and not trained on.
    """
    group, sample = divmod(number, 2)
    group_id = f"{index:05d}/t{group}"
    ids = {"episode_id": f"{group_id}/{sample}"}
    keys = {"iteration": index, "task_id": f"t{group}", "group_id": group_id, "sample": sample, **ids}
    turns = [
        {"step": "decompose", "role": "decomposer", **spoken("two parts"), "parents": []},
        tool("retrieve", "0", {"query": "capital"}, 0),
        tool("retrieve", "1", {"query": f"founder {number}"}, 0),
        {"step": "read", "role": "reader", "branch": "0", **spoken("read zero"), "parents": [1]},
        {"step": "read", "role": "reader", "branch": "1", **spoken("read one"), "parents": [2]},
        {"step": "answer", "role": "answerer", **spoken(text), "parents": [0, 3, 4]},
    ]
    turns[4] |= {
        "status": "truncated",
        "status_detail": "stopped at the limit",
        "cut": to_json({"passages": {"items": 3}}),
    }
    turns[5] |= {"parsed": to_json(text)}
    for k, turn in enumerate(turns):
        times = {"queued_at": k / 4, "started_at": k / 4 + 0.05, "ended_at": k / 4 + 0.5}
        turns[k] = {"status": "ok", **keys, "turn_index": k, **times, **turn}
    llm, trained = (0, 3, 4, 5), (0, 3, 5)
    rewards = [
        {**ids, "turn_index": k, "reward": score, "reward_parts": named_values({"f1": score})} for k in llm
    ] + [{**ids, "turn_index": k, "reward_parts": [], "no_reward_reason": "not an llm turn"} for k in (1, 2)]
    credit = [{**ids, "turn_index": k, "return": score, "advantage": score - 0.5} for k in trained]
    credit += [{**ids, "turn_index": 4, "excluded": "truncated"}]
    credit += [{**ids, "turn_index": k, "excluded": "not an llm turn"} for k in (1, 2)]
    scores = [
        {**ids, "turn_index": k, "old_logprobs": [v - 0.1 for v in turns[k]["behaviour_logprobs"]]}
        for k in trained
    ]
    inputs = to_json({"question": f"Capital of country {group}?"})
    return {
        "tasks": [{"task_id": f"t{group}", "inputs": inputs, "gold": to_json({"answers": ["Paris"]}), **task}]
        * (sample == 0),
        "turns": turns,
        "episodes": [
            {
                **keys,
                "status": "ok",
                "stop_reason": "finished",
                "num_turns": 6,
                "num_response_tokens": 9,
                "seconds": 1.8,
            }
        ],
        "rewards": rewards,
        "credit": credit,
        "scores/team": scores,
    }


def tool(step: str, branch: str, request: Any, parent: int) -> Row:
    result = [{"id": "p1", "title": "France", "text": "Paris is its capital."}]
    return {
        "event": "tool",
        "step": step,
        "tool": "retriever",
        "branch": branch,
        "tool_request": to_json(request),
        "tool_result": to_json(result),
        "parents": [parent],
    }


def spawned_episode(number: int = 0) -> dict[str, list[Row]]:
    """Rows of an episode of a lead that spawns two helpers, which answer side by side, and then answers."""
    rows = team_episode(number, 1.0)
    keys = {k: rows["turns"][0][k] for k in ("iteration", "task_id", "group_id", "sample", "episode_id")}
    control = {"event": "control", "status": "ok", "role": "lead"}
    helpers = ("helper/0", "helper/1")
    turns: list[Row] = [{"step": "lead", "role": "lead", **spoken("two parts"), "parents": []}]
    for name in helpers:
        act = {"step": "spawn", "act": "spawn", "parents": [0], "decided_by": 0, "recipients": [name]}
        turns.append({**control, **act, "act_detail": to_json({"instance": name, "depth": 1})})
    for k, name in enumerate(helpers):
        said = spoken("a reply that is longer than the other one" if k else "short")
        turns.append({"step": "help", "role": "helper", "instance": name, **said, "parents": [1 + k]})
    for k, name in enumerate(helpers):
        back = {"step": "return", "act": "return", "parents": [3 + k], "decided_by": 3 + k}
        turns.append({**control, **back, "role": "helper", "instance": name, "recipients": ["trunk"]})
    turns.append({"step": "lead", "role": "lead", **spoken("Paris"), "parents": [0, 5, 6]})
    stamped = [
        {"status": "ok", **keys, "turn_index": k, "started_at": k / 4, "ended_at": k / 4 + 0.2, **turn}
        for k, turn in enumerate(turns)
    ]
    beside = {"episode_id": keys["episode_id"]}
    llm = [k for k, turn in enumerate(turns) if turn["event"] == "llm"]
    channels = named_values({"team": 0.5, "message": -0.25})
    credit = [{**beside, "turn_index": k, "excluded": "not an llm turn"} for k in range(8) if k not in llm]
    credit += [
        {**beside, "turn_index": k, "return": 1.0, "advantage": 0.25, "channels": channels} for k in llm
    ]
    rewards = [{**beside, "turn_index": k, "reward": 1.0 if k in llm else None} for k in range(8)]
    return {
        **{name: rows[name] for name in ("tasks", "episodes")},
        "turns": stamped,
        "rewards": rewards,
        "credit": credit,
    }


def in_parts(episodes: Iterable[dict[str, list[Row]]], size: int = 4) -> dict[str, list[list[Row]]]:
    """Episodes as parts of `size`, the first of them empty."""
    episodes = list(episodes)
    chunks = [episodes[i : i + size] for i in range(0, len(episodes), size)]
    names = list(episodes[0])
    return {name: [[], *([row for e in chunk for row in e[name]] for chunk in chunks)] for name in names}
