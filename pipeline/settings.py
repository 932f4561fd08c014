"""`pipeline.toml` as types: one model per section, unknown keys refused, defaults here.

Relative paths in the file are relative to the folder that the command runs in. Secrets are never
settings: they come from the environment.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomlkit
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workflows.errors import UsageError, did_you_mean

Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
ModelId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RunSection(Section):
    name: Name = "iteration"
    root: str = "runs"  # a folder or any fsspec URL
    seed: int = 0
    max_iterations_without_signal: Positive = 10  # in a row, then the run fails


class DataSection(Section):
    path: str = "facts"  # a shipped task set, a file or any fsspec URL
    format: str = "auto"  # cadre, hotpotqa, nq_open, auto, or package.module:function
    columns: dict[str, str] = {}  # question, answers, id: for rows of no known format
    split: str = "train"
    tasks_per_iteration: Positive = 8
    max_bad_share: Share = 0.0  # share of rows that may be unusable before the file is refused


class WorkflowSection(Section):
    use: str = "qa_decompose"  # a built-in name or package.module:build
    options: dict[str, Any] = {}


class SamplingSection(Section):
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None  # None: [rollout] temperature
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0  # 0: off
    stop: tuple[str, ...] = ()


class RoleSection(Section):
    model: ModelId | None = None  # None: the only model, or what [sharing] says
    sampling: SamplingSection = SamplingSection()
    format_weight: Annotated[float, Field(ge=0)] = 1.0
    max_response_tokens: Positive | None = None  # None: what the workflow's role says
    max_prompt_tokens: Positive | None = None  # None: what the engine's context leaves
    demonstrations: bool = True


class TrainerSection(Section):
    ranks: Positive = 1
    zero_stage: Literal[0, 1, 2] = 1
    precision: Literal["bf16", "fp32"] = "bf16"
    activation_checkpointing: bool = False
    num_threads: Annotated[int, Field(ge=0)] = 0  # per rank; 0: cores / ranks
    num_gpus: Annotated[float, Field(ge=0)] = 0.0  # per rank


class PpoSection(Section):
    learning_rate: Annotated[float, Field(ge=0)] = 1e-6
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = 3.0
    epochs: Positive = 1
    mini_batches: Positive = 1  # optimizer steps per epoch
    micro_batch_tokens: Positive = 2048  # padded tokens of one forward pass: sets the accumulation
    gradient_clip: Annotated[float, Field(gt=0)] = 1.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: Annotated[float, Field(gt=0)] = 1e-8


class ModelSection(Section):
    checkpoint: str = "smollm2-135m-instruct"  # a shipped name, a folder, a URL or a hub id
    train: bool = True
    engine: str = "auto"  # vllm, torch, scripted, auto, or package.module:Class
    engine_options: dict[str, Any] = {}
    max_model_len: Positive = 1024
    dtype: Literal["auto", "bfloat16", "float32", "float16"] = "auto"
    kv_cache_gib: Annotated[float, Field(gt=0)] = 1.0
    gpu_memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.4
    num_gpus: Annotated[float, Field(ge=0)] = 0.0
    max_batch_size: Positive = 64
    trainer: TrainerSection = TrainerSection()
    ppo: dict[str, Any] = {}  # keys of [ppo] that differ for this model


class SharingSection(Section):
    """Shorthand that fills in the `model` of every role from the single [models.<id>] as a pattern."""

    regime: Literal["full", "separate"] | None = None
    groups: dict[ModelId, tuple[str, ...]] = {}


class RolloutSection(Section):
    group_size: Positive = 4  # episodes of one task
    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    max_in_flight: Positive = 64  # episodes
    tasks_per_shard: Positive = 8  # a finished shard survives a kill
    players: Positive = 1
    max_turns: Positive = 64
    call_timeout_seconds: Seconds = 600
    tool_timeout_seconds: Seconds = 60
    episode_timeout_seconds: Seconds = 1800
    call_attempts: Positive = 3
    max_failed_share: Share = 0.5  # of episodes, by causes that are not the policy's


class RewardSection(Section):
    use: str
    name: Name | None = None  # None: the last word of `use`
    weight: float = 1.0
    options: dict[str, Any] = {}


class CreditSection(Section):
    use: str = "group_relative"
    options: dict[str, Any] = {}
    truncated: Literal["as_malformed", "exclude"] = "as_malformed"


class CheckpointsSection(Section):
    every: Positive = 1  # updates from one whole checkpoint to the next; the last one gets one in any case
    keep: Annotated[int, Field(ge=1)] = 2  # newest whole checkpoints of each model


class TrackingSection(Section):
    uri: str | None = None  # None: sqlite beside the runs; "none": off
    experiment: str = "cadre"
    sample_episodes: Annotated[int, Field(ge=0)] = 4


class ClusterSection(Section):
    address: str = "local"  # or a running Ray cluster
    object_store_gib: Annotated[float, Field(gt=0)] = 1.0


class Settings(Section):
    run: RunSection = RunSection()
    data: DataSection = DataSection()
    workflow: WorkflowSection = WorkflowSection()
    roles: dict[str, RoleSection] = {}
    models: dict[ModelId, ModelSection] = {"team": ModelSection()}
    sharing: SharingSection | None = None
    rollout: RolloutSection = RolloutSection()
    rewards: tuple[RewardSection, ...] = (RewardSection(use="token_f1"), RewardSection(use="format"))
    credit: CreditSection = CreditSection()
    ppo: PpoSection = PpoSection()
    checkpoints: CheckpointsSection = CheckpointsSection()
    tracking: TrackingSection = TrackingSection()
    cluster: ClusterSection = ClusterSection()

    def ppo_of(self, model_id: str) -> PpoSection:
        """[ppo] with that model's own keys on top.

        Raises:
            UsageError: a key that [ppo] does not have, or a value that does not fit.
        """
        own = self.models[model_id].ppo
        return _validate(PpoSection, {**self.ppo.model_dump(), **own}, f"models.{model_id}.ppo")


def load_settings(path: str | Path, overrides: Sequence[str] = ()) -> Settings:
    """Read a settings file and apply `--set key.path=value` overrides, values in TOML syntax.

    Raises:
        UsageError: the file is missing or not TOML, or a key or value is not as declared.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(
            f"no settings file {str(file)!r} in {Path.cwd()}; pass --config FILE, or start from the "
            "pipeline.toml that ships with Cadre"
        )
    try:
        raw = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: not valid TOML: {error}") from None
    for override in overrides:
        _apply_override(raw, override)
    return parse_settings(raw, str(file))


