"""`pipeline.toml` as types: one model per section, unknown keys refused, defaults here.

Relative paths in the file are relative to the folder that the command runs in. Secrets are never
settings: they come from the environment.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator

from pipeline.settings.adapter import AdapterSection
from pipeline.settings.evaluation import DataPath, EvaluateSection, RewardSection
from pipeline.settings.replace import ReplaceSection
from pipeline.settings.reward_model import RewardModelSection
from pipeline.settings.section import Amount, Count, KeysOf, ModelId, Name, Positive, Seconds, Section, Share
from pipeline.settings.stopping import StoppingSection
from pipeline.settings.tracking import TrackingSection
from pipeline.settings.training import (
    AdvantageSection,
    CounterfactualsSection,
    CreditSection,
    CriticSection,
    MeasureSection,
    PpoSection,
    TrainerSection,
    TrustSection,
)
from stages.waiting import Limits
from stages.weights.distance import TOLERANCE

IN_FLIGHT: Final = 64  # episodes at the same time, for each replica of an engine


class RunSection(Section):
    name: Name = "iteration"
    """Name of the run, which is its folder under root; the same name goes on with it."""
    root: str = "runs"
    """Folder or fsspec URL that holds all runs."""
    seed: int = 0
    """Seed of the run, from which every other seed is derived; any integer, modulo 2**64."""
    max_iterations_without_signal: Positive = 10
    """The run fails after this many iterations in a row in which nothing could be learned."""


class DataSection(Section):
    later = frozenset({"repeats", "delimiter", "encoding"})

    path: DataPath = "facts"
    """A task set that ships (facts, arithmetic, functions, reading, reading_chains), a file, a folder, a
    pattern, a list of these, or a table that names the files of each split."""
    format: str = "auto"
    """Format of the rows: a known one, auto, or package.module:function of a loader."""
    columns: dict[str, str] = {}
    """Which column holds the question, answers, id and so on, for rows of no known format."""
    split: str = "train"
    """The split that is trained on."""
    tasks_per_iteration: Positive = 8
    """Tasks of one iteration."""
    always_first: bool = False
    """Take the same tasks in every iteration, to see whether the team can learn them by heart."""
    max_bad_share: Share = 0.0
    """Share of rows that may be unusable before the file is refused."""
    public_tests: Annotated[int, Field(ge=0)] = 1
    """Number of cases that prompts may show, where a coding task has a single list of tests."""
    limit: int | None = None
    """Keep only the first so many tasks of every split, or the last if negative."""
    repeats: Literal["fold", "reject"] = "fold"
    """Whether a row that repeats an earlier row is folded into it or rejected."""
    delimiter: str = ","
    """Character between the fields of .csv files."""
    encoding: str = "utf-8"
    """Encoding of text files without a byte-order mark."""

    @field_validator("limit")
    @classmethod
    def _some(cls, limit: int | None) -> int | None:
        if limit == 0:
            raise ValueError("0 would leave no tasks; leave it out for all of them")
        return limit


class WorkflowSection(Section):
    later = frozenset({"returns"})

    use: str = "qa_decompose"
    """A workflow that ships, or package.module:build of your own."""
    options: dict[str, Any] = {}
    """Options of the workflow."""
    returns: Literal["last", "first", "majority", "surest"] = "last"
    """Which round's answer a team gives that answers in several: the last one, the first, the most frequent,
    or the one that the role that decides on a stop was surest of (option learned_stop)."""


class SamplingSection(Section):
    later = frozenset({"min_p"})

    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    """Temperature of the role; without it, that of [rollout]."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of probability that is sampled from; 1 is all."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Number of most likely tokens that are sampled from; 0 is all."""
    min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Tokens less likely than this share of the likeliest one are not sampled; 0 is none."""
    stop: tuple[str, ...] = ()
    """Texts that end a reply."""


class RoleSection(Section):
    model: ModelId | None = None
    """The [models.<id>] that the role speaks with; without it, the only model, or what [sharing] says."""
    sampling: SamplingSection = SamplingSection()
    """How replies of the role are sampled."""
    format_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of this role in the reward `format`."""
    max_response_tokens: Positive | None = None
    """Most tokens of a reply; without it, what the workflow says of the role."""
    max_prompt_tokens: Positive | None = None
    """Most tokens of a prompt; without it, what the engine's context leaves."""
    demonstrations: bool = True
    """Put the role's worked examples before its prompt, where the workflow has some."""
    frozen: bool = False
    """Play and reward the role's turns, but do not train on them."""
    ppo: Annotated[dict[str, Any], KeysOf(PpoSection, frozenset({"weight"}))] = {}
    """Keys of [ppo] that differ for this role, and `weight` of its loss."""


