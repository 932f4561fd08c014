"""turns, episodes, rewards → credit, baselines: return and advantage of every turn; no GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import polars as pl
import pyarrow as pa

from rewards.base import Credit, CreditHooks, RememberingCredit, SurveyedCredit
from rewards.channels.base import LOGPROBS, TABLES, TURNS_OF_CHANNELS, ChannelHooks, Mix
from rewards.channels.credited import InChannels, credit_in_channels
from rewards.credit.assign import (
    EPISODES_SEEN,
    REWARDS_SEEN,
    TURNS_SEEN,
    credit_turns,
    join_turns,
    usable_turns,
)
from rewards.credit.silent import LeaveOutSilent
from rewards.scoring.reasons import count_kinds
from stages.base import Account, Context, StageResult
from stages.lease import Lease
from stages.parts import map_parts
from stages.tables.parquet import TableRef, TableSink, aligned_parts
from workflows.credit_tables import CREDIT_CHANNELS
from workflows.hooks import hooks_of
from workflows.trajectory import BASELINES, CREDIT, TURNS

_READ: Final = {"turns": TURNS_SEEN, "episodes": EPISODES_SEEN, "rewards": REWARDS_SEEN}
_GREEDY: Final = {f"greedy_{name}": schema for name, schema in _READ.items()}


@dataclass(frozen=True, slots=True)
class CreditStage:
    """Credit every turn that has a reward, whole groups at a time: a part holds whole groups.

    A method that must know something of all groups first (`rewards.base.SurveyedCredit`) gets a pass
    over the parts for that. A method that keeps baselines reads those of the iteration before
    (`baselines_before`) and writes its own. With a `mix` of channels, the advantage is their weighted sum,
    and table `credit_channels` has its parts.
    """

    method: Credit
    leave_out: LeaveOutSilent | None = None
    mask_truncated: bool = False  # leave replies that were cut off out of updates, after the credit
    mix: Mix = ()

    name: str = "credit"
    folder: str = "credit"
    lease: Lease = "none"

    @property
    def _remembers(self) -> bool:
        return hooks_of(self.method, CreditHooks).keeps_baselines

    @property
    def inputs(self) -> dict[str, pa.Schema]:
        carried = dict.fromkeys(self.carried, BASELINES)
        read = {**_READ, "turns": turns_of(self.mix)} if self.mix else _READ
        beside = {name: TABLES[name] for name in _tables_of(self.mix)}
        return {**read, **beside, **(_GREEDY if self._needs_greedy else {}), **carried}

    @property
    def _needs_greedy(self) -> bool:
        return hooks_of(self.method, CreditHooks).needs_greedy

    @property
    def carried(self) -> dict[str, str]:
        """Inputs that are outputs of the iteration before, by name; without rows in the first."""
        return {"baselines_before": "baselines"} if self._remembers else {}

    @property
    def outputs(self) -> dict[str, pa.Schema]:
        channels = {"credit_channels": CREDIT_CHANNELS} if self.mix else {}
        return {"credit": CREDIT, **channels, **({"baselines": BASELINES} if self._remembers else {})}

    @property
    def places(self) -> dict[str, str]:
        channels = {"credit_channels": "channels"} if self.mix else {}
        return {"credit": "", **channels, **({"baselines": "baselines"} if self._remembers else {})}

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        names = (*_READ, *(_GREEDY if self._needs_greedy else ()), *_tables_of(self.mix))
        tables = {name: inputs[name] for name in names}
        indices = aligned_parts(tables)
        method, baselines = self._bound(indices, tables, inputs, context.iteration)
        context.progress.start("credit", len(indices), "part")
        receipts = map_parts(
            credit_part,
            indices,
            brief=True,
            on_done=lambda done: context.progress.advance(turns=done["turns"]),
            tables=tables,
            sink=outputs["credit"],
            method=method,
            leave_out=self.leave_out,
            mask_truncated=self.mask_truncated,
            mix=self.mix,
            channel_sink=outputs.get("credit_channels"),
        )
        context.progress.finish()
        result = _result(receipts)
        if self.mix:
            result.parts["credit_channels"] = [receipt["channels"] for receipt in receipts]
            result.metrics |= _channel_metrics(receipts)
        if baselines is not None:
            written = outputs["baselines"].write_part(0, baselines.to_arrow().cast(BASELINES))
            result.parts["baselines"] = [written]
            for row in baselines.iter_rows(named=True):
                result.metrics[f"baseline/{row['key']}"] = row["mean"]
        return result

    def _bound(
        self,
        indices: Sequence[int],
        tables: Mapping[str, TableRef],
        inputs: Mapping[str, TableRef],
        iteration: int,
    ) -> tuple[Credit, pl.DataFrame | None]:
        """The method as it credits this iteration, and the baselines after it."""
        method = self.method
        if not isinstance(method, SurveyedCredit):
            return method, None
        before = pl.DataFrame(BASELINES.empty_table())
        if self._remembers:
            before = pl.DataFrame(inputs["baselines_before"].read())
        receipts = map_parts(survey_part, indices, brief=True, tables=tables, method=method)
        surveys = [r["survey"] for r in receipts if r["survey"] is not None]
        after = cast(RememberingCredit, method).after(surveys, before, iteration) if self._remembers else None
        return method.bound(surveys, before), after


def survey_part(index: int, tables: Mapping[str, TableRef], method: Any) -> dict[str, Any]:
    """A method's survey of part `index`; None for a part without usable turns."""
    usable = usable_turns(join_turns(*_read(index, tables)))
    return {"survey": method.survey(usable) if usable.height else None}


