"""Strict validation of a corpus of traces: events per second, and a peak memory that does not grow with it.

The corpus is made here: orchestrations of a lead and helpers that search, with texts beside their events, in
lines of some twenty events. Asked for by name; CADRE_EVENTS says how many events (default 1,000,000).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.measure import Figure, Options

EVENTS: Final = int(os.environ.get("CADRE_EVENTS", "1000000"))
SLOWER_AT_MOST: Final = 8.0  # than reading the same lines as JSON and no more
MORE_MEMORY_AT_MOST: Final = 1.5  # than for a tenth of the corpus
# a process of its own, whose peak is that of nothing else; prints seconds and MiB
_JUDGE: Final = """
import json, resource, sys, time
from pipeline.traces.corpus import validate
began = time.perf_counter()
verdict = validate([sys.argv[1]])
seconds = time.perf_counter() - began
assert verdict.refused == 0, verdict.examples[:3]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
began = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    for line in file:
        json.loads(line)
reading = time.perf_counter() - began
print(json.dumps({"events": verdict.events, "seconds": seconds, "reading": reading, "peak": peak}))
"""


def run(options: Options, say: Callable[[str], None]) -> list[Figure]:
    folder = Path(options.folder)
    whole, tenth = folder / "whole.jsonl", folder / "tenth.jsonl"
    for file, events in ((whole, EVENTS), (tenth, EVENTS // 10)):
        made = write_corpus(file, events)
        say(f"{file.name}: {made:,} events, {file.stat().st_size / 2**20:.0f} MiB")
    pairs = [(_judge(whole), _judge(tenth)) for _ in range(max(1, options.pairs))]
    for ours, small in pairs:
        rate = ours["events"] / ours["seconds"]
        say(f"{rate:,.0f} events/s, peak {ours['peak']:.0f} MiB (of a tenth: {small['peak']:.0f} MiB)")
    rates = tuple(1e6 * ours["seconds"] / ours["events"] for ours, _ in pairs)
    reading = tuple(1e6 * ours["reading"] / ours["events"] for ours, _ in pairs)
    peaks = tuple(ours["peak"] for ours, _ in pairs)
    small_peaks = tuple(small["peak"] for _, small in pairs)
    settings = {"events": EVENTS}
    return [
        Figure(
            "traces validated",
            "µs/event",
            rates,
            reading,
            SLOWER_AT_MOST,
            "most",
            "json.loads of the lines",
            settings=settings,
        ),
        Figure(
            "traces, peak memory",
            "MiB",
            peaks,
            small_peaks,
            MORE_MEMORY_AT_MOST,
            "most",
            "a tenth of the corpus",
            settings=settings,
        ),
    ]


def write_corpus(file: Path, events: int) -> int:
    """Write traces until there are so many events; how many there are."""
    draw, made, number = random.Random(0), 0, 0
    with file.open("w", encoding="utf-8") as opened:
        while made < events:
            trace = made_trace(draw, number)
            opened.write(json.dumps(trace) + "\n")
            made += len(trace["events"])
            number += 1
    return made


def made_trace(draw: random.Random, number: int) -> dict[str, Any]:
    """A lead that spawns one to four helpers, each of which searches and returns, and then answers."""
    events: list[dict[str, Any]] = []
    edges: list[dict[str, str]] = []

    def add(kind: str, agent: str, after: str | None, edge: str = "causal", **more: Any) -> str:
        name, t = f"e{len(events)}", float(len(events))
        text = {"text": "word " * draw.randrange(5, 40)}
        events.append({"id": name, "t": t, "type": kind, "agent": agent, "x_mas": text, **more})
        if after is not None:
            edges.append({"src": after, "dst": name, "type": edge})
        return name

    start = add("orchestrator_decision", "lead", None)
    ends = []
    for k in range(draw.randrange(1, 5)):
        helper = f"helper{k}"
        spawn = add("spawn", "lead", start, "spawn", to=helper)
        call = add("tool_call", helper, spawn, tool="search")
        result = add("tool_result", "search", call, "tool_dependency", tool="search", trusted=False)
        back = {"from": helper, "to": "lead"}
        ends.append((helper, add("return", helper, result, **back)))
    answer = add("aggregate", "lead", None)
    edges += [{"src": end, "dst": answer, "type": "aggregate"} for _, end in ends]
    for helper, _ in ends:
        add("despawn", "lead", answer, to=helper)
    calls = sum(event["type"] == "tool_call" for event in events)
    return {
        "trace_id": f"trace-{number}",
        "task_id": f"task-{number // 4}",
        "events": events,
        "edges": edges,
        "rewards": {"team": draw.random()},
        "costs": {"tokens": 100, "wall_clock_s": float(len(events)), "tool_calls": calls},
    }


def _judge(file: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", _JUDGE, str(file)], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found