class ModelSection(Section):
    later = frozenset({"trust_region", "replicas"})

    base: ModelId | None = None
    """The [models.<id>] whose weights, engine and trainer an adapter shares."""
    adapter: AdapterSection | None = None
    """Train a low-rank adapter instead of all weights."""
    checkpoint: str = "smollm2-135m-instruct"
    """A model that ships, a folder in Hugging Face layout, a URL or a hub id."""
    train: bool = True
    """Whether the model is trained; if not, its roles are only played."""
    engine: str = "auto"
    """What samples: vllm, torch, auto (vllm where it is installed), openai (an API, never trained), scripted,
    demonstrations, or package.module:Class."""
    engine_options: dict[str, Any] = {}
    """Options of the engine."""
    template_options: dict[str, Any] = {}
    """Variables of the chat template, for example {enable_thinking = false}."""
    max_model_len: Positive = 1024
    """Most tokens of a prompt and its reply together."""
    dtype: Literal["auto", "bfloat16", "float32", "float16"] = "auto"
    """Precision of the engine; auto is the checkpoint's, but float32 on a processor that is slow at half
    precision."""
    kv_cache_gib: Annotated[float, Field(gt=0)] = 1.0
    """Memory of the engine's cache, on CPU."""
    gpu_memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.4
    """Share of a GPU's memory that the engine may take."""
    num_gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs of the engine; parts of one are possible."""
    replicas: Annotated[int, Field(ge=1, le=256)] = 1
    """Engines of the model that share its calls, each with memory, GPUs and a cache of its own."""
    max_batch_size: Positive = 64
    """Most requests that the engine decodes together."""
    trainer: TrainerSection = TrainerSection()
    """How the model is trained."""
    ppo: Annotated[dict[str, Any], KeysOf(PpoSection)] = {}
    """Keys of [ppo] that differ for this model."""
    critic: Annotated[dict[str, Any], KeysOf(CriticSection)] = {}
    """Keys of [critic] that differ for this model."""
    trust_region: Annotated[dict[str, Any], KeysOf(TrustSection)] = {}
    """Keys of [trust_region] that differ for this model."""
    reference: str = "initial"
    """Reference policy of the KL terms: initial (the first weights) or a checkpoint."""


class SharingSection(Section):
    """Shorthand that fills in the `model` of every role from the single [models.<id>] as a pattern."""

    regime: Literal["full", "separate", "adapters"] | None = None
    """full (one model for all roles), separate (one for each) or adapters (one for each on one base)."""
    groups: dict[ModelId, tuple[str, ...]] = {}
    """Or groups of roles that share a model: a name for each, with its roles."""


class RolloutSection(Section):
    group_size: Positive = 4
    """Episodes of one task."""
    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Sampling temperature of all roles that have none of their own."""
    max_in_flight: Positive | None = None
    """Most episodes that are played at the same time; without it, 64 times the most replicas of a model."""
    tasks_per_shard: Positive = 8
    """Tasks of one shard; a finished shard survives a kill."""
    players: Positive = 1
    """Processes that play episodes."""
    max_turns: Positive = 64
    """Most turns of an episode."""
    call_timeout_seconds: Seconds = 600
    """Time limit of one call of a model."""
    tool_timeout_seconds: Seconds = 60
    """Time limit of one call of a tool."""
    episode_timeout_seconds: Seconds = 1800
    """Time limit of one episode."""
    call_attempts: Positive = 3
    """How often a call is tried before it counts as failed."""
    max_failed_share: Share = 0.5
    """Share of episodes that may fail for causes that are not the policy's before the run fails."""

    @property
    def in_flight(self) -> int:
        """`max_in_flight`, which resolved settings have."""
        return self.max_in_flight or IN_FLIGHT


class ScheduleSection(Section):
    """In which order the models of a team are updated, and on which plays."""

    use: str = "simultaneous"
    """simultaneous, sequential (one model after another), refill (further tasks for those without signal), or
    an import path."""
    options: dict[str, Any] = {}
    """Options of the schedule, such as order = ["reader", "answerer"] of sequential."""


class CheckpointsSection(Section):
    later = frozenset({"redo_tolerance"})

    every: Positive = 1
    """Updates from one whole checkpoint to the next; the last update gets one in any case."""
    keep: Annotated[int, Field(ge=1)] = 2
    """Newest whole checkpoints of each model that are kept."""
    redo_tolerance: Amount = TOLERANCE
    """How far from the published weights updates that are made again may end, as a share of the way that they
    moved since the checkpoint."""


class SandboxSection(Section):
    """Where programs that a model wrote run: for workflows and rewards that take a `sandbox`."""

    isolation: Literal["auto", "bwrap", "none"] = "auto"
    """What programs of a model run in: bwrap, auto (bwrap, refused where it is missing), or none (no walls,
    as this machine's user)."""
    python: str | None = None
    """Interpreter of the programs; without it, one that their user can read."""
    packages: tuple[str, ...] = ()
    """Folders that programs may import from, beside the standard library."""


