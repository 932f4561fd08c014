"""Another model in the place of one of a team, on the torch engine: taken back bit for bit, or kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipeline.plan.assemble import assemble
from pipeline.replacement.asked import Asked, asked_of
from pipeline.replacement.replace import ACCEPTED, ROLLED_BACK, run_replacement
from pipeline.replacement.show import replacement_dict
from pipeline.replacement.state import State
from pipeline.replacement.team import stored_settings
from pipeline.run.session import session
from pipeline.settings.reading import load_settings
from pipeline.store.fork import fork_run
from pipeline.store.run import Run
from stages.base import Quiet
from stages.training.checkpoint import read_manifest
from stages.weights.resolve import resolve_checkpoint
from tests.whole.test_blocks import same_blocks
from workflows.errors import UsageError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]
EXAMPLE = Path(__file__).parents[2] / "docs/examples/signal.toml"
SMALL = (
    'data.path="2"',
    "data.tasks_per_iteration=2",
    "rollout.group_size=4",
    # whatever batch a request lands in changes its last bits
    "rollout.max_in_flight=1",
    "models.team.max_batch_size=1",
)


@pytest.fixture(scope="module")
def parent(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A team of two models that has made one iteration."""
    root = tmp_path_factory.mktemp("replace")
    own = [f"run.root={root}", 'run.name="parent"', 'tracking.uri="none"', "evaluate.every=0"]
    plan = assemble(load_settings(EXAMPLE, [*own, *SMALL, 'sharing.regime="separate"']))
    with session(plan, Quiet(), signals=False) as runner:
        runner.run_iteration()
        return runner.run


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Other weights of the same family."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("newcomer") / "weights"
    shutil.copytree(resolve_checkpoint("tiny-words"), folder)
    draw = torch.Generator().manual_seed(7)
    tensors = load_file(folder / "model.safetensors")
    moved = {n: t + 0.1 * torch.randn(t.shape, generator=draw) for n, t in tensors.items()}
    save_file(moved, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def asked(parent: Run, newcomer: str, name: str, steps: list[str] | None, *overrides: str) -> Asked:
    parent.read_info()
    more = ["replace.align_iterations=1", "replace.distill_passes=5", *overrides]
    return asked_of(parent, "sender", newcomer, name=name, steps=steps, overrides=more)


def replaced(what: Asked) -> State:
    return run_replacement(what, Quiet(), lambda: None, lambda line: None, signals=False)


def go_on(run: Run) -> None:
    """One more iteration."""
    with session(assemble(stored_settings(run, run.name, [])), Quiet(), signals=False) as runner:
        runner.run_iteration()


def weights(run: Run, model: str) -> tuple[int, str]:
    newest = run.weights_versions(model)[-1]
    return newest, read_manifest(run.checkpoint_uri(model, newest))["hash"]


def test_a_swap_that_would_lose_is_taken_back_and_the_run_goes_on_as_its_parent(
    parent: Run, newcomer: str
) -> None:
    # with a tolerance of 0 a bound of 0, no difference at all, is not enough
    what = asked(parent, newcomer, "back", ["swap"], "replace.eps=0")
    state = replaced(what)
    assert state.outcome == ROLLED_BACK
    found = replacement_dict(what, state)
    assert [row["step"] for row in found["steps"]] == ["old", "swap"]
    assert found["steps"][1]["per_message"] > 0
    assert replaced(what).data == state.data  # decided: nothing is made again
    run = Run(what.run.folder.url.rpartition("/")[0], "back")
    assert run.read_info()["parent"]["run"] == "parent"
    assert run.info["replacement"]["outcome"] == ROLLED_BACK
    twin = fork_run(parent, "twin")
    go_on(twin)
    go_on(run)
    same_blocks(run, twin, [0, 1])
    for model in ("sender", "receiver"):
        assert weights(run, model) == weights(twin, model)


@pytest.mark.long
def test_a_newcomer_is_taught_and_aligned_and_stays_and_a_kill_changes_nothing(
    parent: Run, newcomer: str
) -> None:
    class Halt(Exception):
        pass

    def halting(line: str) -> None:
        if line.startswith(("taught", "iteration", "aligned")):
            raise Halt

    what = asked(parent, newcomer, "stays", None, "replace.eps=2", "replace.distill_learning_rate=1e-3")
    halts = 0
    for _ in range(4):  # broken off once it is taught, after its iteration, and once it is aligned
        try:
            run_replacement(what, Quiet(), lambda: None, halting, signals=False)
        except Halt:
            halts += 1
    assert halts >= 2
    state = replaced(what)
    assert state.outcome == ACCEPTED
    steps = state.data["steps"]
    assert steps["taught"]["per_message"] < steps["swap"]["per_message"]
    assert steps["settle"]["order"] == ["receiver"]
    run = Run(what.run.folder.url.rpartition("/")[0], "stays")
    info = run.read_info()
    assert (info["begins"], info["parent"]["iterations"]) == ({"sender": 2}, 1)
    kept = json.loads(json.dumps(steps["align"]["rounds"]))
    trained = [
        m.partition("/")[2]
        for i in run.iterations()[1:]
        for m in run.iteration(i).tables()[0]
        if m.startswith("updates/")
    ]
    assert trained == ["sender"] * len(kept) + ["receiver"]
    go_on(run)  # all models train again, and the newcomer goes on from where it stands
    assert weights(run, "sender")[0] >= 2
    unbroken = asked(
        parent, newcomer, "unbroken", None, "replace.eps=2", "replace.distill_learning_rate=1e-3"
    )
    other = replaced(unbroken).data["steps"]
    assert other == steps


def test_what_can_not_be_replaced_is_refused_before_anything_starts(parent: Run, newcomer: str) -> None:
    parent.read_info()
    for model, more, words in (
        ("speaker", [], "no model 'speaker'"),
        ("sender", ["evaluate.split=train"], "what the team trains on"),
        ("sender", ["evaluate.tasks=1"], "at least 2 of them"),
        ("sender", ["models.sender.train=false"], "neither taught nor aligned"),
    ):
        with pytest.raises(UsageError, match=words):
            asked_of(parent, model, newcomer, overrides=more)
    with pytest.raises(UsageError, match="is not a step"):
        asked_of(parent, "sender", newcomer, steps=["distil"])
    with pytest.raises(UsageError, match="the run itself"):
        asked_of(parent, "sender", newcomer, name="parent")
