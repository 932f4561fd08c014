"""`show --where`: the turns of an iteration or an evaluation that a condition on their columns chooses.

The condition is SQL as Polars reads it: `role = 'reader' and reward < 0.2 and status <> 'ok'`. What is
null compares to nothing: `reward < 0.2` leaves out turns without a reward, `reward is null` finds them.
Turns of an evaluation have the metrics of their episode as columns. Tables are read part by part, so that
a large iteration costs the memory of one part. A condition that looks at other turns as well, such as
`advantage = max(advantage)`, sees all turns of all parts: then the columns that it names are read at once.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import polars as pl
import pyarrow as pa
from rich.console import RenderableType
from rich.text import Text

from pipeline.store.episodes import scores_of
from pipeline.store.shelf import Shelf, newer_unfinished
from pipeline.views.render import NO_DATA, echo, make_console, number, plain, visible
from pipeline.views.transcript import decoded_row, turn_page
from stages.tables.parquet import TableRef
from workflows.errors import UsageError, did_you_mean
from workflows.trajectory import CREDIT, OK, REWARDS, TURN_KEYS, TURNS, schema_of

LISTED: Final = 20  # turns, unless --episodes says another number
_WIDTH: Final = 76  # characters of a reply in a list
FAILED: Final = "failed"  # why an episode of an evaluation counts as 0
_TOKENS: Final = ("prompt_token_ids", "response_token_ids", "behaviour_logprobs")
COLUMNS: Final = tuple(
    dict.fromkeys([*(c for c in TURNS.names if c not in _TOKENS), *REWARDS.names, *CREDIT.names])
)


def print_turns(
    tables: Mapping[str, TableRef],
    what: str,
    where: str,
    *,
    limit: int | None,
    full: bool,
    as_json: bool,
    whole: Callable[[str], str] = lambda episode_id: f"--episode {episode_id}",
) -> None:
    """Print the turns that `where` chooses: counts by status and role, and a list of them.

    Args:
        what: names the iteration in messages.
        limit: how many are listed; None: 20, and all as JSON.
        full: each with its prompt and texts instead of a line.
        whole: the command line that shows an episode.
        as_json: one JSON object a line and turn, with its columns decoded and nothing else.

    Raises:
        UsageError: the condition can't be read, or names a column that there is not.
    """
    metrics = metrics_of(tables)
    condition = condition_of(where, metrics)
    if as_json:
        for count, turn in enumerate(chosen_turns(tables, condition, metrics), 1):
            # escaped, so that no control character of a model reaches the terminal
            sys.stdout.write(json.dumps(plain(decoded_row(turn))) + "\n")
            if count == limit:
                return
        return
    limit = LISTED if limit is None else limit
    counts: Counter[tuple[str, str]] = Counter()
    listed: list[dict[str, Any]] = []
    for turn in chosen_turns(tables, condition, metrics):
        counts[str(turn["status"]), turn["role"] or turn["tool"] or NO_DATA] += 1
        if len(listed) < limit:
            listed.append(turn)
    echo(
        make_console(),
        *_pages(what, where, tables["turns"].rows if "turns" in tables else 0, counts, listed, full, metrics),
    )
    if listed:
        line = Text(
            f"one whole: {visible(whole(listed[0]['episode_id']))}", "dim", no_wrap=True, overflow="ignore"
        )
        echo(make_console(), line)


def print_where(
    shelf: Shelf, index: int | None, where: str, *, limit: int | None, full: bool, as_json: bool
) -> None:
    """Print the turns of an iteration or evaluation, the newest by default, that the condition chooses.

    Raises:
        UsageError: no such iteration or evaluation, or a condition that can't be read.
    """
    place = shelf.place(shelf.chosen(index))
    unfinished = "" if place.whole else ", which is unfinished,"
    what = f"{shelf.title(place.index)}{unfinished} of run {shelf.name}"
    print_turns(
        place.tables,
        what,
        where,
        limit=limit,
        full=full,
        as_json=as_json,
        whole=lambda episode_id: shelf.command("--episode", episode_id),
    )
    if index is None and not as_json and (newer := newer_unfinished(shelf, place.index)):
        echo(make_console(), Text(newer, "dim", no_wrap=True, overflow="ignore"))


def condition_of(where: str, metrics: Mapping[str, str] = MappingProxyType({})) -> pl.Expr:
    """The condition as an expression over `COLUMNS`, and those of an evaluation where there are `metrics`.

    Raises:
        UsageError: it is not SQL that Polars reads, or names a column that there is not.
    """
    try:
        condition = pl.sql_expr(where)
        names = condition.meta.root_names()
    except Exception as error:  # Polars raises several types for what it can't read
        raise UsageError(
            f"--where {where!r} can't be read: {_first_line(error)}; write it as in "
            "\"role = 'reader' and reward < 0.2\", texts in single quotes"
        ) from None
    columns = (*COLUMNS, *((FAILED, *metrics.values()) if metrics else ()))
    for name in names:
        if name not in columns:
            raise UsageError(
                f"--where {where!r}: there is no column {name!r}{did_you_mean(name, columns)} (texts are in "
                f"single quotes); columns: {', '.join(columns)}"
            )
    return condition


def metrics_of(tables: Mapping[str, TableRef]) -> dict[str, str]:
    """The metrics of an evaluation, and the column of each: its name, or `score_<name>` where turns have a
    column of that name. None for an iteration."""
    table = tables.get("evaluation")
    for index in range(len(table.parts) if table is not None else 0):
        values = tables["evaluation"].read_part(index, ["values"])["values"].to_pylist()
        names = dict.fromkeys(v["name"] for of_episode in values for v in of_episode or ())
        if names:
            return {name: f"score_{name}" if name in (*COLUMNS, FAILED) else name for name in names}
    return {}


def joined(tables: Mapping[str, TableRef], index: int, metrics: Mapping[str, str]) -> pl.DataFrame:
    """Part `index` of `turns` without its token lists, beside its rewards and credit, or the `metrics_of` its
    episode in an evaluation; null where there are none."""
    frame = _frame(tables["turns"].read_part(index, [c for c in TURNS.names if c not in _TOKENS]))
    for name in ("rewards", "credit"):
        there = name in tables and index < len(tables[name].parts)
        other = tables[name].read_part(index) if there else schema_of(name).empty_table()
        frame = frame.join(_frame(other), on=TURN_KEYS, how="left", maintain_order="left")
    if metrics:
        scores = _scores(tables["evaluation"], index, metrics)
        frame = frame.join(scores, on="episode_id", how="left", maintain_order="left")
    return frame


def _scores(evaluation: TableRef, index: int, metrics: Mapping[str, str]) -> pl.DataFrame:
    """By episode of part `index`: why it failed, if it did, and a column for each metric."""
    rows = []
    for row in evaluation.read_part(index, ["episode_id", "failed", "values"]).to_pylist():
        values = scores_of(row)
        row_scores = {column: values.get(name) for name, column in metrics.items()}
        rows.append({"episode_id": row["episode_id"], FAILED: row["failed"], **row_scores})
    kinds = {"episode_id": pl.String, FAILED: pl.String} | dict.fromkeys(metrics.values(), pl.Float64)
    return pl.DataFrame(rows, schema=kinds)


def chosen_turns(
    tables: Mapping[str, TableRef], condition: pl.Expr, metrics: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """The turns for which the condition holds, sorted by key within a part, without their token lists."""
    indices = range(len(tables["turns"].parts) if "turns" in tables else 0)
    row_by_row = is_row_by_row(json.loads(condition.meta.serialize(format="json")))
    masks = None if row_by_row else _masks(tables, condition, metrics, indices)
    for index in indices:
        frame = joined(tables, index, metrics)
        chosen = frame.filter(_masked(frame, condition) if masks is None else masks[index])
        yield from chosen.sort(TURN_KEYS).iter_rows(named=True)


def is_row_by_row(node: Any) -> bool:
    """Whether an expression, as Polars writes it, is known to look at one row at a time.

    What is not known here counts as looking at others too: that costs memory, and no answer.
    """
    if not isinstance(node, dict) or len(node) != 1:
        return False
    ((kind, content),) = node.items()
    if kind in ("Column", "Literal"):
        return True
    if kind == "Function":
        function = content["function"]
        family, name = next(iter(function.items())) if isinstance(function, dict) else ("", function)
        word = next(iter(name)) if isinstance(name, dict) else name
        return word in _OF_ONE_ROW.get(family, ()) and all(map(is_row_by_row, content["input"]))
    return kind in _PARTS and all(is_row_by_row(content[part]) for part in _PARTS[kind])


# Functions that Polars computes from one row, by family, and the expressions inside of other expressions.
_OF_ONE_ROW: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("Abs", "Coalesce"),
    "Boolean": ("IsNull", "IsNotNull", "Not", "IsIn", "IsBetween", "IsNan", "IsFinite"),
    "Sql": ("Binary", "IsIn", "Round"),
    "StringExpr": ("Contains", "StartsWith", "EndsWith", "Lowercase", "Uppercase", "LenChars", "LenBytes"),
}
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "BinaryExpr": ("left", "right"),
    "Ternary": ("predicate", "truthy", "falsy"),
    "Cast": ("expr",),
}


def _masks(
    tables: Mapping[str, TableRef], condition: pl.Expr, metrics: Mapping[str, str], indices: Sequence[int]
) -> list[pl.Series]:
    """For each part, the turns for which a condition over the turns of all parts holds."""
    columns = list(dict.fromkeys([*TURN_KEYS, *condition.meta.root_names()]))
    frames = [joined(tables, index, metrics).select(columns) for index in indices]
    if not frames:
        return []
    heights = [frame.height for frame in frames]
    # by their keys: an order of turns that parts and processes leave open would decide what `first` is
    whole = pl.concat(frames).with_row_index("_row").sort(TURN_KEYS)
    mask = whole.select("_row", _mask=_masked(whole, condition)).sort("_row")["_mask"]
    starts = [sum(heights[:position]) for position in range(len(heights))]
    return [mask.slice(start, height) for start, height in zip(starts, heights, strict=True)]


def _masked(frame: pl.DataFrame, condition: pl.Expr) -> pl.Series:
    """Whether the condition holds, for each row.

    Raises:
        UsageError: it can't be evaluated, or is something else than true or false.
    """
    try:
        mask = frame.with_columns(_mask=condition)["_mask"]
        if mask.dtype not in (pl.Boolean, pl.Null):
            raise pl.exceptions.InvalidOperationError(f"its values are {mask.dtype}")
        return mask.cast(pl.Boolean).fill_null(False)  # null is not true
    except pl.exceptions.PolarsError as error:
        raise UsageError(
            f"--where does not work on these columns: {_first_line(error)}; it must be true or false for "
            "each turn"
        ) from None


def _pages(
    what: str,
    where: str,
    rows: int,
    counts: Counter[tuple[str, str]],
    listed: list[dict[str, Any]],
    full: bool,
    metrics: Mapping[str, str],
) -> list[RenderableType]:
    total = counts.total()
    head = Text.assemble((f"{number(total)} of {number(rows)} turns", "bold"), f" of {visible(what)} have ")
    pages: list[RenderableType] = [head.append(visible(where), "cyan")]
    if not total:
        return [*pages, Text("none: remove a part of the condition to see which one excludes all", "yellow")]
    pages += [Text(), *_counts(counts), Text()]
    shown = ("reward", "advantage", *metrics.values())
    if full:
        for turn in listed:
            pages += [Text(visible(turn["episode_id"]), "bold"), turn_page(turn), Text()]
    else:
        pages += [_line(turn, shown) for turn in listed]
    if total > len(listed):
        pages.append(
            Text(f"and {number(total - len(listed))} more; --episodes N lists more, --json all", "dim")
        )
    return pages


def _counts(counts: Mapping[tuple[str, str], int]) -> list[Text]:
    """A line for each status and role or tool, the most frequent first."""
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    width = max(len(visible(status)) for (status, _), _ in rows)
    figures = max(len(number(count)) for _, count in rows)
    return [
        Text(f"  {number(count):>{figures}}  {visible(status):<{width}}  {visible(who)}")
        for (status, who), count in rows
    ]


def _line(turn: Mapping[str, Any], numbers: Sequence[str]) -> Text:
    """Where the turn is, what came of it, and how it begins; the id stays whole, so that it can be copied."""
    text = Text(f"{visible(turn['episode_id'])} ", no_wrap=True, overflow="ignore")
    text.append(f"[{turn['turn_index']}] ", "dim").append(visible(turn["step"] or "?"), "bold")
    text.append(f"  {visible(turn['status'])}", "green" if turn["status"] == OK else "yellow")
    for name in numbers:
        if turn[name] is not None:
            text.append(f"  {visible(name)} {number(turn[name])}")
    if turn["excluded"] is not None:
        text.append(f"  not trained on: {visible(turn['excluded'])}", "dim")
    said = " ".join((turn["response_text"] or turn["tool_result"] or "").split())
    if said:
        text.append(f"\n    {visible(said if len(said) <= _WIDTH else said[: _WIDTH - 1] + '…')}", "dim")
    return text


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
