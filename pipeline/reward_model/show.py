"""A reward model as a page and as plain values: what it learned from, what it is worth, where it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from pipeline.reward_model.asked import Asked
from pipeline.reward_model.judged import remark
from pipeline.settings.program import hint
from pipeline.views.render import cell, number, open_table, places, visible


def dry_values(asked: Asked) -> dict[str, Any]:
    """What would be trained, as plain values."""
    return {
        "folder": asked.folder.url,
        "runs": [run.folder.url for run in asked.runs],
        "base": asked.base,
        "accounts": [account.as_dict() for account in asked.accounts],
        "pairs": {"train": len(asked.train), "held_out": len(asked.test)},
        "tasks": asked.num_tasks,
        "plays": len(asked.ids),
        "cut": asked.cut,
        "steps": asked.total_steps,
        "tokens": sum(len(ids) for ids in asked.ids.values()),
        "memory_gib": asked.memory_gib(),
    }


def dry_page(asked: Asked) -> RenderableType:
    """What would be trained, and what it takes."""
    values = dry_values(asked)
    lines = [
        *account_lines(values["accounts"]),
        f"pairs: {values['pairs']['train']} of {values['tasks']['train']} tasks train, "
        f"{values['pairs']['held_out']} of {values['tasks']['held_out']} tasks are held out",
        cut_line(values["cut"]),
        f"{values['steps']} optimizer steps over {number(values['plays'])} plays of "
        f"{number(values['tokens'])} tokens, about {values['memory_gib']:.1f} GiB",
    ]
    head = f"would train {asked.folder.url} on {asked.base}"
    return Group(Text(visible(head), "bold"), *(Text(visible(f"  {line}")) for line in lines))


def model_page(folder: str, info: Mapping[str, Any], links: Mapping[str, str]) -> RenderableType:
    """A finished model: what it learned from, its accuracy beside trivial rankers, how to use it."""
    judgement, steps = info["judged"], info["steps"]
    table = open_table("  ranker", ">accuracy", ">interval", ">model above it", ">interval")
    for name, ranking in (("the model", judgement["held_out"]), ("on its own pairs", judgement["train"])):
        table.add_row(cell(f"  {name}"), *_share(ranking["accuracy"]), cell(""), cell(""))
    for name, ranker in judgement["trivial"].items():
        direction = "more" if ranker["sign"] > 0 else "less"
        gain = ranker["gain"]
        above = (cell(f"{gain['value']:+.3f}"), cell(_interval(gain)))
        table.add_row(cell(f"  {name} ({direction} is better)"), *_share(ranker["accuracy"]), *above)
    held_out = judgement["held_out"]
    lines = [
        *account_lines(info["accounts"]),
        cut_line(info["cut"]),
        f"{len(steps)} optimizer steps: loss {steps[0]['loss']:.3f} → {steps[-1]['loss']:.3f}",
        f"held out: {held_out['pairs']} pairs of {held_out['tasks']} tasks; loss {held_out['loss']:.3f} nats "
        f"(0.693 knows nothing), margin {held_out['margin']:.3f}, calibration error "
        f"{held_out['calibration']:.3f}",
    ]
    use = f'rewards = [{{ use = "learned", options = {{ model = "{folder}" }} }}]'
    note = remark(judgement)
    style = "green" if note.startswith("above") else "yellow"
    return Group(
        Text(visible(f"reward model {folder}"), "bold"),
        *(Text(visible(f"  {line}")) for line in lines),
        Text(),
        table,
        Text(),
        Text(visible(f"  {note}"), style),
        places(
            {"as a reward": use, "best of n": hint(f"reward-model best-of {folder} RUN"), **links},
        ),
    )


def account_lines(accounts: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each boundary: in, out, and why the rest is not."""
    lines = []
    for account in accounts:
        came, went = number(account["in"]), number(account["out"])
        line = f"{account['boundary']}: {came} {account['unit']}s in, {went} out"
        reasons = ", ".join(f"{number(count)} {reason}" for reason, count in account["excluded"].items())
        lines.append(line + (f"; left out: {reasons}" if reasons else ""))
    return lines


def cut_line(cut: Mapping[str, int]) -> str:
    """How much of the plays' texts the context had no room for."""
    if not cut["plays"]:
        return f"no text of {number(cut['of'])} plays is cut"
    return (
        f"{number(cut['plays'])} of {number(cut['of'])} plays are cut in their middle, by "
        f"{number(cut['tokens'])} tokens in all (reward_model.context)"
    )


def _share(share: Mapping[str, Any]) -> tuple[Text, Text]:
    return cell(f"{share['value']:.3f}"), cell(_interval(share))


def _interval(share: Mapping[str, Any]) -> str:
    return "" if share["low"] is None else f"{share['low']:.3f} to {share['high']:.3f}"