def parse_settings(raw: Mapping[str, Any], where: str = "settings") -> Settings:
    """Validated settings from nested mappings, [sharing] resolved later by the workflow's roles."""
    settings = _validate(Settings, raw, where)
    for model_id in settings.models:
        settings.ppo_of(model_id)
    return settings


def settings_toml(settings: Settings) -> str:
    """The resolved settings as TOML: what a run keeps, and what reads back to the same settings."""
    return tomlkit.dumps(_without_none(settings.model_dump(mode="json")))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_none(v) for v in value]
    return value


def _apply_override(raw: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    path = [p.strip() for p in key.strip().split(".")]
    if not separator or not all(path):
        raise UsageError(f"--set {override!r}: expected KEY=VALUE, for example --set rollout.group_size=4")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string: --set run.name=first
    node: Any = raw
    for step in path[:-1]:
        node = node.setdefault(step, {}) if isinstance(node, dict) else _list_item(node, step, override)
    if isinstance(node, list):
        node[_index(node, path[-1], override)] = value
    elif isinstance(node, dict):
        node[path[-1]] = value
    else:
        raise UsageError(f"--set {override!r}: {'.'.join(path[:-1])} is a value, it has no key {path[-1]!r}")


def _index(node: list[Any], step: str, override: str) -> int:
    if not step.isdigit() or int(step) >= len(node):
        raise UsageError(
            f"--set {override!r}: {step!r} is not one of the {len(node)} entries (0 to {len(node) - 1})"
        )
    return int(step)


def _list_item(node: Any, step: str, override: str) -> Any:
    if not isinstance(node, list):
        raise UsageError(f"--set {override!r}: a value stands where a section is expected, before {step!r}")
    return node[_index(node, step, override)]


def _validate(model: type[Any], raw: Mapping[str, Any], where: str) -> Any:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise UsageError(_explain(error, model, where)) from None


def _explain(error: ValidationError, model: type[BaseModel], where: str) -> str:
    problems = [_explain_one(e, model) for e in error.errors()]
    head = problems[0] if len(problems) == 1 else f"{len(problems)} problems\n  " + "\n  ".join(problems)
    return f"{where}: {head}"


def _explain_one(problem: Any, model: type[BaseModel]) -> str:
    location = ".".join(str(p) for p in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = _fields_at(model, problem["loc"][:-1])
        hint = did_you_mean(str(problem["loc"][-1]), known)
        return f"unknown key {location}{hint}" + ("" if hint else f"; known here: {', '.join(known)}")
    got = problem.get("input")
    shown = f", got {got!r}" if not isinstance(got, dict | list) else ""
    return f"{location}: {problem['msg'][0].lower()}{problem['msg'][1:]}{shown}"


def _fields_at(model: type[BaseModel], path: Sequence[Any]) -> list[str]:
    """Names of the fields of the section at `path`, walking through dicts and tuples of sections."""
    current: Any = model
    for step in path:
        fields = getattr(current, "model_fields", {})
        annotation = fields[step].annotation if step in fields else current
        current = next((c for c in _sections_in(annotation)), current)
    return list(getattr(current, "model_fields", {}))


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [s for a in getattr(annotation, "__args__", ()) for s in _sections_in(a)]
