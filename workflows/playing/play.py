"""The player: plays episodes of one workflow on engines, many at a time, and returns their rows.

    player = Player(workflow, engines, models, role_settings, PlayLimits(), run_seed=0)
    played = await player.play(task, iteration=0, sample=0)

One player serves any number of concurrent `play` calls; tools are loaded once. A broken episode is
data, not an exception: `play` raises only when it is cancelled, when it is used wrongly, or when a tool
can't be started.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

from workflows.engine import TASK, AnyEngine
from workflows.errors import RunFailed, UsageError, describe, did_you_mean
from workflows.graph import Workflow
from workflows.hooks import ToolHooks, hooks_of
from workflows.models import ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.playing.base_episode import BaseEpisode
from workflows.playing.counterfactual import Counterfactual
from workflows.playing.decision import check_options
from workflows.playing.episode import Episode
from workflows.playing.execute import GraphRun
from workflows.playing.record import EpisodeId, Played, Record
from workflows.playing.returned import add_returned
from workflows.playing.script_run import ScriptRun
from workflows.playing.speaker import Speaker
from workflows.playing.threads import ToolThreads
from workflows.roles import RoleSettings
from workflows.script import AnyWorkflow, ScriptWorkflow
from workflows.state import TurnKey
from workflows.vocabulary import StopReason


class Player:
    """Plays one workflow with one model map.

    Args:
        engines: by model id.
        models: says which model speaks for which role; its roles are exactly the workflow's.
        role_settings: sampling by role; a role that is left out has the defaults.
        run_seed: with the place of a call in the run, it gives the seed of that call.
        hold_stops: whether roles that decide on a stop never get it (`workflows.playing.decision`).

    Raises:
        UsageError: roles, engines or settings that do not fit each other.
    """

    def __init__(
        self,
        workflow: AnyWorkflow,
        engines: Mapping[str, AnyEngine],
        models: ModelMap,
        role_settings: Mapping[str, RoleSettings],
        limits: PlayLimits,
        run_seed: int,
        hold_stops: bool = False,
    ):
        self._hold_stops = hold_stops
        self._workflow = workflow
        self._engines = dict(engines)
        self._speakers = _speakers(workflow, engines, models, role_settings)
        self._limits = limits
        self._run_seed = run_seed
        self._threads = ToolThreads()
        self._starting = asyncio.Lock()
        self._started = False

    @property
    def stray_threads(self) -> int:
        """Threads of tools that still run although their call was given up."""
        return self._threads.stray

    async def start(self) -> None:
        """Check that prompts can fit, and load the tools: `await tool.start()` of each that has one.

        Done once, at the latest by `play`.

        Raises:
            UsageError: a role's prompt is too long before anything is put into it, or a role keeps a
                conversation on a model whose engine or chat template can't continue one.
            RunFailed: a tool that can't be started.
        """
        async with self._starting:
            if not self._started:
                for speaker in self._speakers.values():
                    _check_room(speaker)
                    if speaker.role.conversation:
                        speaker.check_conversation()
                    if speaker.role.options:
                        check_options(speaker)
                for name, tool in self._workflow.tools.items():
                    await _start_tool(name, tool)
                self._started = True

    async def play(
        self,
        task: Mapping[str, Any],
        *,
        iteration: int,
        sample: int,
        block: int = 0,
        base: BaseEpisode | None = None,
    ) -> Played:
        """Play one episode of `task`: `task_id`, `inputs` (decoded) and, if known, `split`. Never `gold`.

        With a `base`, turns of that stored episode are served where they agree with what would be asked now.
        Of a `Counterfactual`, one of them delivers something else.

        Raises:
            UsageError: the task carries gold, or lacks a field.
            WorkflowError: the only recipient of an intervention is not asked where the message is missing.
            asyncio.CancelledError: the caller was cancelled; calls in flight are cancelled first.
        """
        _check_task(task)
        if not self._started:
            await self.start()
        identity = EpisodeId(iteration, task.get("split"), task["task_id"], sample, block)
        TASK.set(task["task_id"])
        if isinstance(base, Counterfactual) and (glimpse := base.for_all) is not None:
            await self._play(task, identity, glimpse)
            base = base.seen_by(glimpse)
        return await self._play(task, identity, base)

    async def _play(self, task: Mapping[str, Any], identity: EpisodeId, base: BaseEpisode | None) -> Played:
        record = Record(identity, self._workflow.order, self._limits.max_turns)
        episode = Episode(
            record,
            self._speakers,
            self._workflow.tools,
            self._versions,
            self._limits,
            self._run_seed,
            self._threads,
            base,
            self._hold_stops,
        )
        stop_reason = StopReason.FINISHED
        try:
            async with asyncio.timeout(self._limits.episode_timeout_seconds) as clock:
                stop_reason = await self._run(episode, task["inputs"])
                if isinstance(self._workflow, Workflow) and not record.failures:
                    add_returned(record, self._workflow)
        except TimeoutError:
            if not clock.expired():
                raise
            record.expired = True
        finally:
            await asyncio.shield(asyncio.ensure_future(episode.close()))
        played = record.close(stop_reason)
        return played if base is None else base.mark(played)

    async def _run(self, episode: Episode, inputs: Mapping[str, Any]) -> StopReason:
        workflow = self._workflow
        try:
            if isinstance(workflow, ScriptWorkflow):
                return await ScriptRun(workflow, episode, inputs, self._limits.grace_seconds).run()
            return await GraphRun(workflow, episode, inputs).run()
        except Exception as error:  # a fault of ours costs its episode, not the others of the shard
            episode.record.fault(TurnKey("", 0, ""), f"playing workflow {workflow.name!r}", error)
            return StopReason.WORKFLOW_ERROR

    def _versions(self) -> dict[str, int]:
        return {model_id: engine.policy_version for model_id, engine in self._engines.items()}


async def _start_tool(name: str, tool: Any) -> None:
    try:
        loaded = hooks_of(tool, ToolHooks).start()
        if inspect.isawaitable(loaded):
            await loaded
    except UsageError:
        raise
    except Exception as error:
        raise RunFailed(f"tool {name!r} can't be started: {describe(error)}") from error


def _check_room(speaker: Speaker) -> None:
    """Refuse a role whose prompt is too long whatever is put into it."""
    role, shown = speaker.role, speaker.settings.demonstrations
    least = speaker.length(role.least_messages(demonstrations=shown))
    if least > speaker.max_prompt_tokens:
        examples = len(role.demonstrations) if shown else 0
        raise UsageError(
            f"role {role.name!r}: its prompt has {least} tokens before anything is put into it "
            f"({examples} demonstrations), and there is room for {speaker.max_prompt_tokens}; raise "
            f"models.{speaker.model.model_id}.max_model_len or roles.{role.name}.max_prompt_tokens, or set "
            f"roles.{role.name}.demonstrations = false"
        )


def _check_task(task: Mapping[str, Any]) -> None:
    if "gold" in task:
        raise UsageError(
            f"task {task.get('task_id')!r} carries its gold answer into the workflow, where prompts and "
            "routes could read it; hand over task_id, split and inputs only"
        )
    for name in ("task_id", "inputs"):
        if name not in task:
            raise UsageError(f"a task for the player needs {name!r}; it has: {', '.join(map(str, task))}")
    if not isinstance(task["inputs"], Mapping):
        raise UsageError(f"inputs of task {task['task_id']!r} must be a decoded JSON object")


def _speakers(
    workflow: AnyWorkflow,
    engines: Mapping[str, AnyEngine],
    models: ModelMap,
    role_settings: Mapping[str, RoleSettings],
) -> dict[str, Speaker]:
    for given, what in ((models.roles, "the model map"), (role_settings, "the settings")):
        for name in given:
            if name not in workflow.roles:
                raise UsageError(
                    f"{what} names role {name!r}, which workflow {workflow.name!r} does not have"
                    f"{did_you_mean(name, workflow.roles)}; it has: {', '.join(workflow.roles)}"
                )
    speakers = {}
    for role in workflow.roles.values():
        if role.name not in models.roles:
            raise UsageError(
                f"role {role.name!r} of workflow {workflow.name!r} has no model; "
                f"set [roles.{role.name}] model"
            )
        model = models.model_of(role.name)
        if model.model_id not in engines:
            raise UsageError(
                f"model {model.model_id!r} has no engine; engines: {', '.join(engines) or 'none'}"
            )
        speaker = Speaker(role, role_settings.get(role.name, RoleSettings()), model, engines[model.model_id])
        if speaker.max_prompt_tokens < 1:
            raise UsageError(
                f"role {role.name!r}: max_response_tokens {speaker.max_response_tokens} leaves no room for a "
                f"prompt in the {speaker.engine.max_model_len} tokens of model {model.model_id!r}"
            )
        speakers[role.name] = speaker
    return speakers
