"""Episodes by chance, as rows of every table: spawned plays, branches, tools, acts, failures, odd numbers."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from pipeline.traces.episode import Episode
from workflows.trajectory import CREDIT, EPISODES, EVALUATION, REWARDS, TASKS, TURNS, to_json
from workflows.vocabulary import POLICYS_DOING, Act, Event, Status

TEXTS = ("", "Paris", "a\nb\t\x07", "«Ünï» 🙂", '{"x": 1}', "<answer>4</answer>", "\u202eodd", "[1, 2]")
ROLES = ("lead", "helper", "reader")
NUMBERS = (0.0, -1.5, 1e-300, 1e300, 0.1, 2.0, -0.0)
ODD = (*NUMBERS, float("inf"), float("-inf"))


def random_episode(seed: int) -> Episode:
    """An episode whose rows fit their tables: they have gone through Arrow."""
    draw = random.Random(seed)
    task_id = draw.choice(("t1", "gsm:7", "a/b", "zö"))
    group = f"00003/{task_id}"
    sample = draw.randrange(4)
    of: dict[str, Any] = {
        "iteration": 3,
        "block": draw.randrange(2),
        "split": draw.choice((None, "train", "dev")),
        "task_id": task_id,
        "group_id": group,
        "sample": sample,
        "episode_id": f"{group}/{sample}",
    }
    turns = _turns(draw)
    key = {"episode_id": of["episode_id"]}
    scored = draw.random() < 0.7
    return Episode(
        through_arrow([{**of, **_episode(draw, turns)}], EPISODES)[0],
        through_arrow([_task(draw, task_id)], TASKS)[0] if draw.random() < 0.8 else None,
        through_arrow([{**of, **turn} for turn in turns], TURNS),
        _beside(draw, turns, key, REWARDS, _reward) if scored else {},
        _beside(draw, turns, key, CREDIT, _credit) if scored and draw.random() < 0.7 else {},
        through_arrow([{**key, **_evaluation(draw, of)}], EVALUATION)[0] if draw.random() < 0.3 else None,
    )


def through_arrow(rows: list[dict[str, Any]], schema: pa.Schema) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.Table.from_pylist(rows, schema=schema).to_pylist()
    return found


def _turns(draw: random.Random) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    living: list[str] = []
    for index in range(draw.randrange(0, 14)):
        event = draw.choice((Event.LLM, Event.LLM, Event.LLM, Event.TOOL, Event.CONTROL))
        parents = sorted(draw.sample(range(index), min(index, draw.randrange(0, 4))))
        turn: dict[str, Any] = {
            "turn_index": index,
            "step": draw.choice(("plan", "read", "answer", None)),
            "round": draw.randrange(3),
            "branch": draw.choice(("", "", "0", "1", "1.0", None)),
            "parents": parents,
            "event": str(event),
            "status": str(draw.choice((Status.OK, Status.OK, *Status))),
            "status_detail": draw.choice((None, *TEXTS)),
            "policy_version": draw.choice((None, 0, 12)),
            "trainable": draw.choice((True, False, None)),
            "instance": draw.choice((None, None, *living)) if event != Event.TOOL else None,
            "origin": draw.choice((None, "sampled", "copied")),
            "modelled_at": draw.choice((None, *NUMBERS)),
            "metrics": draw.choice((None, [], [{"name": "words", "value": 3.0}])),
            "cut": draw.choice((None, to_json({"passages": {"items": 2}}))),
        }
        turn |= _times(draw)
        if event == Event.LLM:
            turn |= _said(draw)
        elif event == Event.TOOL:
            turn |= {
                "tool": draw.choice(("retriever", None, "web.search")),
                "tool_request": draw.choice((None, '{"q":"a"}', "{}", '["a"]', '{"q": "spaced"}', "no json")),
                "tool_result": draw.choice((None, *TEXTS)),
            }
        if draw.random() < 0.3:
            _act(draw, turn, index, living)
        turns.append(turn)
    return turns


def _act(draw: random.Random, turn: dict[str, Any], index: int, living: list[str]) -> None:
    act = draw.choice(tuple(Act))
    turn["act"] = str(act)
    turn["act_detail"] = draw.choice((None, to_json({"brief": "look"})))
    turn["decided_by"] = draw.choice((None, *range(index)))
    if act == Act.SPAWN:
        name = f"helper-{len(living)}"
        turn |= {"event": str(Event.CONTROL), "instance": name, "recipients": [name]}
        living.append(name)
    elif act in (Act.MESSAGE, Act.DELEGATE):
        turn["recipients"] = draw.sample([*living, "lead"], min(len(living) + 1, 2))
    if draw.random() < 0.3:
        turn["option_logprobs"] = [
            {"name": "stop", "value": -0.1},
            {"name": "continue", "value": -float("inf")},
        ]


def _said(draw: random.Random) -> dict[str, Any]:
    ids = [draw.randrange(50000) for _ in range(draw.randrange(0, 5))]
    chat = [{"role": draw.choice(("system", "user", "tool")), "content": draw.choice(TEXTS)}]
    chat += [
        {"role": "assistant", "content": "earlier"},
        {"role": "user", "content": "again"},
    ] * draw.randrange(2)
    logprobs = [draw.choice((*NUMBERS, -float("inf"))) for _ in ids]
    odd = ('[{"role":"user","content":"not sorted"}]', "no chat", '[{"content":[1],"role":"user"}]')
    told = draw.random() < 0.7
    return {
        "role": draw.choice((*ROLES, None)),
        "model_id": draw.choice(("team", "lead", None)),
        "base_id": "team",
        "messages": draw.choice((None, to_json(chat), to_json(chat), to_json(chat), *odd)),
        "response_text": draw.choice((None, *TEXTS)),
        "parsed": draw.choice((None, '"Paris"', "4", "null")),
        "format_valid": draw.choice((None, True, False)),
        "prompt_token_ids": [1, 2] if told else None,
        "response_token_ids": ids if told else None,
        "behaviour_logprobs": draw.choice((logprobs, logprobs, [-0.5], None)) if told else None,
        "sampling": draw.choice((None, '{"temperature":1.0}', "{}")),
        "num_prompt_tokens": draw.choice((None, 2)),
        "num_response_tokens": len(ids),
        "num_cached_tokens": draw.choice((None, 1)),
        "context_hash": draw.choice((None, "ab" * 8)),
        "finish_reason": draw.choice((None, "stop", "length")),
    }


def _times(draw: random.Random) -> dict[str, Any]:
    if draw.random() < 0.2:
        return {}
    begun = draw.random() * 10
    return {"queued_at": begun, "started_at": begun + 0.1, "ended_at": draw.choice((None, begun + 1.0))}


def _episode(draw: random.Random, turns: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "status": str(draw.choice((Status.OK, *Status))),
        "error": draw.choice((None, *TEXTS)),
        "stop_reason": draw.choice((None, "finished", "call_failed")),
        "num_turns": len(turns),
        "num_prompt_tokens": draw.choice((None, 7)),
        "started_at": draw.choice((None, 0.0, 1_790_000_000.25)),
        "seconds": draw.choice((None, 0.0, 3.5)),
        "modelled_seconds": draw.choice((None, 2.5)),
        "num_copied_tokens": draw.choice((None, 0, 4)),
    }


def _task(draw: random.Random, task_id: str) -> dict[str, Any]:
    return {
        "task_id": task_id,
        "split": "train",
        "source": "drawn",
        "inputs": draw.choice((None, to_json({"question": "Why?"}))),
        "gold": draw.choice((None, to_json({"answers": ["4"]}))),
        "row_hash": "0" * 8,
    }


def _evaluation(draw: random.Random, of: dict[str, Any]) -> dict[str, Any]:
    values = [{"name": "f1", "value": draw.choice((None, *ODD))}]
    same = {name: of[name] for name in ("task_id", "sample")}
    return {
        **same,
        "status": str(Status.OK),
        "failed": draw.choice((None, "judge: said «no»")),
        "values": values,
    }


def _beside(
    draw: random.Random, turns: list[dict[str, Any]], key: dict[str, Any], schema: pa.Schema, make: Any
) -> dict[int, dict[str, Any]]:
    rows = [{**key, "turn_index": turn["turn_index"], **make(draw, turn)} for turn in turns]
    return {row["turn_index"]: row for row in through_arrow(rows, schema)}


def _reward(draw: random.Random, turn: dict[str, Any]) -> dict[str, Any]:
    if turn["event"] != Event.LLM or turn["status"] not in POLICYS_DOING:
        return {"no_reward_reason": "not an llm turn"}
    parts = [{"name": "f1", "value": draw.choice((None, *NUMBERS))}]
    return {"reward": draw.choice((0.0, 0.5, 1.0)), "reward_parts": draw.choice((parts, [], None))}


def _credit(draw: random.Random, turn: dict[str, Any]) -> dict[str, Any]:
    if draw.random() < 0.3:
        return {"excluded": "truncated: after 4 tokens"}
    channels = [{"name": "message", "value": draw.choice(ODD)}, {"name": "turn", "value": None}]
    return {"return": 0.5, "advantage": draw.choice(NUMBERS), "channels": draw.choice((None, [], channels))}
