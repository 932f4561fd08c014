"""The settings of a team with a newcomer, the schedule that trains it alone, and what a resume compares."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.plan.assemble import assemble
from pipeline.plan.resolve import complete
from pipeline.replacement.schedule import Only
from pipeline.replacement.state import State
from pipeline.replacement.team import aligned, in_turn, with_newcomer
from pipeline.settings.reading import load_settings
from pipeline.settings.replace import STEPS, ReplaceSection
from pipeline.settings.schema import Settings
from pipeline.store.run import Run
from stages.base import check_chain
from stages.sample import SampleStage
from stages.update import UpdateStage
from workflows.errors import UsageError

EXAMPLE = Path(__file__).parents[2] / "docs/examples/signal.toml"
ADAPTERS = ['sharing.regime="adapters"', "models.team.adapter={rank=4, alpha=8}"]


def team(root: Path, *overrides: str) -> Settings:
    settings = load_settings(EXAMPLE, [f"run.root={root}", 'tracking.uri="none"', *overrides])
    return complete(settings, ["sender", "receiver"])


def test_a_model_of_its_own_is_replaced_by_a_checkpoint(tmp_path: Path) -> None:
    settings = with_newcomer(team(tmp_path, 'sharing.regime="separate"'), "sender", "tiny-answers")
    assert settings.models["sender"].checkpoint == "tiny-answers"
    assert settings.models["receiver"].checkpoint == "tiny-words"
    assert settings.models["sender"].engine == "torch"
    assemble(settings)


def test_an_adapter_gets_the_newcomer_as_a_base_of_its_own(tmp_path: Path) -> None:
    settings = with_newcomer(team(tmp_path, *ADAPTERS), "sender", "tiny-answers")
    sender = settings.models["sender"]
    assert (sender.base, sender.checkpoint) == (None, "tiny-answers")
    assert sender.adapter is not None
    assert (sender.max_model_len, sender.dtype, sender.engine) == (16, "float32", "torch")
    assert settings.models["receiver"].base == "team"
    plan = assemble(settings)
    assert set(plan.engine_specs) == {"sender", "team"}
    both = with_newcomer(settings, "receiver", "tiny-answers")
    assert "team" not in both.models  # a base that nobody stands on any more
    assemble(both)


def test_an_adapter_of_the_same_base_stays_on_it(tmp_path: Path) -> None:
    settings = with_newcomer(team(tmp_path, *ADAPTERS), "sender", "tiny-words")
    assert settings.models["sender"].base == "team"
    assert set(assemble(settings).engine_specs) == {"team"}


def test_while_it_is_aligned_every_model_has_a_radius_and_the_newcomer_an_anchor(tmp_path: Path) -> None:
    section = ReplaceSection(step_radius=0.3, settle_radius=0.1, anchor=0.5)
    settings = team(tmp_path, 'sharing.regime="separate"', "trust_region.radius=9.0")
    plan = assemble(aligned(settings, "sender", section))
    trust = {name: spec.trust for name, spec in plan.trainer_specs.items()}
    assert {name: t.radius for name, t in trust.items() if t} == {"sender": 0.3, "receiver": 0.1}
    assert all(t is not None and t.reject and t.backtrack for t in trust.values())
    assert plan.algorithms["sender"].loss.kl_coefficient == 0.5
    assert plan.algorithms["receiver"].loss.kl_coefficient == 0


def test_only_the_models_that_are_named_are_trained_each_on_its_share_of_the_tasks(tmp_path: Path) -> None:
    plan = in_turn(assemble(team(tmp_path, 'sharing.regime="separate"')), ["receiver", "sender"])
    blocks = []
    while (block := plan.schedule.next_block(plan, 0, [{}] * len(blocks))) is not None:
        blocks.append(block)
    trained = [[s.model.model_id for s in b.stages if isinstance(s, UpdateStage)] for b in blocks]
    assert trained == [["receiver"], ["sender"]]
    samples = [s for b in blocks for s in b.stages if isinstance(s, SampleStage)]
    assert [(s.offset, s.tasks_per_iteration, s.stride) for s in samples] == [(0, 2, 4), (2, 2, 4)]
    assert blocks[0].fingerprints["rollout"]["schedule"] == {"use": "only", "order": ["receiver", "sender"]}


def test_blocks_of_a_team_that_is_aligned_read_no_table_that_they_do_not_write(tmp_path: Path) -> None:
    settings = team(tmp_path, 'sharing.regime="separate"')
    plan = in_turn(assemble(aligned(settings, "sender", ReplaceSection())), ["sender"])
    block = plan.schedule.next_block(plan, 0, [])
    assert block is not None
    carried = {name: schema for s in block.stages for name, schema in s.inputs.items() if "before" in name}
    check_chain(block.stages, carried)


def test_models_that_are_not_trained_and_too_few_tasks_are_refused(tmp_path: Path) -> None:
    plan = assemble(team(tmp_path, 'sharing.regime="separate"', "data.tasks_per_iteration=1"))
    with pytest.raises(UsageError, match="is not trained in this team"):
        Only(("stranger",)).check(plan)
    with pytest.raises(UsageError, match="tasks_per_iteration=2"):
        Only(("sender", "receiver")).check(plan)
    Only(("sender",)).check(plan)


def test_steps_are_in_their_order_and_named_once() -> None:
    assert ReplaceSection(steps=("settle", "swap")).steps == ("swap", "settle")
    assert ReplaceSection().steps == STEPS
    with pytest.raises(ValueError, match="named twice"):
        ReplaceSection(steps=("swap", "swap"))


def test_another_replacement_of_the_same_name_is_refused_and_the_same_goes_on(tmp_path: Path) -> None:
    run = Run(str(tmp_path), "child")
    state = State(run)
    state.begin({"model": "sender", "newcomer": "a"})
    state.keep("old", {"mean": 0.5})
    again = State(run)
    again.begin({"model": "sender", "newcomer": "a"})
    assert again.step("old") == {"mean": 0.5}
    assert again.outcome is None
    with pytest.raises(UsageError, match=r"another replacement.*newcomer"):
        State(run).begin({"model": "sender", "newcomer": "b"})
