"""What `report` prints: where the page is, how large it is, and what it leaves out."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from pipeline.report.write import EPISODES, Report, write_report
from pipeline.store.runs import find_run
from pipeline.views.render import number, visible


def report(
    name: str,
    root: str,
    *,
    iteration: int | None,
    split: str | None,
    replay: str | None,
    episodes: int | None,
    out: str | None,
    as_json: bool,
) -> None:
    """Write the page of a run, an iteration or an evaluation, and say where it is.

    Raises:
        UsageError: there is no such run, iteration, evaluation or replay, or the file can't be written.
    """
    run = find_run(root, name)
    most = EPISODES if episodes is None else episodes
    written = write_report(run, iteration=iteration, split=split, replay=replay, episodes=most, out=out)
    text = json.dumps(asdict(written), indent=1) if as_json else "\n".join(lines_of(written))
    sys.stdout.write(text + "\n")


def lines_of(written: Report) -> list[str]:
    """The same for people."""
    of = "" if written.how is None else f" of {number(written.episodes_there)}"
    lines = [
        f"{visible(written.file)}  {written.bytes / 1e6:.2f} MB",
        f"{number(written.episodes)}{of} episodes, {number(written.turns)} turns",
    ]
    if written.how is not None:
        lines.append(f"chosen {written.how}; --episodes N takes more")
    if written.texts_only:
        models = visible(", ".join(written.texts_only))
        lines.append(f"tokens of {models} are text only: the tokenizer they were read with is not here")
    return lines
