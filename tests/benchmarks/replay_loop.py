"""The peer of replays: the same rewards and credit by a plain Python loop over rows, as scripts have it."""

from __future__ import annotations

import json
import re
import string
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.peer import serve

NEEDED = ["episode_id", "turn_index", "group_id", "step", "round", "event", "trainable", "role", "status"]
NEEDED += ["parsed", "response_text"]
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = set(string.punctuation)


def prepare(arguments: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Answer requests to go through one stored run."""
    folder = Path(arguments["folder"])

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        iteration = folder / "runs" / request["size"] / "iterations" / "00000"
        out = folder / "loop"
        out.mkdir(exist_ok=True)
        columns = NEEDED if request["columns"] == "needed" else None
        started = time.monotonic()
        rows, returns, advantages = 0, 0.0, 0.0
        for part in sorted((iteration / "rollout" / "turns").glob("part-*.parquet")):
            scored = go_through(iteration, part.name, columns, out)
            rows += scored[0]
            returns += scored[1]
            advantages += scored[2]
        seconds = time.monotonic() - started
        return {
            "rows_per_second": rows / seconds,
            "seconds": seconds,
            "rows": rows,
            "return": returns,
            "advantage": advantages,
        }

    return handle


def go_through(iteration: Path, name: str, columns: list[str] | None, out: Path) -> tuple[int, float, float]:
    """One part: rewards, advantages, two files. Rows, and the sums of returns and of |advantages|."""
    tasks = {row["task_id"]: row for row in pq.read_table(iteration / "tasks" / name).to_pylist()}
    episodes = pq.read_table(iteration / "rollout" / "episodes" / name).to_pylist()
    turns = defaultdict(list)
    for row in pq.read_table(iteration / "rollout" / "turns" / name, columns=columns).to_pylist():
        turns[row["episode_id"]].append(row)
    rewards, groups = [], defaultdict(lambda: defaultdict(list))
    for episode in episodes:
        golds = json.loads(tasks[episode["task_id"]]["gold"])["answers"]
        its_turns = sorted(turns[episode["episode_id"]], key=lambda row: row["turn_index"])
        usable = episode["status"] not in ("infra_error", "timeout", "cancelled")
        values = by_round(its_turns, golds) if usable else [None] * len(its_turns)
        for row, value in zip(its_turns, values, strict=True):
            key = {"episode_id": row["episode_id"], "turn_index": row["turn_index"]}
            rewards.append(key | {"reward": value})
            if value is not None:
                groups[row["group_id"], row["role"]][row["episode_id"]].append((key, value))
    credit, returns, advantages = [], 0.0, 0.0
    for of_group in groups.values():
        baseline = fmean(fmean(v for _, v in of_episode) for of_episode in of_group.values())
        alone = len(of_group) == 1
        for of_episode in of_group.values():
            for key, value in of_episode:
                advantage = 0.0 if alone else value - baseline
                credit.append(key | {"return": value, "advantage": advantage})
                returns += value
                advantages += abs(advantage)
    pq.write_table(pa.Table.from_pylist(rewards), out / f"rewards-{name}", compression="zstd")
    pq.write_table(pa.Table.from_pylist(credit), out / f"credit-{name}", compression="zstd")
    return len(rewards), returns, advantages


def by_round(turns: list[dict[str, Any]], golds: list[str]) -> list[float | None]:
    """F1 of the plan and of each answer; the others get what the next answer gained."""
    for turn in turns:
        turn["parsed"] = json.loads(turn["parsed"]) if turn["parsed"] is not None else None
    answers = {t["round"]: best_f1(t["parsed"], golds) for t in turns if t["step"] == "answer"}
    values: list[float | None] = []
    for turn in turns:
        if turn["event"] != "llm" or not turn["trainable"]:
            values.append(None)
        elif turn["step"] == "plan":
            values.append(best_f1(turn["parsed"]["answer"], golds))
        elif turn["step"] == "answer":
            values.append(answers[turn["round"]])
        else:
            values.append(answers[turn["round"] + 1] - answers[turn["round"]])
    return values


def best_f1(prediction: str, golds: list[str]) -> float:
    return max(f1(prediction, gold) for gold in golds)


def f1(prediction: str, gold: str) -> float:
    one, other = words(prediction), words(gold)
    common = sum((Counter(one) & Counter(other)).values())
    if not common:
        return 0.0
    precision, recall = common / len(one), common / len(other)
    return 2 * precision * recall / (precision + recall)


def words(text: str) -> list[str]:
    """The published normaliser of SQuAD and HotpotQA."""
    text = "".join(c for c in text.lower() if c not in PUNCTUATION)
    return ARTICLES.sub(" ", text).split()


if __name__ == "__main__":
    serve(prepare)
