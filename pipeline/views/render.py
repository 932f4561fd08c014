"""The summary of an iteration and the list of runs, as rich renderables.

Pure functions of plain values, each with a twin that gives plain dicts for `--json`. What a model
or a user wrote is shown as it is: never read as markup, with control characters made visible.
`pipeline.views.transcript` renders single episodes.
"""

from __future__ import annotations

import io
import math
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.metrics.names import by_name
from stages.base import Account

NO_DATA: Final = "–"
_OF_GRADIENTS: Final = {
    "gradient_norm": "norm",
    "gradient_share": "share",
    "token_share": "of tokens",
    "gradient_cosine": "cosine to all",
    "gradient_persistence": "to its mean",
    "copies_redundancy": "copies",
    "kl_reference": "KL",
    "gradient_factor": "times",
}
_JOINERS: Final = frozenset("\u200c\u200d")  # part of words and emoji in many scripts; they hide nothing


@dataclass(frozen=True, slots=True)
class IterationView:
    """The values in the summary of one iteration. `where` are the last lines: a label and a place each."""

    run: str
    iteration: int
    metrics: Mapping[str, float]
    accounts: Sequence[Account]
    updates: Sequence[Mapping[str, Any]]  # summary rows of `updates`, one per model
    seconds: Mapping[str, float]  # by stage
    notes: Sequence[str] = ()
    alarms: Sequence[str] = ()
    resumed: Sequence[str] = ()  # stages that an earlier process had finished
    where: Mapping[str, str] = field(default_factory=dict)
    title: str = ""  # if it is of something else than an iteration


def summary(view: IterationView) -> RenderableType:
    """The end of an iteration: what came out, what was left out and why, and where everything is."""
    title = view.title or f"iteration {view.iteration}"
    head = Text.assemble((visible(title), "bold"), f" of run {visible(view.run)}: ")
    head.append(_headline(view.metrics))
    sections: list[RenderableType] = [head]
    if view.resumed:
        sections.append(cell(f"finished before and not run again: {', '.join(view.resumed)}", "dim"))
    skipped = [Text(f"  not updated: {m}", "yellow") for m in _skipped(view.updates)]
    for title, table, below in (
        ("By role", _roles(view.metrics), []),
        ("Updates", _updates(view.updates), skipped),
        ("Gradients by role, before clipping", _gradients(view.metrics), []),
        ("When to stop", _stops(view.metrics), []),
        ("Replicas of engines", _replicas(view.metrics), []),
        ("Rows", accounts_table(view.accounts), []),
    ):
        if table.row_count:
            sections += [Text(), Text(title, "bold"), table, *below]
    if view.seconds:
        sections += [Text(), _times(view.seconds)]
    if view.notes:
        sections += [Text(), *(cell(f"note: {note}", "yellow") for note in view.notes)]
    if view.alarms:
        sections += [Text(), *(alarm_line(alarm) for alarm in view.alarms)]
    if view.where:
        sections += [Text(), places(view.where)]
    return Group(*sections)


def summary_dict(view: IterationView) -> dict[str, Any]:
    """The summary as plain values, for `--json`."""
    return plain(
        {
            "run": view.run,
            "iteration": view.iteration,
            "metrics": dict(view.metrics),
            "rows": [account.as_dict() for account in view.accounts],
            "updates": [dict(u) for u in view.updates],
            "seconds": dict(view.seconds),
            "notes": list(view.notes),
            "alarms": list(view.alarms),
            "resumed": list(view.resumed),
            "where": dict(view.where),
        }
    )


def training_line(metrics: Mapping[str, float], index: int, of: int, seconds: float) -> Text:
    """One iteration of many, in one line. It has the number that `show` and the run's folder have."""
    text = Text(no_wrap=True, overflow="ignore")
    text.append(f"iteration {index}", "bold").append(f" ({index + 1} of {of}): {_headline(metrics)}")
    return text.append(f", {seconds:.1f} s", "dim")


