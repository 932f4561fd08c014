"""The overview of a plan as lines of text: what `check` and `--dry-run` print."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from pipeline.settings.origins import Setting
from pipeline.views.forecast import forecast_text

Values = Mapping[str, Any]


def overview_lines(overview: Values) -> list[str]:
    """The lines of `pipeline.plan.overview.overview`."""
    workflow, memory, learning = overview["workflow"], overview["memory_gib"], overview["learning"]
    lines = [_run(overview["run"])]
    lines.append(f"workflow  {workflow['use']}{_options(workflow['options'])}, sharing: {workflow['regime']}")
    lines += [f"            {line}" for line in workflow["lines"]]
    lines += [f"role      {name}: {_sampling(role)}" for name, role in overview["sampling"].items()]
    lines += [f"model     {name}: {_model(model)}" for name, model in overview["models"].items()]
    lines += _data(overview["data"])
    lines += [f"reward    {_reward(reward)}" for reward in overview["rewards"]]
    credit = f"{learning['credit']}{_options(learning['credit_options'])}"
    schedule = "" if learning["schedule"] == "simultaneous" else f", schedule {learning['schedule']}"
    lines.append(f"learning  credit {credit}, advantage {learning['advantage']}{schedule}")
    lines += _channels(learning)
    lines += [f"            {model}: {_algorithm(values)}" for model, values in learning["models"].items()]
    lines += [f"trust     {model}: {words}" for model, words in learning["trust"].items()]
    if learning["stopping"]:
        lines.append(f"stopping  {learning['stopping']}")
    lines.append(f"evaluate  {_evaluation(overview['evaluation'])}")
    lines += [f"          {_also(other)}" for other in overview["evaluation"]["also"]]
    for stage in overview["stages"]:
        reads = ", ".join(stage["reads"]) or "settings"
        lines.append(f"stage     {stage['stage']}: {reads} → {', '.join(stage['writes'])}")
    parts = ", ".join(f"{k} {_gib(v)}" for k, v in memory.items() if k not in ("total", "available"))
    machines = overview["machines"]
    here = not machines["described"] and machines["asked_later"] is None
    available = f"; available {memory['available']:.1f} GiB" if here else " of main memory on all machines"
    lines.append(f"memory    about {memory['total']:.1f} GiB ({parts}){available}")
    lines += [f"devices   {line}" for line in device_lines(machines)]
    lines.append(f"forecast  {forecast_text(overview['forecast'])}")
    lines.append(f"machine   {_machine(overview['machine'])}")
    sandbox = overview["sandbox"]
    lines.append(f"sandbox   {sandbox['description'] or 'none: ' + str(sandbox['missing'])}")
    lines += [f"problem   {p}" for p in overview["problems"]] or ["ok        nothing stands in the way"]
    return lines


def device_lines(machines: Values) -> Iterator[str]:
    """What each machine and each of its GPUs hold; nothing for one machine whose GPUs are not used."""
    if machines["asked_later"] is not None:
        yield (
            f"the machines at {machines['asked_later']} are asked when a run joins them; describe them in "
            "[[cluster.nodes]] to plan for them here"
        )
    for node in machines["nodes"]:
        used = any(device["holds"] for device in node["devices"])
        if not used and not machines["described"]:
            continue
        if not node["memory_gib"]:
            yield f"{node['node']}: nothing, GPUs {len(node['devices'])}"
            continue
        free = "" if node["memory_free_gib"] is None else f" of {node['memory_free_gib']:.1f}"
        replicas = ", ".join(f"{name} {_gib(gib)}" for name, gib in node["replicas"].items())
        of_these = f", of which {replicas}" if replicas else ""
        yield f"{node['node']}: main memory {node['memory_gib']:.1f}{free} GiB{of_these}"
        yield from (f"  {line}" for line in _gpus(node["devices"]))


def _gpus(devices: Sequence[Values]) -> Iterator[str]:
    """A line for each GPU, one for neighbours that hold alike."""
    texts = [_gpu(device) for device in devices]
    for text, group in groupby(range(len(texts)), key=lambda number: texts[number]):
        numbers = list(group)
        which = f"GPU {numbers[0]}" if len(numbers) == 1 else f"GPUs {numbers[0]} to {numbers[-1]}, each"
        yield f"{which}: {text}"


def _gpu(device: Values) -> str:
    if not device["holds"]:
        return "nothing"
    of = "a device of unknown size" if device["gib"] is None else f"{device['gib']:.1f} GiB"
    holds = (_holding(name.partition(", rank")[0], what) for name, what in device["holds"].items())
    return f"{device['needs_gib']:.1f} of {of}: {'; '.join(holds)}"


def _holding(name: str, what: Values) -> str:
    kept = [f"{part} {_gib(gib)}" for part, gib in what["kept"].items()]
    working = [f"{part} {_gib(gib)}" for part, gib in what["working"].items()]
    text = f"{name} ({', '.join(kept)}; at work {', '.join(working) or 'no more'})"
    return text + (f", room for {what['sequences']:.0f} whole sequences" if "sequences" in what else "")


def _channels(learning: Values) -> list[str]:
    """What the advantage is a sum of, and what is replayed for it; nothing where credit is as it is."""
    lines = []
    if learning["channels"]:
        parts = [f"{weight:g} × {name}" for name, weight in learning["channels"].items()]
        lines.append(f"            advantage = {' + '.join(parts)}")
    if replays := learning["replays"]:
        tokens = replays["tokens"]
        budget = "all of them" if tokens is None else f"about {tokens:,} tokens of each rollout"
        times = f" × {replays['alternatives']}" if replays["alternatives"] > 1 else ""
        lines.append(f"            messages are replayed by {', '.join(replays['ops'])}{times}: {budget}")
    return lines


def settings_lines(settings: Sequence[Setting]) -> list[str]:
    """Every setting as it could stand in a file, and where its value comes from."""
    texts = [f"{setting.key} = {words_of(setting.value)}" for setting in settings]
    width = min(60, max(map(len, texts), default=0))
    return [f"{text:<{width}}  # {setting.origin}" for text, setting in zip(texts, settings, strict=True)]


def amount(number: int) -> str:
    """A count in three digits or so: `812`, `74 k`, `135 M`, `1.5 B`."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g} {unit}" if number / size < 1000 else f"{number / size:.0f} {unit}"
    return str(number)


