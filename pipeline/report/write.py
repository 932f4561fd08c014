"""`report RUN`: read, choose, draw, and write the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.report.about import about, settings_of
from pipeline.report.choose import choose
from pipeline.report.drawing import graph_of, role_of, svg
from pipeline.report.page import page
from pipeline.report.pieces import pieces_by_model
from pipeline.report.rows import Content, content_of
from pipeline.report.source import source_of
from pipeline.store.run import Run
from pipeline.views.render import number, visible
from stages.tables.filesystem import filesystem
from stages.tables.parquet import write_bytes
from workflows.errors import UsageError

EPISODES: Final = 2000  # in a page, unless --episodes says another number: some 10,000 turns


@dataclass(frozen=True, slots=True)
class Report:
    """The page that was written, and how much of the run it has."""

    file: str
    bytes: int
    episodes: int
    episodes_there: int
    turns: int
    how: str | None  # by what rule episodes were chosen; None: all are there
    texts_only: tuple[str, ...]  # models whose tokens have no text, because their tokenizer is not at hand


def write_report(
    run: Run,
    *,
    iteration: int | None = None,
    split: str | None = None,
    replay: str | None = None,
    episodes: int = EPISODES,
    out: str | None = None,
) -> Report:
    """Write the page of a run, an iteration, or an evaluation on `split`, or of what a replay made of them.

    Args:
        episodes: the most that it has; of more, some are chosen, and the page says how.
        out: a file, or a folder that is there or ends with a slash, of any fsspec URL; default: the folder
            `report` of the run or replay. In a folder the page has a name of its own.

    Raises:
        UsageError: there is nothing to report on, or the file can't be written.
    """
    if episodes < 1:
        raise UsageError(f"--episodes is {episodes}; a report has at least 1")
    source = source_of(run, iteration, split, replay)
    text, settings = settings_of(source)
    chosen = choose(source.places, episodes)
    pieces = pieces_by_model(run, settings, source.places)
    content = content_of(run, source.places, chosen, pieces)
    texts_only = sorted(content.texts_only)
    roles = _roles(content, run.info.get("graph"))
    graph = graph_of(run.info.get("graph"), content.turns)
    data = {
        "about": about(source, chosen, text, settings, texts_only),
        "roles": roles,
        "observed": graph["observed"],
        "texts": content.texts,
        "prompts": content.prompts,
        "tasks": content.tasks,
        "episodes": content.episodes,
        "turns": content.turns,
    }
    body = page(f"{run.name}: {source.title}", data, content.chunks, svg(graph, roles))
    file = _file_of(out, source.file)
    try:
        write_bytes(file, body)
    except OSError as error:
        raise UsageError(f"the report can't be written to {file}: {error}") from error
    return Report(
        file, len(body), chosen.shown, chosen.total, len(content.turns), chosen.how, tuple(texts_only)
    )


def _file_of(out: str | None, default: str) -> str:
    """Where the page goes: `out`, or the default's name within it where that is a folder."""
    if out is None:
        return default
    fs, path = filesystem(out)
    if out.endswith("/") or fs.isdir(path):
        return f"{out.rstrip('/')}/{default.rpartition('/')[2]}"
    return out


def lines_of(written: Report) -> list[str]:
    """The lines that `report` prints: where the page is, how large it is, and what it leaves out."""
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


def _roles(content: Content, graph: Any) -> Sequence[str]:
    """Roles in the order of the graph, then by how often they speak: the order of their colours."""
    declared = [role_of(step) for step in (graph or {}).get("steps", ())]
    spoken = Counter(turn["role"] for turn in content.turns if "role" in turn)
    return list(dict.fromkeys([r for r in declared if r] + [r for r, _ in spoken.most_common()]))
