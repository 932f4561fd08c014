"""The team that traces show, as the settings of a run: its roles, tools, steps and models."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pipeline.settings.reading import parse_settings, settings_toml
from pipeline.store.differences import plain
from pipeline.store.manifest import package_versions
from pipeline.traces.imported import Imported
from pipeline.traces.names import IMPORTED
from workflows.draw import drawing
from workflows.errors import UsageError, did_you_mean
from workflows.script import AnyWorkflow
from workflows.teams.imported import USE, build
from workflows.vocabulary import Event

NO_CHECKPOINT: Final = "unknown"  # the weights of a model of which only traces are at hand


@dataclass(slots=True)
class Seen:
    """Who acts in traces, in the order of appearance."""

    model_of: dict[str, str] = field(default_factory=dict)  # of roles
    actor_of: dict[str, str] = field(default_factory=dict)  # of steps: a role, a tool, or "" for neither
    tools: dict[str, None] = field(default_factory=dict)
    last: Counter[str] = field(default_factory=Counter)  # steps of episodes' last replies
    answer_step: str | None = None  # as an exported run says

    def add(self, imported: Imported) -> None:
        last = None
        for turn in imported.turns:
            step, role, tool = (turn.get(name) for name in ("step", "role", "tool"))
            if turn.get("event") == Event.LLM and role:
                self.model_of.setdefault(role, turn.get("model_id") or IMPORTED)
                last = step
            elif turn.get("event") == Event.TOOL and tool:
                self.tools.setdefault(tool)
            if step:
                is_tool = turn.get("event") == Event.TOOL
                actor = (tool if is_tool else role if turn.get("event") == Event.LLM else None) or ""
                self.actor_of.setdefault(step, actor)
        self.last.update([last] if last else [])
        if self.answer_step is None and imported.workflow:
            self.answer_step = imported.workflow.get("answer_step")

    def options(self, answer_step: str | None) -> dict[str, Any]:
        """The options of workflow `imported`.

        Raises:
            UsageError: no reply was given in the step that is to answer.
        """
        roles = list(self.model_of) or ["agent"]
        # a tool may be called as a role is: both act, and a workflow tells its actors by name
        renamed = {tool: f"{tool}_tool" if tool in self.model_of else tool for tool in self.tools}
        steps = {step: self._actor(actor, renamed) for step, actor in self.actor_of.items()}
        acting = set(steps.values())
        steps |= {name: name for name in (*roles, *renamed.values()) if name not in acting}
        spoken = [step for step, actor in steps.items() if actor in roles]
        if answer_step is not None and answer_step not in spoken:
            raise UsageError(
                f"--answer-step {answer_step!r}{did_you_mean(answer_step, spoken)}: no role replies in that "
                f"step; there are {', '.join(spoken)}"
            )
        often = self.last.most_common(1)[0][0] if self.last else None
        answer = answer_step or (self.answer_step if self.answer_step in spoken else None) or often
        options: dict[str, Any] = {"roles": roles, "tools": list(renamed.values()), "steps": steps}
        return options | ({"answer_step": answer} if answer else {})

    def _actor(self, actor: str, renamed: Mapping[str, str]) -> str:
        return actor if actor in self.model_of else renamed.get(actor, "")


def run_settings(
    root: str,
    name: str,
    seen: Seen,
    tasks: str | None,
    answer_step: str | None,
    checkpoint: str | None,
) -> tuple[str, AnyWorkflow]:
    """Settings that replays and ablations of imported traces begin with, and the workflow that they name.

    Raises:
        UsageError: what traces name can't be a workflow.
    """
    options = seen.options(answer_step)
    models = list(dict.fromkeys(seen.model_of.values())) or [IMPORTED]
    of_model = {"checkpoint": checkpoint or NO_CHECKPOINT}
    raw: dict[str, Any] = {
        "run": {"name": name, "root": root},
        "workflow": {"use": USE, "options": options},
        "models": {model: dict(of_model) for model in models},
        "roles": {role: {"model": seen.model_of.get(role, models[0])} for role in options["roles"]},
        "tracking": {"uri": "none"},
        **({"data": {"path": tasks}} if tasks is not None else {}),
    }
    return settings_toml(parse_settings(raw, "the settings of imported traces")), build(**options)


def run_info(name: str, workflow: AnyWorkflow, imported: Mapping[str, Any]) -> dict[str, Any]:
    """What `run.json` says of a run that was imported."""
    now = time.time()
    return {
        "name": name,
        "identity": plain({"workflow": {"use": USE}, "imported": dict(imported)}),
        "regime": "imported",
        "created_at": now,
        "used_at": now,
        "packages": dict(package_versions()),
        "tracker": {},
        "graph": drawing(workflow),
    }
