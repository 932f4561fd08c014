"""Replay of stored turns: against a plain Python loop, and whether time and memory grow with their number.

Ours is what `run replay` does after Ray is up: files checked, turns read, F1 by round, group-relative
credit, both tables written with their manifests. The loop does the same work in one process the way a
script would: a part's rows as dicts, F1 with the published normaliser, means in dicts, two Parquet files.
Both must give the same returns and advantages, or there is no figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.measure import Figure, Options, Results, column, interleave, noise_of, told
from tests.benchmarks.peer import Peer, peer
from tests.support.stored_runs import settings_of

SIZES = {"10k": 10_000, "100k": 100_000, "1M": 1_000_000}
PROMPT_TOKENS, RESPONSE_TOKENS = 240, 48  # as the other benchmarks' plays have
DRIVER, LOOP = "tests.benchmarks.replay_driver", "tests.benchmarks.replay_loop"
VARIANTS = """
[variants.f1_by_round]

[variants.rloo]
"credit.use" = "rloo"

[variants.to_go]
"credit.options" = { by = "task_role", returns = "to_go" }

[variants.outcome]
rewards = [{ use = "token_f1" }, { use = "format", weight = 0.2 }]
"""

Say = Callable[[str], None]


def run(options: Options, say: Say) -> list[Figure]:
    folder = Path(options.folder)
    (folder / "four.toml").write_text(VARIANTS)
    arguments = {"folder": str(folder), "sizes": SIZES, "tokens": [PROMPT_TOKENS, RESPONSE_TOKENS]}
    with peer(DRIVER, arguments, folder / "driver.log") as driver:
        written = driver.ask(do="write")
        say(f"stored runs: {', '.join(f'{n} {c:,} turns' for n, c in written.items())}")
        speed = _speed(driver, arguments, options.pairs, say)
        growth = _growth(driver, options.pairs, say)
        ablation = _ablation(driver, options.pairs, say)
    return [speed, growth, _memory(arguments, say), ablation]


def _speed(driver: Peer, arguments: dict[str, Any], pairs: int, say: Say) -> Figure:
    with peer(LOOP, arguments, Path(arguments["folder"]) / "loop.log") as loop:
        mine, theirs = interleave(
            lambda pair: driver.ask(do="replay", size="100k", label=f"speed-{pair}"),
            lambda pair: loop.ask(size="100k", columns="all"),
            pairs,
            say,
        )
        narrow = [loop.ask(size="100k", columns="needed") for _ in range(min(pairs, 3))]
    for result in (*mine, *theirs, *narrow):
        for name in ("return", "advantage"):
            if not math.isclose(result[name], mine[0][name], rel_tol=1e-9):
                raise RuntimeError(f"ours and the loop differ: {name} {mine[0][name]} and {result[name]}")
    ratio = sorted(told_ratio(mine, narrow))
    return Figure(
        "replay",
        "rows/s",
        column(mine, "rows_per_second"),
        column(theirs, "rows_per_second"),
        goal=5,
        at="least",
        against="plain Python loop",
        notes=(
            f"{mine[0]['rows']:,.0f} turns in {mine[0]['parts']:.0f} parts, prompts of {PROMPT_TOKENS} and "
            f"replies of {RESPONSE_TOKENS} tokens; F1 by round, group-relative by task and role",
            f"a loop that reads only the columns it needs: {told(narrow, 'rows_per_second', 0)} rows/s, "
            f"ours is {ratio[len(ratio) // 2]:.1f} times that",
            noise_of(mine, theirs),
        ),
        settings=settings_of("runs").model_dump(mode="json"),
    )


def told_ratio(mine: Results, other: Results) -> list[float]:
    return [a["rows_per_second"] / b["rows_per_second"] for a, b in zip(mine, other, strict=False)]


def _growth(driver: Peer, pairs: int, say: Say) -> Figure:
    mine, theirs = interleave(
        lambda pair: driver.ask(do="replay", size="1M", label=f"growth-{pair}"),
        lambda pair: driver.ask(do="replay", size="100k", label=f"growth-{pair}"),
        pairs,
        say,
    )
    small = [driver.ask(do="replay", size="10k", label=f"small-{k}") for k in range(pairs)]
    return Figure(
        "replay growth",
        "µs/row",
        tuple(1e6 / v for v in column(mine, "rows_per_second")),
        tuple(1e6 / v for v in column(theirs, "rows_per_second")),
        goal=1.3,
        at="most",
        against="at 100k rows",
        notes=(
            f"rows/s: 1M {told(mine, 'rows_per_second', 0)}, 100k {told(theirs, 'rows_per_second', 0)}, "
            f"10k {told(small, 'rows_per_second', 0)}",
            noise_of(mine, theirs),
        ),
    )


def _memory(arguments: dict[str, Any], say: Say) -> Figure:
    """The most that a driver has had resident; a process of its own for each size, for the peak stays."""
    peaks = {}
    for size in ("1M", "100k"):
        with peer(DRIVER, arguments, Path(arguments["folder"]) / f"memory-{size}.log") as driver:
            peaks[size] = driver.ask(do="replay", size=size, label="memory")
        say(f"driver at {size}: {peaks[size]['peak_mib']:.0f} MiB, before {peaks[size]['before_mib']:.0f}")
    mine, theirs = peaks["1M"], peaks["100k"]
    return Figure(
        "replay memory",
        "MiB",
        (mine["peak_mib"],),
        (theirs["peak_mib"],),
        goal=1.5,
        at="most",
        against="at 100k rows",
        notes=(
            f"peak of the driver; with Ray up and before the replay {mine['before_mib']:.0f} and "
            f"{theirs['before_mib']:.0f}; the turns at 1M take {mine['table_mib']:,.0f} MiB on disk",
        ),
    )


def _ablation(driver: Peer, pairs: int, say: Say) -> Figure:
    mine, theirs = interleave(
        lambda pair: driver.ask(do="ablate", size="10k", file="four.toml", label=f"four-{pair}"),
        lambda pair: driver.ask(do="replay", size="10k", label=f"one-{pair}"),
        pairs,
        say,
    )
    return Figure(
        "ablation",
        "s",
        column(mine, "seconds"),
        column(theirs, "seconds"),
        goal=4,
        at="most",
        against="one variant replayed",
        notes=("four variants over the same 10k turns, comparison and files included",),
    )