class NodeSection(Section):
    """Machines of one kind, as `check` plans for them; memory as a program finds it, in GiB."""

    count: Positive = 1
    """How many of them there are."""
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    """GPUs of each."""
    gpu_memory_gib: Amount = 0.0
    """Memory of each GPU; 0 is not known, and not checked."""
    memory_gib: Amount = 0.0
    """Main memory of each that is free; 0 is not known, and not checked."""


class ClusterSection(Section):
    later = frozenset(
        {
            "nodes",
            "engine_restarts",
            "ray_start_seconds",
            "engine_start_seconds",
            "engine_call_seconds",
            "player_start_seconds",
            "player_call_seconds",
            "trainer_start_seconds",
            "update_seconds",
        }
    )

    address: str = "local"
    """local, or the address of a running Ray cluster."""
    nodes: tuple[NodeSection, ...] = ()
    """The machines that `check` plans for instead of this one; a run asks the machines themselves."""
    object_store_gib: Annotated[float, Field(ge=0.075)] = 1.0
    """Memory of Ray's object store; Ray takes no less than 75 MiB."""
    ray_start_seconds: Seconds = 120
    """Most time until Ray has started its first task."""
    engine_start_seconds: Seconds = 600
    """Most time until all engines are up."""
    engine_call_seconds: Seconds = 600
    """Most time for an engine to take new weights, to sleep or to wake."""
    engine_restarts: Count = 3
    """How often in a row a replica that dies is started anew; ten minutes of service end the row."""
    player_start_seconds: Seconds = 600
    """Most time until a player has its workflow and tools, indexes of a corpus included."""
    player_call_seconds: Seconds = 300
    """Most time for which a player may give no sign of life."""
    trainer_start_seconds: Seconds = 300
    """Most time until all ranks of a trainer are up."""
    update_seconds: Seconds = 3600
    """Most time of one update, of one score pass or of writing one checkpoint."""

    @property
    def limits(self) -> Limits:
        """The limits of waits for engines and players."""
        return Limits(
            self.engine_start_seconds,
            self.player_start_seconds,
            self.engine_call_seconds,
            self.player_call_seconds,
        )


class Settings(Section):
    later = frozenset({"trust_region", "stopping", "counterfactuals", "replace", "reward_model"})

    run: RunSection = RunSection()
    """The run."""
    data: DataSection = DataSection()
    """The tasks."""
    workflow: WorkflowSection = WorkflowSection()
    """The team's course."""
    roles: dict[str, RoleSection] = {}
    """The team's roles, by name."""
    models: dict[ModelId, ModelSection] = {"team": ModelSection()}
    """The models, by id."""
    sharing: SharingSection | None = None
    """Who speaks with which weights, in short."""
    rollout: RolloutSection = RolloutSection()
    """How episodes are played."""
    rewards: tuple[RewardSection, ...] = (RewardSection(use="token_f1"), RewardSection(use="format"))
    """The rewards, in their order."""
    credit: CreditSection = CreditSection()
    """Returns and advantages of rewards."""
    counterfactuals: CounterfactualsSection = CounterfactualsSection()
    """What messages were worth."""
    ppo: PpoSection = PpoSection()
    """The update."""
    trust_region: TrustSection = TrustSection()
    """How far one update may go."""
    stopping: StoppingSection = StoppingSection()
    """Learning when to stop."""
    schedule: ScheduleSection = ScheduleSection()
    """The order of updates within an iteration."""
    advantage: AdvantageSection = AdvantageSection()
    """Advantages of tokens."""
    critic: CriticSection | None = None
    """The critic, for GAE; without it there is none."""
    measure: MeasureSection = MeasureSection()
    """Measures of each role in updates."""
    evaluate: EvaluateSection = EvaluateSection()
    """Evaluations."""
    replace: ReplaceSection = ReplaceSection()
    """Another model in the place of one of the team."""
    reward_model: RewardModelSection = RewardModelSection()
    """A model of which play is better."""
    checkpoints: CheckpointsSection = CheckpointsSection()
    """Whole checkpoints."""
    tracking: TrackingSection = TrackingSection()
    """MLflow."""
    cluster: ClusterSection = ClusterSection()
    """Ray."""
    sandbox: SandboxSection = SandboxSection()
    """Where programs of a model run."""

    @property
    def credit_method(self) -> str:
        """[credit] use, or its default: group_relative, unless GAE makes credit superfluous and no options
        ask for it."""
        superfluous = self.advantage.use == "gae" and not self.credit.options
        return self.credit.use or ("none" if superfluous else "group_relative")