def credit_part(
    index: int,
    tables: Mapping[str, TableRef],
    sink: TableSink,
    method: Credit,
    leave_out: LeaveOutSilent | None = None,
    mask_truncated: bool = False,
    mix: Mix = (),
    channel_sink: TableSink | None = None,
) -> dict[str, Any]:
    """Credit part `index` and write it; the receipt has its part and counts."""
    needs_parts = any(hooks_of(w.channel, ChannelHooks).needs_parts for w in mix)
    read = _read(index, tables, parts=leave_out is not None or needs_parts, mix=mix)
    greedy = None
    if "greedy_turns" in tables:
        named = {name: tables[f"greedy_{name}"] for name in _READ}
        greedy = _read(index, named)
    of_channels: dict[str, Any] = {}
    if channel_sink is not None:
        beside = {name: tables[name].read_part(index) for name in _tables_of(mix)}
        made = credit_in_channels(
            *read, method, mix, beside, leave_out, mask_truncated=mask_truncated, greedy=greedy
        )
        credited = made.credited
        of_channels = {
            "channels": channel_sink.write_part(index, made.channels),
            "sizes": _sizes(made),
            "gaps": made.gaps,
        }
    else:
        credited = credit_turns(*read, method, leave_out, mask_truncated=mask_truncated, greedy=greedy)
    return {
        **of_channels,
        "part": sink.write_part(index, credited.table),
        "turns": credited.table.num_rows,
        "excluded": count_kinds(credited.table["excluded"])[0],
        "groups": Counter(credited.groups),
        "tasks": Counter(_tasks(credited.table)),
    }


def _tasks(credit: pa.Table) -> dict[str, int]:
    """How many tasks have turns to train on, and how many of them an advantage that is not 0."""
    usable = pl.DataFrame(credit.select(["episode_id", "advantage", "excluded"])).filter(
        pl.col("excluded").is_null()
    )
    # an episode's id is that of its group, which is the task's, and its own number
    by_task = usable.group_by(pl.col("episode_id").str.replace(r"/[^/]*$", "")).agg(
        signal=(pl.col("advantage") != 0).any()
    )
    return {"tasks_usable": by_task.height, "tasks_with_signal": int(by_task["signal"].sum())}


