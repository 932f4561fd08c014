"""Where the sandbox may run: without bubblewrap, without isolation, on other processors, by settings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.resolve import load_and_resolve, workflow_options
from pipeline.plan.rewards import weighted_rewards
from pipeline.settings.reading import parse_settings
from pipeline.settings.schema import Settings
from tests.support.boxes import WALLS, open_up, run
from workflows.errors import UsageError
from workflows.tools.code import seccomp
from workflows.tools.code.find import find_isolation
from workflows.tools.code.isolation import Sandbox
from workflows.tools.code.judge import CodeJudge

pytestmark = pytest.mark.skipif(WALLS is None, reason="no bubblewrap that works on this machine")


def test_without_bubblewrap_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for tool in ("setpriv", "ldd"):
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"no bubblewrap.*apt-get install bubblewrap.*isolation = \"none\""):
        find_isolation.__wrapped__(Sandbox())
    broken = tmp_path / "bwrap"
    broken.write_text("#!/usr/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    open_up(tmp_path)
    with pytest.raises(UsageError, match=r"No permissions to create new namespace.*user namespaces"):
        find_isolation.__wrapped__(Sandbox("bwrap"))


def test_no_isolation_is_said_and_warned_of(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "cadre.sandbox"):
        said = CodeJudge(sandbox="none").check()
    assert "none" in said
    assert "network" in said
    with pytest.raises(UsageError, match="one of auto, bwrap, none"):
        CodeJudge(sandbox="docker")
    with pytest.raises(UsageError, match="no Python"):
        find_isolation(Sandbox(python="/no/such/python"))


def test_without_walls_there_are_still_limits_and_a_folder_of_its_own():
    isolation = find_isolation(Sandbox("none"))
    end = run(
        "import os; print(os.getcwd(), os.listdir('.'), sorted(os.environ)); open('x', 'w')",
        isolation=isolation,
    )
    folder, rest = end.stdout.decode().split(" ", 1)
    assert not Path(folder).exists()
    assert rest.startswith("[]")
    assert "VIRTUAL_ENV" not in rest


def test_the_filter_knows_two_processors_and_refuses_to_guess():
    for machine in ("x86_64", "aarch64"):
        filtered = seccomp.program(machine)
        assert filtered is not None
        assert len(filtered) % 8 == 0
    assert seccomp.program("sparc") is None


def test_settings_give_the_sandbox_to_who_takes_one(scripted: Callable[..., dict[str, Any]]):
    def of(workflow: dict[str, Any], **more: Any) -> Settings:
        return parse_settings({**scripted(), "workflow": workflow, **more})

    rewards = [{"use": "rewards.pass_rate_by_round:PassRateByRound"}]
    settings = of({"use": "workflows.teams.code:build"}, rewards=rewards, sandbox={"isolation": "none"})
    team = load_and_resolve(settings)
    assert team.options == workflow_options(settings) == {"sandbox": Sandbox("none")}
    verifier: Any = team.workflow.tools["verifier"]
    assert verifier.judge.sandbox == Sandbox("none")
    (item,) = weighted_rewards(team.rewards, team.workflow, team.format_weights, team.sandbox).items
    reward: Any = item.reward
    assert reward.sandbox == Sandbox("none")
    given = of({"use": "workflows.teams.code:build", "options": {"sandbox": "bwrap"}})
    assert workflow_options(given)["sandbox"] == "bwrap"
    assert workflow_options(of({"use": "qa_decompose"})) == {}