def evaluation_table(
    split: str, index: int, scores: Sequence[Mapping[str, Any]], counts: Mapping[str, float]
) -> RenderableType:
    """The scores of an evaluation, from `pipeline.run.evaluation.Evaluated.as_dict`."""
    tasks = max((score["tasks"] for score in scores), default=0)
    head = Text.assemble(
        (f"evaluation on {visible(split)}", "bold"),
        f" after {index} iterations: {number(tasks)} tasks, {number(counts.get('episodes'))} episodes",
    )
    if failed := counts.get("episodes_failed"):
        head.append(f", {number(failed)} failed and count as 0", "yellow")
    ks = sorted({int(k) for score in scores for k in score["pass_at"]})
    table = open_table("  metric", ">mean", ">95 % interval", *(f">pass@{k}" for k in ks))
    for score in scores:
        by_source = score.get("by_source", {})
        rows = {score["name"]: score} | {f"  of {source}": values for source, values in by_source.items()}
        for name, values in rows.items():
            low, high = values["low"], values["high"]
            table.add_row(
                cell(f"  {name}"),
                cell(f"{values['mean']:.3f}"),
                cell(f"{low:.3f} to {high:.3f}" if low is not None else None),
                *(cell(number(values["pass_at"].get(str(k)))) for k in ks),
            )
    return Group(head, table)


def accounts_table(accounts: Sequence[Account]) -> Table:
    """Rows in, out, and left out by reason, one line a boundary."""
    table = open_table("  at", "unit", ">in", ">out", "left out, and why")
    for account in accounts:
        reasons = sorted(account.excluded.items(), key=lambda item: (-item[1], item[0]))
        table.add_row(
            cell(f"  {account.boundary}"),
            cell(f"{account.unit}s"),
            cell(number(account.rows_in)),
            cell(number(account.rows_out)),
            cell("\n".join(f"{number(n)} {reason}" for reason, n in reasons if n) or NO_DATA),
        )
    return table


def alarm_line(alarm: str) -> Text:
    """One alarm: something looks wrong, and where to look."""
    return Text.assemble(("alarm: ", "bold red"), (visible(alarm), "red"))


def places(where: Mapping[str, str]) -> Text:
    """`label  place` lines. Places are never cut or broken, so that they can be copied."""
    width = max((len(label) for label in where), default=0)
    text = Text(no_wrap=True, overflow="ignore")
    for position, (label, place) in enumerate(where.items()):
        text.append("\n" if position else "").append(f"{label:<{width}}  ", "dim").append(visible(place))
    return text


def make_console(file: IO[str] | None = None, width: int | None = None) -> Console:
    """A console without colour where there is no terminal, which prints any text on any encoding."""
    file = file or sys.stdout
    if isinstance(file, io.TextIOWrapper) and (file.encoding or "").lower().replace("-", "") != "utf8":
        file.reconfigure(errors="backslashreplace")
    return Console(file=file, width=width, highlight=False, emoji=False, markup=False)


def echo(console: Console, *renderables: RenderableType) -> None:
    """Print without cutting lines at the console's width: a path longer than that stays whole."""
    for renderable in renderables:
        # in a group, as print joins bare texts into a new one, which may be broken into lines
        console.print(Group(renderable), crop=False)


def as_text(renderable: RenderableType, width: int = 100) -> str:
    """The rendering as plain text, for files and trackers."""
    file = io.StringIO()
    echo(make_console(file, width), renderable)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def visible(text: str) -> str:
    """`text` with control and other invisible characters spelled out, e.g. `\\x1b`; newline and tab stay.

    Stored text is never changed; this is for eyes only. Bidirectional overrides are spelled out as
    well, as they make a terminal show something else than was written.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _shows(c) else c.encode("unicode_escape").decode("ascii") for c in text)


def number(value: float | None) -> str:
    """A number for people: thousands separated, four significant digits; a dash for none."""
    if value is None:
        return NO_DATA
    if not math.isfinite(value):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def brief(value: Any) -> str:
    """A setting in a few words: without what it leaves at None or empty."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if v is not None and v != {} and v != []}
        return "{" + ", ".join(f"{k} = {brief(v)}" for k, v in kept.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(brief, value)) + "]"
    return "default" if value is None else str(value)


