"""`pipeline.toml` as types: one model per section, unknown keys refused, defaults here.

Relative paths in the file are relative to the folder that the command runs in. Secrets are never
settings: they come from the environment.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from pipeline.settings.section import ModelId, Name, Positive, Seconds, Section, Share, validate
from pipeline.settings.tracking import TrackingSection
from pipeline.settings.training import (
    AdvantageSection,
    CreditSection,
    CriticSection,
    PpoSection,
    TrainerSection,
)


class RunSection(Section):
    name: Name = "iteration"
    root: str = "runs"  # a folder or any fsspec URL
    seed: int = 0
    max_iterations_without_signal: Positive = 10  # in a row, then the run fails


DataPath = str | tuple[str, ...] | dict[str, str | tuple[str, ...]]


class DataSection(Section):
    path: DataPath = "facts"  # shipped: facts, arithmetic, functions; or files, folders, a table by split
    format: str = "auto"  # one of workflows.data.formats.NAMES, auto, or package.module:function
    columns: dict[str, str] = {}  # question, answers, id, …: for rows of no known format
    split: str = "train"
    tasks_per_iteration: Positive = 8
    always_first: bool = False  # the same tasks in every iteration: can the team learn them by heart?
    max_bad_share: Share = 0.0  # share of rows that may be unusable before the file is refused
    public_tests: Annotated[int, Field(ge=0)] = 1  # cases of one list of tests that prompts may show
    limit: int | None = None  # the first so many tasks of every split, the last if negative
    repeats: Literal["fold", "reject"] = "fold"  # rows that say again what an earlier row said
    delimiter: str = ","  # between the fields of .csv files
    encoding: str = "utf-8"  # of text files without a byte-order mark

    @field_validator("limit")
    @classmethod
    def _some(cls, limit: int | None) -> int | None:
        if limit == 0:
            raise ValueError("0 would leave no tasks; leave it out for all of them")
        return limit


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
    frozen: bool = False  # its turns are played and rewarded, but not trained on
    ppo: dict[str, Any] = {}  # keys of [ppo] that differ for this role, and weight, of its loss


class AdapterSection(Section):
    """A low-rank adapter: what a model trains instead of all its weights."""

    rank: Positive = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0  # its output is multiplied by alpha / rank
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"  # or names of layers, such as q_proj
    train_embeddings: bool = False  # embedding and output layer too, in full

    @field_validator("targets")
    @classmethod
    def _some_layer(cls, targets: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if not targets:
            raise ValueError('no layer is named; name some, or say "all-linear"')
        return targets


class ModelSection(Section):
    base: ModelId | None = None  # the [models.<id>] whose weights, engine and trainer an adapter shares
    adapter: AdapterSection | None = None  # None: all weights are trained
    checkpoint: str = "smollm2-135m-instruct"  # a shipped name, a folder, a URL or a hub id
    train: bool = True
    # vllm, torch, auto; openai (an API, never trained); scripted, demonstrations; package.module:Class
    engine: str = "auto"
    engine_options: dict[str, Any] = {}
    template_options: dict[str, Any] = {}  # variables of the chat template: {enable_thinking = false}
    max_model_len: Positive = 1024
    # auto: the checkpoint's, but float32 on a processor that is slow at half precision
    dtype: Literal["auto", "bfloat16", "float32", "float16"] = "auto"
    kv_cache_gib: Annotated[float, Field(gt=0)] = 1.0
    gpu_memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.4
    num_gpus: Annotated[float, Field(ge=0)] = 0.0
    max_batch_size: Positive = 64
    trainer: TrainerSection = TrainerSection()
    ppo: dict[str, Any] = {}  # keys of [ppo] that differ for this model
    critic: dict[str, Any] = {}  # keys of [critic] that differ for this model
    reference: str = "initial"  # whom KL terms hold it to: its first weights, or a checkpoint


class SharingSection(Section):
    """Shorthand that fills in the `model` of every role from the single [models.<id>] as a pattern."""

    regime: Literal["full", "separate", "adapters"] | None = None  # adapters: one for each role on one base
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
    weight: float = 1.0  # 0: a metric, kept and shown but no part of the reward
    roles: tuple[str, ...] | None = None  # whom it goes to; None: all roles
    steps: tuple[str, ...] | None = None  # and at which steps of the workflow; None: all
    options: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """The name of its part in `reward_parts`."""
        return self.name or self.use.rsplit(":", 1)[-1].rsplit(".", 1)[-1]


class EvaluateSection(Section):
    """How a team is evaluated: its own tasks, sampling and tables, apart from training."""

    path: DataPath | None = None  # None: that of [data]
    split: str = "dev"
    tasks: Positive | None = None  # None: all of the split
    samples: Positive = 1  # episodes of one task; several give pass@k
    temperature: Annotated[float, Field(ge=0, le=10)] = 0.0  # 0 is greedy
    every: Annotated[int, Field(ge=0)] = 0  # iterations from one to the next while training; 0: never
    rewards: tuple[RewardSection, ...] = ()  # the metrics; none: [[rewards]] without format and length
    best: Name | None = None  # the metric whose best checkpoint is kept; None: the first
    solved_at: float = 1.0  # a sample with this value or more is solved, for pass@k
    max_failed_share: Share = 0.5  # of episodes, by causes that are not the policy's


class CheckpointsSection(Section):
    every: Positive = 1  # updates from one whole checkpoint to the next; the last one gets one in any case
    keep: Annotated[int, Field(ge=1)] = 2  # newest whole checkpoints of each model


class SandboxSection(Section):
    """Where programs that a model wrote run: for workflows and rewards that take a `sandbox`."""

    isolation: Literal["auto", "bwrap", "none"] = "auto"  # none: without walls, as this machine's user
    python: str | None = None  # the programs' interpreter; None: one that their user can read
    packages: tuple[str, ...] = ()  # folders that programs may import from beside the standard library


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
    advantage: AdvantageSection = AdvantageSection()
    critic: CriticSection | None = None  # None: there is none
    evaluate: EvaluateSection = EvaluateSection()
    checkpoints: CheckpointsSection = CheckpointsSection()
    tracking: TrackingSection = TrackingSection()
    cluster: ClusterSection = ClusterSection()
    sandbox: SandboxSection = SandboxSection()

    @property
    def credit_method(self) -> str:
        """[credit] use, or its default: group_relative, unless GAE makes credit superfluous and no options
        ask for it."""
        superfluous = self.advantage.use == "gae" and not self.credit.options
        return self.credit.use or ("none" if superfluous else "group_relative")

    def ppo_of(self, model_id: str) -> PpoSection:
        """[ppo] with that model's own keys on top, and those of its role where it has a single one.

        Raises:
            UsageError: a key that [ppo] does not have, or a value that does not fit.
        """
        values, where = {**self.ppo.model_dump(), **self.models[model_id].ppo}, f"models.{model_id}.ppo"
        roles = self.roles_of(model_id)
        if len(roles) == 1:
            own = {k: v for k, v in self.roles[roles[0]].ppo.items() if k != "weight"}
            values, where = values | own, f"roles.{roles[0]}.ppo" if own else where
        found: PpoSection = validate(PpoSection, values, where)
        return found

    def critic_of(self, model_id: str) -> CriticSection | None:
        """[critic] with that model's own keys on top; None where there is no [critic].

        Raises:
            UsageError: a key that [critic] does not have, or a value that does not fit.
        """
        own = self.models[model_id].critic
        if self.critic is None and not own:
            return None
        values = {**(self.critic.model_dump() if self.critic else {}), **own}
        found: CriticSection = validate(CriticSection, values, f"models.{model_id}.critic")
        return found

    def roles_of(self, model_id: str) -> list[str]:
        """The roles that speak with this model, as far as the settings say so by now."""
        return [role for role, section in self.roles.items() if section.model == model_id]
