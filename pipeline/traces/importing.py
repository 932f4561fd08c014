"""Traces as a run: judged, read and written as the tables that every verb reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from pipeline.store.run import Run
from pipeline.traces.corpus import Judge
from pipeline.traces.extension import OF_TASK
from pipeline.traces.files import Document, document_at, documents
from pipeline.traces.format import read
from pipeline.traces.imported import Imported
from pipeline.traces.place import MADE, NEEDED, Made, commit
from pipeline.traces.team import Seen, run_info, run_settings
from stages.base import Account, StageResult
from stages.tables.parquet import Part, TableSink
from workflows.data.tasks import load_tasks
from workflows.errors import UsageError, did_you_mean
from workflows.parsers import Parser, read_reply
from workflows.trajectory import TASKS, episode_id_of, group_id_of, schema_of, to_json
from workflows.vocabulary import Event

EPISODES_IN_A_PART: Final = 256  # at least, as a group is never cut
SPLIT: Final = "train"
NO_REWARD: Final = "the trace has no reward"
NO_CREDIT: Final = "the trace has no credit"


@dataclass(frozen=True, slots=True)
class Options:
    """How traces are read. `answer` reads the answer of replies that come without a parsed value."""

    format: str | None = None
    tasks: str | None = None  # a file of tasks with gold answers, joined by task_id
    answer: Parser | None = None
    answer_step: str | None = None
    checkpoint: str | None = None  # the weights that sampled, whose ids these are
    temperature: float | None = None  # of the sampler, where traces do not say it
    skip: bool = False  # leave refused traces out, and count them, instead of stopping


@dataclass(slots=True)
class ImportedRun:
    """What became of the traces."""

    run: str
    traces: int = 0
    episodes: int = 0
    turns: int = 0
    trainable: int = 0  # turns with ids and logprobs of their tokens
    with_text: int = 0  # replies that can be imitated
    with_reward: int = 0
    tasks: int = 0
    without_gold: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # by the first rule that a trace breaks
    iterations: list[int] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        names = ("run", "traces", "episodes", "turns", "trainable", "with_text", "with_reward", "tasks")
        values = {name: getattr(self, name) for name in (*names, "without_gold", "iterations")}
        return {**values, "refused": dict(self.refused)}


@dataclass(frozen=True, slots=True)
class _Found:
    """Where a good document lies, and the place of its episode among others."""

    file: str
    offset: int | None
    number: int
    iteration: int
    block: int
    task_id: str
    sample: int
    is_own: bool


def import_traces(
    files: Sequence[str],
    root: str,
    name: str,
    options: Options,
    advance: Callable[[], None] = lambda: None,
) -> ImportedRun:
    """Make a run of the traces of files.

    Files are read twice: once to judge all documents and see where they belong, once to write the tables,
    part by part. Memory is that of one part.

    Raises:
        UsageError: the run exists, a document breaks a rule (unless `options.skip`), two traces are one
            episode, or none is left.
    """
    run = Run(root, name)
    if run.exists or run.folder.names():
        raise UsageError(f"there is a run {run.folder.url} already; give another --run, or remove that one")
    result = ImportedRun(run.folder.url)
    gold = {} if options.tasks is None else _gold(options.tasks)
    found, seen = _survey(files, options, result, advance)
    if not found:
        raise UsageError(f"none of {result.traces} traces is left to import ({_counted(result.refused)})")
    places: dict[int, list[_Found]] = {}
    for each in found:
        places.setdefault(each.iteration, []).append(each)
    # the run's own files come last: a run that is there is whole
    writer = _Writer(run, files, options, gold, result)
    for iteration in sorted(places):
        writer.write(iteration, places[iteration])
        result.iterations.append(iteration)
    settings, workflow = run_settings(
        root, name, seen, options.tasks, options.answer_step, options.checkpoint
    )
    imported = {"files": list(files), "traces": result.episodes, "trainable": result.trainable}
    imported["checkpoint"] = options.checkpoint
    run.folder.write_text("settings.toml", settings)
    run.write_info(**run_info(name, workflow, imported))
    return result


def _survey(
    files: Sequence[str], options: Options, result: ImportedRun, advance: Callable[[], None]
) -> tuple[list[_Found], Seen]:
    """Judge all documents; where the good ones lie, sorted by where their episodes belong."""
    judge, seen = Judge(options.format), Seen()
    found: list[_Found] = []
    taken: dict[tuple[int, int, str], int] = {}
    names: set[tuple[int, int, str, int]] = set()
    for file in files:
        for document in documents(file):
            result.traces += 1
            imported = _judged(judge, document, options, result)
            advance()
            if imported is None:
                continue
            identity = imported.identity
            if identity is not None:
                place = (identity["iteration"], identity.get("block") or 0, identity["task_id"])
                sample = identity["sample"]
            else:
                place = (0, 0, imported.task_id)
                sample = taken.get(place, 0)
            taken[place] = max(taken.get(place, 0), sample + 1)
            if (*place, sample) in names:
                raise UsageError(
                    f"{document.where}: another trace is episode {sample} of task {place[2]!r} in iteration "
                    f"{place[0]} too; import them into two runs"
                )
            names.add((*place, sample))
            seen.add(imported)
            found.append(_Found(file, document.offset, document.number, *place, sample, identity is not None))
    return sorted(found, key=lambda f: (f.iteration, f.block, f.task_id, f.sample)), seen


def _judged(judge: Judge, document: Document, options: Options, result: ImportedRun) -> Imported | None:
    problems = judge.problems(document)
    imported = None
    if not problems:
        try:
            imported = read(document.value, options.temperature)
        except ValueError as error:
            problems = [error]  # type: ignore[list-item]
    if imported is not None:
        return imported
    if not options.skip:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UsageError(
            f"{document.where}: {problems[0]}{more}; mend it, or leave such traces out with --skip "
            "(`trace validate` lists them all)"
        )
    result.refused[getattr(problems[0], "rule", "rows")] += 1
    return None


class _Writer:
    def __init__(
        self,
        run: Run,
        files: Sequence[str],
        options: Options,
        gold: Mapping[str, dict[str, Any]],
        result: ImportedRun,
    ) -> None:
        self.run, self.options, self.gold, self.result = run, options, gold, result
        self.refused, self.files = Counter(result.refused), list(files)

    def write(self, iteration: int, found: Sequence[_Found]) -> None:
        """Write one iteration: its tables in parts of whole groups."""
        place = self.run.iteration(iteration)
        sinks = {
            table: TableSink(table, made.folder_of(place, table), schema_of(table))
            for table, made in MADE.items()
        }
        parts: dict[str, list[Part]] = {table: [] for table in sinks}
        for number, chunk in enumerate(_chunks(found)):
            for table, rows in self._tables(chunk).items():
                arrow = pa.Table.from_pylist(rows, schema=sinks[table].schema)
                parts[table].append(sinks[table].write_part(number, arrow))
        results: dict[Made, StageResult] = {}
        for table, made in MADE.items():
            if table in NEEDED or any(part.rows for part in parts[table]):
                results.setdefault(made, StageResult({})).parts[table] = parts[table]
            else:  # none of the traces has any: as if the stage had never run
                place.folder.child(made.folder).remove(made.places[table])
        refused = dict(self.refused)
        self.refused.clear()  # counted with the first iteration
        count = len(found)
        account = Account("traces to episodes", "trace", count + sum(refused.values()), count, refused)
        results[MADE["turns"]].accounts.append(account)
        commit(place, results, {"files": self.files})

    def _tables(self, chunk: Sequence[_Found]) -> dict[str, list[dict[str, Any]]]:
        tables: dict[str, list[dict[str, Any]]] = {table: [] for table in MADE}
        tasks: dict[str, dict[str, Any]] = {}
        for each in chunk:
            imported = read(document_at(each.file, each.offset, each.number), self.options.temperature)
            keys = self._keys(each, imported)
            task = self._task(each, imported)
            if each.task_id not in tasks:
                tasks[each.task_id] = task
                self.result.tasks += 1
                self.result.without_gold += task["gold"] == "{}"
            self._episode(tables, keys, imported)
        tables["tasks"] = list(tasks.values())
        return tables

    def _keys(self, each: _Found, imported: Imported) -> dict[str, Any]:
        if imported.identity is not None:
            return imported.identity
        group = group_id_of(each.iteration, each.task_id, each.block)
        return {
            "iteration": each.iteration,
            "block": each.block,
            "split": SPLIT,
            "task_id": each.task_id,
            "group_id": group,
            "sample": each.sample,
            "episode_id": episode_id_of(group, each.sample),
        }

    def _task(self, each: _Found, imported: Imported) -> dict[str, Any]:
        """The task's row: what the trace has of it, and what a file of tasks has beside it."""
        row = dict(imported.task)
        given = self.gold.get(each.task_id, {})
        row |= {k: given[k] for k in ("inputs", "gold", "row_hash") if row.get(k) is None and given.get(k)}
        missing = [name for name in ("inputs", "gold") if row.get(name) is None]
        if missing and each.is_own:  # an empty object stands for it here, and goes into no trace
            imported.note(None, **{OF_TASK: dict.fromkeys(missing)})
        row |= dict.fromkeys(missing, "{}")
        defaults = {"split": SPLIT, "source": "traces"} if not each.is_own else {}
        return {**defaults, **row, "task_id": each.task_id}

    def _episode(
        self, tables: dict[str, list[dict[str, Any]]], keys: dict[str, Any], imported: Imported
    ) -> None:
        of = {"episode_id": keys["episode_id"]}
        tables["episodes"].append({**imported.episode, **keys})
        for turn in imported.turns:
            self._read_answer(imported, turn)
            tables["turns"].append({**turn, **keys})
            key = {**of, "turn_index": turn["turn_index"]}
            self._beside(tables, key, imported)
            self._count(turn, imported)
        if imported.evaluation is not None:
            tables["evaluation"].append(
                {**of, "task_id": keys["task_id"], "sample": keys["sample"], **imported.evaluation}
            )
        for index in sorted({*imported.traced, *imported.refs}, key=lambda i: -1 if i is None else i):
            extra = imported.traced.get(index)
            tables["traced"].append(
                {
                    **of,
                    "turn_index": index,
                    "content_ref": None if index is None else imported.refs.get(index),
                    "extra": None if extra is None else to_json(extra),
                }
            )
        self.result.episodes += 1

    def _beside(
        self, tables: dict[str, list[dict[str, Any]]], key: dict[str, Any], imported: Imported
    ) -> None:
        """The turn's rows of rewards and credit, where its trace has any of them at all."""
        own = imported.identity is not None
        for table, rows, column, reason in (
            ("rewards", imported.rewards, "no_reward_reason", NO_REWARD),
            ("credit", imported.credit, "excluded", NO_CREDIT),
        ):
            row = rows.get(key["turn_index"])
            if row is None:
                row = {} if own else {column: reason}
            if rows:
                tables[table].append({**row, **key})

    def _read_answer(self, imported: Imported, turn: dict[str, Any]) -> None:
        """Read the answer out of a reply that another program left as text."""
        parser, text = self.options.answer, turn.get("response_text")
        if imported.identity is not None or parser is None or text is None or turn["event"] != Event.LLM:
            return
        parsed = read_reply(parser, text, {})
        turn["format_valid"] = parsed.valid
        turn["parsed"] = None if parsed.best is None else to_json(parsed.best)

    def _count(self, turn: Mapping[str, Any], imported: Imported) -> None:
        result = self.result
        result.turns += 1
        result.trainable += turn.get("response_token_ids") is not None and turn["event"] == Event.LLM
        result.with_text += bool(turn.get("response_text")) and turn.get("messages") is not None
        reward = imported.rewards.get(turn["turn_index"], {})
        result.with_reward += reward.get("reward") is not None