def turns_of(mix: Mix) -> pa.Schema:
    """What credit in channels reads of `turns`: beside what credit sees, what channels do."""
    logprobs = any(hooks_of(w.channel, ChannelHooks).needs_logprobs for w in mix)
    names = {*TURNS_SEEN.names, *TURNS_OF_CHANNELS.names, *(LOGPROBS.names if logprobs else ())}
    return pa.schema([field for field in TURNS if field.name in names])


def _tables_of(mix: Mix) -> list[str]:
    names = [name for w in mix for name in hooks_of(w.channel, ChannelHooks).tables]
    return list(dict.fromkeys(names))


def _sizes(made: InChannels) -> dict[str, tuple[float, int]]:
    """By channel: the sum of |weight · value| over rows that count, and their number."""
    rows = pl.DataFrame(made.channels.select(["channel", "value", "weight", "counts"])).filter("counts")
    rows = rows.group_by("channel", maintain_order=True).agg(
        total=(pl.col("value") * pl.col("weight")).abs().sum(), count=pl.len()
    )
    return {name: (total, count) for name, total, count in rows.iter_rows()}


def _channel_metrics(receipts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By channel: rows that count, their mean size in the advantage, and what its members lack of the team's
    credit."""
    metrics: dict[str, float] = {}
    for name in dict.fromkeys(name for receipt in receipts for name in receipt["gaps"]):
        sizes = [receipt["sizes"].get(name, (0.0, 0)) for receipt in receipts]
        rows = sum(count for _, count in sizes)
        metrics[f"channel/{name}/rows"] = float(rows)
        if rows:
            metrics[f"channel/{name}/abs_mean"] = sum(total for total, _ in sizes) / rows
        gaps = [receipt["gaps"][name] for receipt in receipts if name in receipt["gaps"]]
        if episodes := sum(count for *_, count in gaps):
            metrics[f"channel/{name}/gap_mean"] = sum(gap for gap, *_ in gaps) / episodes
            metrics[f"channel/{name}/gap_abs_mean"] = sum(size for _, size, _ in gaps) / episodes
    return metrics


def _read(
    index: int, tables: Mapping[str, TableRef], parts: bool = False, mix: Mix = ()
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Turns, episodes and rewards; these with their parts, which take long to read, only where asked."""
    of_rewards = [name for name in REWARDS_SEEN.names if parts or name != "reward_parts"]
    turns, episodes, rewards = (
        tables[name].read_part(index, names)
        for name, names in (
            ("turns", turns_of(mix).names if mix else TURNS_SEEN.names),
            ("episodes", EPISODES_SEEN.names),
            ("rewards", of_rewards),
        )
    )
    return turns, episodes, rewards


def _result(receipts: Sequence[Mapping[str, Any]]) -> StageResult:
    excluded: Counter[str] = Counter()
    groups: Counter[str] = Counter()
    tasks: Counter[str] = Counter()
    for receipt in receipts:
        excluded.update(receipt["excluded"])
        groups.update(receipt["groups"])
        tasks.update(receipt["tasks"])
    turns = sum(r["turns"] for r in receipts)
    metrics: dict[str, float] = {
        name: groups[name] for name in ("groups", "groups_without_signal", "groups_of_one_episode")
    }
    metrics |= {name: tasks[name] for name in ("tasks_usable", "tasks_with_signal")}
    notes = []
    if alone := groups["groups_of_one_episode"]:
        notes.append(f"{alone} of {groups['groups']} groups have one usable episode to compare")
    if groups["groups"] and groups["groups_without_signal"] == groups["groups"]:
        notes.append(f"no signal: every advantage of all {groups['groups']} groups is 0")
    account = Account(
        "rewards to credit", "turn", turns, turns - excluded.total(), dict(sorted(excluded.items()))
    )
    return StageResult({"credit": [r["part"] for r in receipts]}, [account], metrics, notes)
