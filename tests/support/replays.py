"""Plays of whole teams on scripted engines, again from their own rows: for replays from a turn."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workflows.engine import AnyEngine, Message, Sampling
from workflows.loading import load_workflow
from workflows.models import Model, ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.playing.base_episode import BaseEpisode
from workflows.playing.play import Player
from workflows.playing.record import Played
from workflows.roles import RoleSettings
from workflows.script import AnyWorkflow
from workflows.testing import ScriptedEngine, echo_qa, late
from workflows.trajectory import EPISODES, TURNS, rows_to_table

QUESTION = {"question": "In which city was the author of Emma born?"}
PROBLEM = {"problem": "What is 12 + 30?"}
CODE = {
    "problem": "Return n.",
    "fn_name": "same",
    "public_tests": {"kind": "call", "fn_name": "same", "cases": [{"args": [3], "expected": 3}]},
}
SHIPPED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "single": ("single", {}, QUESTION),
    "qa_decompose": ("qa_decompose", {"top_k": 2}, QUESTION),
    "qa_rewrite": ("qa_rewrite", {"top_k": 2}, QUESTION),
    "qa_summarise": ("qa_summarise", {"top_k": 2}, QUESTION),
    "qa_select": ("qa_select", {"top_k": 3, "top_k_again": 2}, QUESTION),
    "mask": ("mask", {"max_rounds": 2, "top_k": 2}, QUESTION),
    "code": ("code", {"max_rounds": 2}, CODE),
    "math": ("math", {}, PROBLEM),
    "reading": ("reading", {"hops": 2}, QUESTION | {"statements": ["Max keeps the coats.", "Lisa sings."]}),
    "signal": ("signal", {}, {"symbol": "red"}),
    "debate": ("debate", {"rounds": 2, "judge": True}, QUESTION),
    "voting": ("voting", {"voters": 3}, QUESTION),
    "evaluate_optimise": ("evaluate_optimise", {"max_rounds": 3}, QUESTION),
    "conversations": ("evaluate_optimise", {"max_rounds": 3, "conversations": True}, PROBLEM | {"task": "x"}),
    "orchestrate_workers": ("orchestrate_workers", {"max_strategies": 2}, QUESTION),
    "orchestrate": ("orchestrate", {"max_width": 2}, QUESTION),
}
"""Every workflow that ships, by a name for tests: what it is, its options, and a task's inputs."""

# What a clock decides, and what says that a row is a copy.
_OF_THE_PLAY = ("queued_at", "started_at", "first_token_at", "ended_at", "seconds")
LINEAGE = ("origin", "base_episode_id", "replay_from_turn", "num_copied_tokens")


class Verifier:
    """Passes a program or not, as its text has it: a verifier without a sandbox."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        passed = sum(map(ord, request["code"] or "")) % 2
        verdict = "passed" if passed else "wrong_answer"
        return {"verdict": verdict, "passed": passed, "total": 1, "pass_rate": float(passed),
                "all_passed": bool(passed), "cases": [{"verdict": verdict, "detail": ""}], "skipped": 0,
                "reason": None}  # fmt: skip


def team_of(name: str) -> tuple[AnyWorkflow, dict[str, Any]]:
    """A shipped workflow without its sandbox, and the inputs of a task."""
    use, options, inputs = SHIPPED[name]
    options = {**options, "task": "mathematics"} if name == "conversations" else options
    workflow = load_workflow(use, options)
    if "verifier" in workflow.tools:
        workflow = workflow.with_tools({"verifier": Verifier()})
    return workflow, {k: v for k, v in inputs.items() if k != "task"}


def babble(messages: Sequence[Message], sampling: Sampling) -> str:
    """Fills in the form of most prompts, with words that the seed makes different each time."""
    luck = random.Random(sampling.seed)
    said = echo_qa(messages, sampling) if luck.random() < 0.8 else "no form"
    return f"{said} {luck.randrange(10**9)}" if luck.random() < 0.5 else said


class Stage:
    """One player with a scripted model for each role, which plays one task as often as it is asked to."""

    def __init__(
        self,
        workflow: AnyWorkflow,
        inputs: Mapping[str, Any],
        *,
        reply: Callable[..., str] = babble,
        engines: Mapping[str, AnyEngine] | None = None,
        settings: Mapping[str, RoleSettings] | None = None,
        order: int | None = None,
    ) -> None:
        before = None if order is None else late(order)
        self.engines: Any = engines or {
            role: ScriptedEngine(reply, model_id=role, before=before) for role in workflow.roles
        }
        of_role = {
            role: role if role in self.engines else next(iter(self.engines)) for role in workflow.roles
        }
        models = ModelMap({m: Model(m, self.engines[m].base_id, "x") for m in self.engines}, of_role)
        self.player = Player(workflow, self.engines, models, settings or {}, PlayLimits(), 5)
        self.task = {"task_id": "task/1", "split": "train", "inputs": inputs}

    def play(self, base: BaseEpisode | None = None, *, sample: int = 3, block: int = 0) -> Played:
        return asyncio.run(self.aplay(base, sample=sample, block=block))

    async def aplay(self, base: BaseEpisode | None = None, *, sample: int = 3, block: int = 0) -> Played:
        return await self.player.play(self.task, iteration=2, sample=sample, block=block, base=base)

    @property
    def asked(self) -> int:
        """How many completions the models gave."""
        return sum(len(engine.completions) for engine in self.engines.values())


def stored(played: Played) -> list[dict[str, Any]]:
    """The turns as they are read from a file: logprobs in single precision."""
    rows: list[dict[str, Any]] = rows_to_table(played.turns, TURNS).to_pylist()
    return rows


def content(played: Played, *but: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What a play says, as it is stored: without clocks, lineage and the columns `but`."""
    left_out = {*_OF_THE_PLAY, *LINEAGE, *but}
    (episode,) = rows_to_table([played.episode], EPISODES).to_pylist()
    turns = [{k: v for k, v in row.items() if k not in left_out} for row in stored(played)]
    without = {*left_out, "num_prompt_tokens", "num_response_tokens"}  # of an episode: what was asked
    return turns, {k: v for k, v in episode.items() if k not in without}


def places(played: Played, origin: str) -> list[tuple[str, int, str]]:
    """The places of the turns that have this origin."""
    return [(t["step"], t["round"], t["branch"]) for t in played.turns if t["origin"] == origin]