def plain(value: Any) -> Any:
    """`value` for strict JSON: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shows(character: str) -> bool:
    if character in "\n\t" or character in _JOINERS:
        return True
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _headline(metrics: Mapping[str, float]) -> str:
    texts = []
    if (value := metrics.get("return/mean")) is not None:
        texts.append(f"mean return {number(value)}")
    if (episodes := metrics.get("rollout/episodes")) is not None:
        ok = metrics.get("rollout/status/ok", episodes)
        texts.append(f"{number(episodes)} episodes" + (f" ({number(ok)} ok)" if ok != episodes else ""))
    if (rate := metrics.get("rollout/tokens_per_second")) is not None:
        texts.append(f"{number(rate)} sampled tokens/s")
    if quiet := metrics.get("groups/no_signal_rate"):
        texts.append(f"{quiet:.0%} of the groups teach nothing")
    return ", ".join(texts) or "no numbers yet"


def _roles(metrics: Mapping[str, float]) -> Table:
    table = open_table("  role", ">return", ">reward", ">|advantage|", ">format ok", ">cut off", ">tokens")
    for role, values in sorted(by_name(metrics, "role").items()):
        table.add_row(
            cell(f"  {role}"),
            *(cell(number(values.get(m))) for m in ("return_mean", "reward_mean", "advantage_abs_mean")),
            *(cell(_percent(values.get(m))) for m in ("format_valid_rate", "truncated_rate")),
            cell(number(values.get("response_tokens_mean"))),
        )
    return table


def _updates(updates: Sequence[Mapping[str, Any]]) -> Table:
    table = open_table(
        "  model", "version", ">rows", ">tokens", ">loss", ">gap", ">grad norm", ">trained tokens/s"
    )
    for row in updates:
        seconds, tokens = row.get("seconds"), row.get("num_forward_tokens")
        table.add_row(
            cell(f"  {row['model_id']}"),
            cell(f"{number(row.get('version_before'))} → {number(row.get('version_after'))}"),
            *(cell(number(row.get(c))) for c in ("num_rows", "num_tokens", "loss")),
            *(cell(number(row.get(c))) for c in ("sampler_gap_mean", "gradient_norm")),
            cell(number(tokens / seconds) if seconds and tokens else None),
        )
    return table


def _gradients(metrics: Mapping[str, float]) -> Table:
    """One line for each role whose gradient was measured; columns that none of them has are left out."""
    roles = {name: values for name, values in by_name(metrics, "role").items() if "gradient_norm" in values}
    columns = [column for column in _OF_GRADIENTS if any(column in values for values in roles.values())]
    table = open_table("  role", *(f">{_OF_GRADIENTS[column]}" for column in columns))
    for role, values in sorted(roles.items()):
        table.add_row(cell(f"  {role}"), *(cell(number(values.get(column))) for column in columns))
    return table


_OF_STOPS: Final = {
    "stop/utility": "utility",
    "stop/best_fixed_utility": "best fixed",
    "stop/hindsight_utility": "hindsight",
    "stop/score": "score",
    "stop/cost": "cost",
    "stop/regret": "regret",
    "stop/early_share": "early",
    "stop/late_share": "late",
    "stop/price": "price",
}


def _stops(metrics: Mapping[str, float]) -> Table:
    """What the policy's stops are worth; columns that were not measured are left out."""
    names = [name for name in _OF_STOPS if name in metrics]
    table = open_table(*(f">{'  ' * (not n)}{_OF_STOPS[name]}" for n, name in enumerate(names)))
    if "stop/utility" in metrics:
        table.add_row(*(cell(number(metrics[name])) for name in names))
    return table


def _replicas(metrics: Mapping[str, float]) -> Table:
    """What each replica of an engine answered; nothing where engines have one."""
    table = open_table(
        "  replica", ">calls", ">prompt tokens", ">cached", ">sampled tokens", ">asked again", ">new starts"
    )
    for name, values in sorted(by_name(metrics, "replica").items()):
        table.add_row(
            cell(f"  {name}"),
            *(cell(number(values.get(m))) for m in ("calls", "prompt_tokens")),
            cell(_percent(values.get("cached_rate"))),
            *(cell(number(values.get(m))) for m in ("response_tokens", "asked_again", "restarts")),
        )
    return table


def _skipped(updates: Sequence[Mapping[str, Any]]) -> list[str]:
    return [visible(f"{u['model_id']}: {u['skipped']}") for u in updates if u.get("skipped")]


def _times(seconds: Mapping[str, float]) -> Text:
    text = Text("Time  ", "bold")
    total = math.fsum(seconds.values())
    parts = [f"{visible(stage)} {value:.1f} s" for stage, value in seconds.items()]
    return text.append(f"{total:.1f} s: {', '.join(parts)}", "not bold")


def open_table(*columns: str) -> Table:
    """An open table; a column whose name begins with `>` is right-aligned."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        right = column.startswith(">")
        header = Text(column.removeprefix(">"))
        table.add_column(header, justify="right" if right else "left", overflow="fold")
    return table


def _percent(value: float | None) -> str:
    return NO_DATA if value is None else f"{value:.0%}"


def cell(value: object, style: str = "") -> Text:
    """A cell or line; `Text`, because rich reads a plain string as markup."""
    return Text(NO_DATA if value is None else visible(str(value)), style)
