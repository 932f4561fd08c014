"""What the verbs of `trace` print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.settings.program import hint
from pipeline.traces.corpus import Verdict
from pipeline.traces.exporting import Exported
from pipeline.traces.format import RULES
from pipeline.traces.importing import ImportedRun
from pipeline.traces.stats import Spread, Stats
from pipeline.views.render import number, visible


def exported_lines(done: Exported) -> Iterator[str]:
    """What was written, what its readers can do with it, and what the format lost."""
    ends = ", ".join(f"{count:,} {status}" for status, count in sorted(done.statuses.items()))
    yield f"wrote {done.traces:,} traces ({ends}) with {done.turns:,} turns to {visible(done.file)}"
    yield f"format {done.format}, content {done.content}, {done.tokens:,} tokens"
    if done.content != "inline":
        what = "hashes stand for texts" if done.content == "hash" else "there are no texts"
        yield f"{what}, and no token ids: nobody can train on this or imitate it; --content inline has all"
    yield from (f"lost: {what}" for what in done.lost)


def imported_lines(done: ImportedRun) -> Iterator[str]:
    """What the run has, what is missing for which use, and what can be done next."""
    yield f"imported {done.episodes:,} of {done.traces:,} traces as run {visible(done.run)}"
    yield from (f"refused {n:,}: {_rule(rule)}" for rule, n in sorted(done.refused.items()))
    yield f"{done.turns:,} turns; {done.with_reward:,} have a reward, {done.with_text:,} a prompt and a reply"
    if done.trainable:
        yield f"{done.trainable:,} turns have ids and logprobs: an update may train on them"
    else:
        yield "no turn has ids and logprobs: PPO trains on none; imitate what has text (`demonstrations`)"
    if done.without_gold:
        yield (
            f"{done.without_gold:,} of {done.tasks:,} tasks have no gold answer: rewards that need one fail; "
            "import again with --tasks FILE"
        )
    run = visible(done.run)
    yield f"next: {hint(f'show {run}')}"
    yield f"      {hint(f'report {run}')}"
    yield "      " + hint(f"run replay {run} --until credit --set 'rewards=[{{use=\"exact_match\"}}]'")


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """How many traces are good, which rules the others break, and where."""
    yield f"{verdict.documents:,} traces with {verdict.events:,} events: {verdict.good:,} good"
    for rule, count in verdict.rules.most_common():
        yield f"refused {count:,}: {_rule(rule)}"
    for where, problem in verdict.examples:
        yield visible(f"  {where}: {problem}")


def _rule(rule: str) -> str:
    meaning = next((rules[rule] for rules in RULES.values() if rule in rules), "a row does not fit its table")
    return f"{rule} ({meaning})"


def stats_lines(stats: Stats) -> Iterator[str]:
    """A corpus in a few lines."""
    values: Mapping[str, Any] = stats.as_dict()
    yield f"{stats.traces:,} traces of {len(stats.tasks):,} tasks, {values['events']:,} events"
    if not stats.traces:
        return
    yield f"events   {_shares(values['events_by_type'])}"
    yield f"edges    {_shares(values['edges_by_type'])}"
    if stats.turns:
        acts = _shares(values["acts"], stats.turns) if stats.acts else "none"
        yield f"acts     {acts} (of {stats.turns:,} turns)"
    yield f"teams    {_shares(values['topologies'])}"
    for name, what, spread in (
        ("size", "events of a trace", stats.size),
        ("agents", "that act in a trace", stats.agents),
        ("depth", "events on the longest path", stats.depth),
        ("width", "most agents that were spawned at one time", stats.width),
        ("tokens", "of a trace", stats.tokens),
        ("seconds", "of a trace", stats.seconds),
        ("reward", "of the team", stats.reward),
    ):
        yield f"{name:<8} {_spread(spread)}, {what}"
    if not stats.turns:
        yield f"rows     none: another program's traces; {stats.refs:,} events refer to content"
    yield from (f"lost     {line}" for line in stats.lost)


def _shares(counts: Mapping[str, int], of: int | None = None) -> str:
    total = of or sum(counts.values()) or 1
    return ", ".join(f"{visible(k)} {v:,} ({v / total:.0%})" for k, v in counts.items()) or "none"


def _spread(spread: Spread) -> str:
    if not spread.count:
        return "none"
    return f"{number(spread.least)} to {number(spread.most)}, mean {number(spread.total / spread.count)}"