def words_of(value: Any) -> str:
    """A value of settings as it stands in a settings file."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {words_of(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(words_of(each) for each in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else f"{value}"


def _gib(number: float) -> str:
    return f"{number:.1f}" if number >= 0.05 else "below 0.1"


def _run(run: Values) -> str:
    finished, unfinished = run["finished_iterations"], run["unfinished_iteration"]
    state = f"{finished} finished iterations; iteration {finished} comes next"
    if not run["exists"]:
        state = "new; iteration 0 comes first"
    elif unfinished is not None:
        done = ", ".join(run["finished_stages"]) or "nothing"
        state = f"iteration {unfinished} is unfinished, done: {done}; it is finished first"
    return f"run       {run['name']} under {run['root']}: {state}"


def _options(options: Values) -> str:
    return (
        f" ({', '.join(f'{key} = {words_of(value)}' for key, value in options.items())})" if options else ""
    )


def _sampling(role: Values) -> str:
    parts = [f"temperature {role['temperature']:g}"]
    parts += [f"top_p {role['top_p']:g}"] if role["top_p"] < 1 else []
    parts += [f"top_k {role['top_k']}"] if role["top_k"] else []
    parts += [f"min_p {role['min_p']:g}"] if role["min_p"] else []
    parts += [f"stop {words_of(role['stop'])}"] if role["stop"] else []
    parts.append(f"answers to {role['max_response_tokens']} tokens")
    parts += [f"prompts to {role['max_prompt_tokens']} tokens"] if role["max_prompt_tokens"] else []
    parts += ["with demonstrations"] if role["demonstrations"] else []
    parts += ["frozen"] if role["frozen"] else []
    return f"→ {role['model']}, {', '.join(parts)}"


def _model(model: Values) -> str:
    if model["endpoint"]:
        return str(model["endpoint"])
    what = "no weights"
    if model["parameters"] is not None:
        what = f"{model['checkpoint']} ({model['architecture']}, {amount(model['parameters'])})"
    engine = f"{model['engine']} × {model['replicas']}" if model["replicas"] > 1 else model["engine"]
    if not model["trained"]:
        return f"{what}, engine {engine}, frozen"
    if model["adapter_rank"]:
        what += f", adapter of rank {model['adapter_rank']}"
        what += f" on {model['base']}" if model["base"] else ""
    note = f"; {model['note']}" if model["note"] else ""
    return (
        f"{what}, engine {engine}, trained by {model['ranks']} rank(s), ZeRO {model['zero_stage']}, "
        f"{model['precision']}, learning rate {model['learning_rate']:g}{note}"
    )


def _data(data: Values) -> Iterator[str]:
    path = data["path"] if isinstance(data["path"], str) else words_of(data["path"])
    splits = ", ".join(f"{split} {count}" for split, count in data["splits"].items())
    rejected = f", {data['rejected_rows']} rows rejected" if data["rejected_rows"] else ""
    yield (
        f"data      {path} ({' and '.join(data['formats'])}): {splits}{rejected}; an iteration is "
        f"{data['tasks_per_iteration']} tasks × {data['group_size']} = {data['episodes_per_iteration']} "
        f"episodes of {data['split']}"
    )
    yield from (f"            rejected: {line}" for line in data["examples"])
    yield from (f"            {count} {note}" for note, count in data["notes"].items())


def _reward(reward: Values) -> str:
    use = "" if reward["use"] == reward["name"] else f" ({reward['use']})"
    weight = f"weight {reward['weight']:g}" if reward["weight"] else "weight 0, a metric alone"
    whom = [f"{key} {', '.join(reward[key])}" for key in ("roles", "steps") if reward[key] is not None]
    return f"{reward['name']}{use}: {', '.join([weight, *whom])}{_options(reward['options'])}"


def _algorithm(algorithm: Values) -> str:
    low, high = algorithm["clip"]
    clip = "" if low == high == 0.2 else f" clipped at -{low:g} and +{high:g}"
    words = [f"loss {algorithm['loss']}{clip}", algorithm["normalisation"].replace("_", " ")]
    if algorithm["stop_loss"]:
        words.append(f"stop decisions by {algorithm['stop_loss']}")
    if algorithm["critic"]:
        heads = f" with value heads for {', '.join(algorithm['value_heads'])}"
        words.append(f"critic {algorithm['critic']}{heads if algorithm['value_heads'] else ''}")
    if algorithm["kl_reference"]:
        target = "" if algorithm["kl_target"] is None else f", steered to {algorithm['kl_target']:g}"
        words.append(f"KL to {algorithm['kl_reference']} in the {algorithm['kl_in']}{target}")
    if algorithm["entropy_coefficient"]:
        words.append(f"entropy bonus {algorithm['entropy_coefficient']:g}")
    if algorithm["importance"] != "none":
        words.append(f"{algorithm['importance']} importance sampling")
    if algorithm["schedule"] != "constant" or algorithm["warmup_updates"]:
        words.append(f"{algorithm['schedule']} schedule, {algorithm['warmup_updates']} warm-up updates")
    return ", ".join(words)


def _also(other: Values) -> str:
    """One line of an evaluation that chooses no checkpoint."""
    when = "each time" if other["always"] else "at the first, the best and the last weights"
    plays = f" × {other['plays']}" if other["plays"] > 1 else ""
    budget = f", at most {other['tokens']} sampled tokens a task" if other["tokens"] else ""
    return f"{other['label']}: {other['tasks']} tasks{plays}{budget}, {when}; chooses nothing"


def _evaluation(evaluation: Values) -> str:
    if evaluation["problem"]:
        return f"not possible: {evaluation['problem']}"
    when = f"every {evaluation['every']} iterations" if evaluation["every"] else "only by `run evaluate`"
    samples = f" × {evaluation['samples']}" if evaluation["samples"] > 1 else ""
    how = "greedy" if not evaluation["temperature"] else f"temperature {evaluation['temperature']:g}"
    cuts = {name: evaluation[name] for name in ("top_p", "top_k", "min_p")}
    how += "".join(f", {name} {value:g}" for name, value in cuts.items() if value is not None)
    return (
        f"{evaluation['tasks']} tasks{samples} of {evaluation['split']}, {how}, {when}; metrics "
        f"{', '.join(evaluation['metrics'])}; the best checkpoint by {evaluation['best']}"
        + (", tasks solved" if evaluation["best_by"] == "solved" else "")
    )


def _machine(machine: Values) -> str:
    engines = " and ".join(machine["engines"]) or "none"
    versions = [f"{name} {version}" for name, version in machine["versions"].items()]
    gpu = machine["gpu"] or "none"
    return ", ".join([f"cores {machine['cores']}", f"gpu {gpu}", f"engines {engines}", *versions])