def _chunks(found: Sequence[_Found]) -> Iterator[list[_Found]]:
    """Whole groups, together at least so many episodes as a part has."""
    chunk: list[_Found] = []
    for each in found:
        new_group = chunk and (chunk[-1].block, chunk[-1].task_id) != (each.block, each.task_id)
        if new_group and len(chunk) >= EPISODES_IN_A_PART:
            yield chunk
            chunk = []
        chunk.append(each)
    if chunk:
        yield chunk


def _gold(path: str) -> dict[str, dict[str, Any]]:
    """The tasks of a file by their ids."""
    table = load_tasks(path).tasks
    return {row["task_id"]: row for row in table.select(TASKS.names).to_pylist()}


def _counted(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} × {rule}" for rule, count in sorted(reasons.items())) or "no reason"


def answer_parser(text: str | None) -> Parser | None:
    """How the answer of a reply is read: `text` (all of it), `tag:NAME`, or `json:KEY`.

    Raises:
        UsageError: any other text.
    """
    from workflows.parsers import JsonKey, Raw, Tag

    if text is None:
        return None
    kind, _, name = text.partition(":")
    if kind == "text" and not name:
        return Raw()
    if kind == "tag" and name:
        return Tag(name)
    if kind == "json" and name:
        return JsonKey(name)
    raise UsageError(
        f"--answer {text!r}{did_you_mean(kind, ('text', 'tag', 'json'))}; use text, tag:NAME or json:KEY"
    )
