"""The memory that TRL's trainer takes with weights and moments in float32, as ours has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from stages.weights.resolve import resolve_checkpoint
from tests.benchmarks.iteration import FORMAT_WEIGHT, PEER_SETTINGS, PEER_SITE, RESPONSE_TOKENS
from tests.benchmarks.long_tasks import messages_of, write_tasks
from tests.benchmarks.measure import Options, torch_dtype
from tests.benchmarks.peer import cores, peak_memory, peer
from workflows.data.tasks import load_tasks

SETTINGS = {**PEER_SETTINGS, "dtype": "float32", "autocast": torch_dtype() == "bfloat16"}


def trl_peak(
    options: Options, say: Callable[[str], None], group_size: int, tasks: int
) -> tuple[int, str] | None:
    """Peak resident bytes of two steps of the iteration benchmark's workload, and what they were in words.

    None, and said, where TRL is not installed.
    """
    if not (PEER_SITE / "trl").is_dir():
        say("TRL is not installed; its memory is left out")
        return None
    path = Path(options.folder) / "tasks.jsonl"
    write_tasks(path, 2 * tasks, options.checkpoint)
    rows = [
        {
            "prompt": messages_of(json.loads(task["inputs"])["question"]),
            "answers": json.loads(task["gold"])["answers"],
        }
        for task in load_tasks(str(path), format="cadre").tasks.to_pylist()
    ]
    arguments = {
        **SETTINGS,
        "checkpoint": resolve_checkpoint(options.checkpoint),
        "rows": rows,
        "group_size": group_size,
        "tasks_per_step": tasks,
        "max_completion_tokens": RESPONSE_TOKENS,
        "format_weight": FORMAT_WEIGHT,
        "learning_rate": 1e-6,
        "threads": cores(),
        "folder": f"{options.folder}/trl",
    }
    log = Path(options.folder) / "trl.log"
    with peer("tests.benchmarks.trl_step", arguments, log, (PEER_SITE,)) as trl:
        answers = [trl.ask() for _ in range(2)]
        peak = peak_memory(trl.pid)
    say(f"TRL: {peak / 2**30:.2f} GiB")
    words = (
        f"TRL: {group_size * tasks} completions of at most {RESPONSE_TOKENS} tokens (they had "
        f"{answers[-1]['tokens']} in all), sampled in the same process, all in one pass as ours"
    )
    return peak, words
