"""The overview of a plan as lines of text: what `check` and `--dry-run` print."""

from __future__ import annotations

from typing import Any


def overview_lines(overview: dict[str, Any]) -> list[str]:
    """The lines of `pipeline.plan.overview.overview`."""
    run, workflow, data, memory = (
        overview["run"],
        overview["workflow"],
        overview["data"],
        overview["memory_gib"],
    )
    lines = [f"run       {run['name']} under {run['root']}: {run['state']}"]
    lines += [f"workflow  {workflow['use']}, sharing: {workflow['regime']}"]
    lines += [f"            {line}" for line in workflow["graph"]]
    lines += [f"role      {role} → {model}" for role, model in workflow["roles"].items()]
    for model_id, model in overview["models"].items():
        lines.append(f"model     {model_id}: {model}")
    splits = ", ".join(f"{split} {count}" for split, count in data["splits"].items())
    rejected = f", {data['rejected_rows']} rows rejected" if data["rejected_rows"] else ""
    formats = " and ".join(data["formats"])
    lines.append(
        f"data      {data['path']} ({formats}): {splits}{rejected}; an iteration is {data['per_iteration']}"
    )
    lines += [f"            rejected: {line}" for line in data["rejects"]]
    lines += [f"            {count} {note}" for note, count in data["notes"].items()]
    learning = overview["learning"]
    lines.append(f"learning  credit {learning['credit']}, advantage {learning['advantage']}")
    lines += [f"            {model}: {words}" for model, words in learning["models"].items()]
    for stage in overview["stages"]:
        reads = ", ".join(stage["reads"]) or "settings"
        lines.append(f"stage     {stage['stage']}: {reads} → {', '.join(stage['writes'])}")
    parts = ", ".join(f"{k} {v:.1f}" for k, v in memory.items() if k not in ("total", "available"))
    lines.append(
        f"memory    about {memory['total']:.1f} GiB ({parts}); available {memory['available']:.1f} GiB"
    )
    lines.append("machine   " + ", ".join(f"{k} {v}" for k, v in overview["machine"].items()))
    lines.append(f"sandbox   {overview['sandbox']}")
    lines += [f"problem   {p}" for p in overview["problems"]] or ["ok        nothing stands in the way"]
    return lines
