"""A finder from elsewhere in a team of two adapters on SmolLM2-135M: put in cold the team loses, taught and
aligned it does not.

Tasks and workflow are `reading`: a finder hands on one of four sentences, an answerer sees that alone.

- *The team* stands on weights that imitated demonstrations of both roles, with an adapter for each role that
  has learned from one batch of plays.
- *The stranger* is an adapter that was trained elsewhere, for a team whose answerer sees the text too: its
  finder points at the sentence by its number, and does not quote it.

`reading-swap` puts the stranger in cold, on the torch engine; it must be rolled back, and the run's next
iteration must be its parent's, bit for bit. `reading-taught` makes every step, and the gate must take the
stranger in the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pipeline.plan.assemble import assemble
from pipeline.settings.reading import load_settings
from pipeline.store.run import Run
from tests.learning.train import EXAMPLES, exported, learn
from workflows.data.tasks import choose, load_tasks
from workflows.engine import Message, Sampling
from workflows.loading import load_workflow
from workflows.testing import Reply, play_once

EXAMPLE: Final = EXAMPLES / "reading.toml"
PLAYS: Final = "reward/exact_match/mean"
IMITATED: Final = 4  # iterations of imitation
IMITATED_TASKS: Final = 24  # of each
ADAPTER: Final = "models.team.adapter={rank=16, alpha=32}"
CHEAP: Final = ["tracking.uri=none", "evaluate.every=0", "checkpoints.every=1000", "ppo.weight_decay=0.0"]
IMITATION: Final = [
    'sharing.regime="full"',
    ADAPTER,
    f"data.tasks_per_iteration={IMITATED_TASKS}",
    "rollout.group_size=1",  # a second play of a demonstration is the same
    'credit={use="rejection", options={at_least=0.5}}',
    'ppo={loss="supervised", learning_rate=1e-3, mini_batches=4, micro_batch_tokens=1536}',
]
TEAM: Final = [
    'sharing.regime="adapters"',
    ADAPTER,
    'models.team.engine="torch"',
    "models.team.kv_cache_gib=0.25",
    "data.tasks_per_iteration=12",
    "rollout.group_size=3",
    'credit={use="group_relative", options={by="task_role"}}',  # also without any signal
    "ppo.learning_rate=3e-4",
    "evaluate.tasks=40",
]
REPLACED: Final = [
    "replace.contexts=36",  # all that the team has said in this place
    "replace.format_contexts=12",
    "replace.distill_learning_rate=1e-3",
    "replace.distill_passes=12",
    "replace.align_iterations=3",
    "replace.step_radius=0.5",
    "replace.radius=20",
    "replace.eps=0.1",  # 40 tasks: one that is lost already puts the bound at -0.07
]
FIXED: Final = [
    *(f"models.{model}.max_batch_size=1" for model in ("team", "finder", "answerer")),
    "rollout.max_in_flight=1",
    "rollout.group_size=2",
]
"""Of the iteration that must be the parent's: whatever batch a request lands in changes its last bits."""
CASES: Final = {"reading-swap": (["swap"], REPLACED), "reading-taught": (None, REPLACED)}
MODEL: Final = "finder"


def team(folder: str, seed: int) -> Run:
    """The team of two adapters, after one iteration of plays."""
    start = imitating("quotes", folder, seed)
    own = [f'run.root="{folder}"', f"run.name=reading-{seed}", f"run.seed={seed}"]
    plan = assemble(load_settings(EXAMPLE, [*TEAM, *CHEAP, *own, f'models.team.checkpoint="{start}"']))
    learn(plan, 1, PLAYS, lambda done: f"the team: plays {done.metrics[PLAYS]:.3f}, {done.seconds:.0f} s")
    run = Run(folder, f"reading-{seed}")
    run.read_info()
    return run


def newcomer(folder: str, seed: int) -> str:
    """The stranger's weights, its adapter within their base."""
    return imitating("points", folder, seed)


def imitating(convention: str, folder: str, seed: int) -> str:
    """Weights that imitated a team with a convention; what an earlier call made is there."""
    name = f"{convention}-{seed}"
    shown = Path(folder) / f"{name}.jsonl"
    own = [f'run.root="{folder}"', f"run.name={name}", f"run.seed={seed}"]
    if not shown.exists():
        settings = load_settings(EXAMPLE, [*IMITATION, *CHEAP, *own])
        workflow = {"use": settings.workflow.use, "options": settings.workflow.options}
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.write_text(demonstrations(convention, workflow, seed), encoding="utf-8")
    speak = ['models.team.engine="demonstrations"', f'models.team.engine_options={{file="{shown}"}}']
    plan = assemble(load_settings(EXAMPLE, [*IMITATION, *CHEAP, *own, *speak]))
    learn(plan, IMITATED, PLAYS, lambda done: f"{convention}: iteration {done.index}, {done.seconds:.0f} s")
    (weights,) = exported(plan, f"{folder}/weights-{name}", merge=True).values()
    return weights


def demonstrations(convention: str, workflow: Mapping[str, Any], seed: int) -> str:
    """Chats of a team with a convention on all tasks that imitate it, one a line."""
    table = load_tasks("reading").tasks
    played = load_workflow(workflow["use"], workflow["options"])
    chats: dict[str, None] = {}
    for start in range(0, IMITATED * IMITATED_TASKS, IMITATED_TASKS):
        for task in choose(table, "train", seed, start, IMITATED_TASKS).to_pylist():
            inputs, gold = json.loads(task["inputs"]), json.loads(task["gold"])
            for turn in play_once(played, inputs, replies(convention, inputs, gold)).turns:
                answer = {"role": "assistant", "content": turn["response_text"]}
                chat = {"messages": [*json.loads(turn["messages"]), answer]}
                chats[json.dumps(chat, ensure_ascii=False)] = None
    return "".join(f"{chat}\n" for chat in chats)


def replies(convention: str, inputs: Mapping[str, Any], gold: Mapping[str, Any]) -> dict[str, Reply]:
    """What each role says to a task: the finder quotes the sentence that helps, or points at it."""
    (sentence,) = gold["sentences"]
    said = sentence if convention == "quotes" else str(inputs["statements"].index(sentence) + 1)

    def find(messages: Sequence[Message], sampling: Sampling) -> str:
        return f"<sentence>{said}</sentence>"

    def answer(messages: Sequence[Message], sampling: Sampling) -> str:
        return f"<answer>{gold['answers'][0]}</answer>"

    return {"finder": find, "answerer": answer}
