"""Scoring 100,000 turns against a plain loop of the published script, on one core, twice over.

`grader`: answers and golds as Python lists, F1 as a list. `reward path`: parts of a run's tables in, parts of
the rewards table out. There ours also joins by key, asks a reward as a plug-in, checks what it gives and says
why a turn has none; the loop reads the columns that it needs, decodes them and grades. The loop is what a
person writes by hand: both texts normalised, words counted, the best of the golds. Caches are emptied before
every pair.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import re
import string
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rewards.grading import qa
from rewards.scoring.joined import EPISODES_SEEN, TASKS_SEEN, TURNS_SEEN
from rewards.scoring.score import score_turns
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from rewards.token_f1 import TokenF1
from tests.benchmarks.measure import Figure, Options, column, interleave, noise_of
from workflows.data.tasks import load_tasks

NUM_TURNS = 100_000
GROUP_SIZE = 8
_MODES: tuple[qa.Mode, ...] = ("strict", "official_hotpot")

PART_TURNS = 512  # of one part: 64 tasks

Pair = tuple[str, list[str]]
Tables = tuple[pa.Table, pa.Table, pa.Table]


def run(options: Options, say: Callable[[str], None]) -> list[Figure]:
    figures = []
    for mode in _MODES:
        rewards = WeightedRewards((WeightedReward("token_f1", 1.0, TokenF1(mode=mode)),))

        def reward_path(pair: int, rewards: WeightedRewards = rewards) -> dict[str, float]:
            parts = as_parts(pair)
            return _timed(lambda: [score_turns(*part, rewards) for part in parts])

        def grader(pair: int, mode: qa.Mode = mode) -> dict[str, float]:
            pairs = answers(pair)
            return _timed(lambda: [qa.f1(prediction, golds, mode) for prediction, golds in pairs])

        def plain(pair: int) -> dict[str, float]:
            pairs = answers(pair)
            return _timed(lambda: [official_f1(prediction, golds) for prediction, golds in pairs])

        def plain_tables(pair: int) -> dict[str, float]:
            parts = as_parts(pair)
            return _timed(lambda: [official_loop(tasks, turns) for tasks, turns, _ in parts])

        _agree(mode)
        for name, ours, theirs in (("grader", grader, plain), ("reward path", reward_path, plain_tables)):
            say(f"{name}, {mode}")
            mine, others = interleave(ours, theirs, options.pairs, say)
            notes = [noise_of(mine, others)]
            if name == "reward path":
                notes.append(_memory(mode, Path(options.folder)))
            figures.append(
                Figure(
                    name=f"{name}, {mode}",
                    unit="answers/s",
                    ours=column(mine, "per_second"),
                    theirs=column(others, "per_second"),
                    goal=1.0 if name == "grader" else 0.4,
                    at="least",
                    against="plain loop of the official script",
                    notes=tuple(notes),
                    settings={"turns": NUM_TURNS, "group_size": GROUP_SIZE, "mode": mode},
                )
            )
    return figures


@lru_cache(maxsize=1)
def as_parts(seed: int) -> list[Tables]:
    """The answers of a seed as parts of tables, as a run has them."""
    pairs = answers(seed)
    return [as_tables(pairs[start : start + PART_TURNS]) for start in range(0, NUM_TURNS, PART_TURNS)]


@lru_cache(maxsize=1)
def answers(seed: int, number: int = NUM_TURNS) -> list[Pair]:
    """Predictions of all qualities, in groups of one task each: right, wordy, near, wrong, malformed."""
    draw = random.Random(seed)
    golds = [json.loads(gold)["answers"] for gold in load_tasks("facts").tasks["gold"].to_pylist()]
    words = sorted({word for group in golds for gold in group for word in gold.split()})
    found: list[Pair] = []
    while len(found) < number:
        its = draw.choice(golds)
        for _ in range(GROUP_SIZE):
            right = draw.choice(its)
            few = " ".join(draw.choices(words, k=draw.randint(1, 6)))
            forms = [
                right,
                f"The answer is {right}.",
                f"{right} and {few}",
                few,
                f"<answer>{few} {right}",
                "yes",
            ]
            found.append((draw.choice(forms), its))
    return found[:number]


def as_tables(pairs: list[Pair]) -> Tables:
    """The same as tables of a run: `GROUP_SIZE` episodes a task, one turn an episode."""
    tasks, turns, episodes = [], [], []
    for number, (prediction, golds) in enumerate(pairs):
        task_id, sample = f"task-{number // GROUP_SIZE:06d}", number % GROUP_SIZE
        if sample == 0:
            gold = {"inputs": '{"question": "?"}', "gold": json.dumps({"answers": golds})}
            tasks.append(_blank(TASKS_SEEN) | {"task_id": task_id} | gold)
        episode_id = f"00000/{task_id}/{sample}"
        key = {"episode_id": episode_id, "status": "ok"}
        episodes.append(_blank(EPISODES_SEEN) | key | {"task_id": task_id})
        said = {"response_text": prediction, "parsed": json.dumps(prediction), "format_valid": True}
        what = {"step": "answer", "event": "llm", "trainable": True, "turn_index": 0}
        turns.append(_blank(TURNS_SEEN) | key | what | said)
    return (
        pa.Table.from_pylist(tasks, TASKS_SEEN),
        pa.Table.from_pylist(turns, TURNS_SEEN),
        pa.Table.from_pylist(episodes, EPISODES_SEEN),
    )


def _blank(schema: pa.Schema) -> dict[str, Any]:
    return dict.fromkeys(schema.names)


def official_loop(tasks: pa.Table, turns: pa.Table) -> list[float]:
    """F1 of every turn of a table."""
    golds = {row["task_id"]: json.loads(row["gold"])["answers"] for row in tasks.to_pylist()}
    rows = turns.select(["episode_id", "parsed"]).to_pylist()
    return [official_f1(json.loads(row["parsed"]), golds[row["episode_id"].split("/")[1]]) for row in rows]


def official_f1(prediction: str, golds: list[str]) -> float:
    """The published arithmetic, written as plainly as the script has it."""
    return max(_official_pair(prediction, gold) for gold in golds)


def _official_pair(prediction: str, gold: str) -> float:
    one, other = _normalised(prediction), _normalised(gold)
    closed = ("yes", "no", "noanswer")
    if one != other and (one in closed or other in closed):
        return 0.0
    predicted, wanted = one.split(), other.split()
    same = sum((Counter(predicted) & Counter(wanted)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted), same / len(wanted)
    return (2 * precision * recall) / (precision + recall)


def _normalised(text: str) -> str:
    punctuation = set(string.punctuation)
    text = "".join(character for character in text.lower() if character not in punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _timed(work: Callable[[], Any]) -> dict[str, float]:
    qa._tokens.cache_clear()
    started = time.monotonic()
    work()
    seconds = time.monotonic() - started
    return {"per_second": NUM_TURNS / seconds, "seconds": seconds}


def _agree(mode: qa.Mode) -> None:
    """What is compared must compute the same, where both are official."""
    pairs = answers(0, 2000)
    rewards = WeightedRewards((WeightedReward("token_f1", 1.0, TokenF1(mode=mode)),))
    scored = score_turns(*as_tables(pairs), rewards)["reward"].to_pylist()
    if mode == "official_hotpot" and scored != [official_f1(*pair) for pair in pairs]:
        raise AssertionError("the reward path and the official script disagree")


def _memory(mode: qa.Mode, folder: Path) -> str:
    tables = as_tables(answers(1))
    paths = [str(folder / f"{name}.parquet") for name in ("tasks", "turns", "episodes")]
    for table, path in zip(tables, paths, strict=True):
        pq.write_table(table, path)
    size = sum(table.nbytes for table in tables) / 2**20
    context = multiprocessing.get_context("spawn")
    peaks = {}
    for who, its_mode in (("nothing", None), ("ours", mode), ("loop", "loop")):
        with context.Pool(1) as process:
            peaks[who] = process.apply(_peak_mib, (its_mode, paths))
    return (
        f"peak memory for all {NUM_TURNS:,} turns as one part, tables ({size:.0f} MiB) and imports "
        f"({peaks['nothing']:.0f} MiB with them) included: ours {peaks['ours']:.0f} MiB, the loop "
        f"{peaks['loop']:.0f} MiB"
    )


def _peak_mib(mode: Any, paths: list[str]) -> float:
    """Peak resident memory of this process after the work of a mode, or after reading alone."""
    tables = [pq.read_table(path) for path in paths]
    if mode == "loop":
        official_loop(*tables[:2])
    elif mode:
        score_turns(*tables, WeightedRewards((WeightedReward("token_f1", 1.0, TokenF1(mode=mode)),)))
    # not ru_maxrss: a started process inherits that of its parent
    peak = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak[1]) / 1024 if peak else float("nan")
