"""Commands, settings and code of the README and of the pages under docs/ are the ones that work."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from pipeline.cli.app import app
from pipeline.experiments.study.spec import read_study
from pipeline.settings.reading import parse_settings
from tests.support.pages import PAGES, README, ROOT, Block, blocks

COMMAND = re.compile(
    r"python -m pipeline ((?:run |trace |reward-model )?[a-z][a-z-]*)([^`#\n]*(?:\\\n[^`#\n]*)*)"
)
NOT_IN_A_CHECKOUT = re.compile(r"pip install '?cadre")  # no package index has Cadre


def text_of(page: Path) -> str:
    return page.read_text("utf-8")


def verbs() -> dict[str, frozenset[str]]:
    """Every verb of the command line, with its options."""
    return dict(_verbs(typer.main.get_command(app), ""))


def _verbs(command: object, name: str) -> Iterator[tuple[str, frozenset[str]]]:
    for key, sub in getattr(command, "commands", {}).items():
        if getattr(sub, "hidden", False):
            continue
        full = f"{name} {key}".strip()
        if hasattr(sub, "commands"):
            yield from _verbs(sub, full)
        else:
            yield full, frozenset(o for p in sub.params for o in (*p.opts, *p.secondary_opts))


def test_ci_calls_the_readmes_test_command_and_make_knows_every_target_that_pages_name() -> None:
    assert "`make test`" in text_of(README)
    assert re.search(r"^make test$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pattern = r"`make ([a-z-]+)`|^make ([a-z-]+)"
    named = {
        name
        for page in PAGES
        for match in re.findall(pattern, text_of(page), re.MULTILINE)
        for name in match
        if name
    }
    assert "iteration" in named
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_is_one_that_the_command_line_knows(page: Path) -> None:
    known = verbs()
    for verb, rest in COMMAND.findall(text_of(page)):
        if verb == "run" and rest.strip(" ….") == "":
            continue
        assert verb in known, f"{page.name}: no verb {verb!r}"
        unquoted = re.sub(r"'[^']*'|\"[^\"]*\"", "", rest)
        for option in re.findall(r"(?<!\S)(--[a-z-]+|-[a-z])(?=[\s=]|$)", unquoted):
            assert option in known[verb] | {"--help"}, f"{page.name}: {verb} has no option {option}"


def test_the_readme_lists_every_verb_once_with_a_link() -> None:
    rows = re.findall(r"^\| `([a-z -]+)` \| .+ \| \[.+\]\((.+)\) \|$", text_of(README), re.MULTILINE)
    assert sorted(verb for verb, _ in rows) == sorted(verbs())


def test_the_readme_can_be_read_in_one_go() -> None:
    assert len(text_of(README).splitlines()) <= 220


def test_the_index_has_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = set(re.findall(r"\]\(([^)#]+)", text_of(index)))
    assert {page.name for page in PAGES if page not in (README, index)} <= linked


@pytest.mark.parametrize("block", blocks("toml"), ids=lambda block: block.place)
def test_settings_that_pages_show_are_valid(block: Block, tmp_path: Path) -> None:
    raw = tomllib.loads(block.text)
    if "study" in raw:
        (tmp_path / "study.toml").write_text(block.text, "utf-8")
        read_study(str(tmp_path / "study.toml"), [])
        return
    if set(raw) == {"variants"}:
        return  # a file of variants: its settings are read over those of a run
    parse_settings(raw)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere_headings_included(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", text_of(page)):
        path, _, heading = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), f"{page.name}: {target}"
        if heading:
            assert heading in headings(file), f"{page.name}: {target}"


def headings(page: Path) -> set[str]:
    """Headings as their links are written."""
    lines = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.stem)
def test_no_page_installs_from_an_index_that_does_not_have_it(page: Path) -> None:
    assert not NOT_IN_A_CHECKOUT.search(text_of(page))


def test_commands_of_the_readme_find_their_interpreter() -> None:
    """Each way to install activates the environment before the first `python -m pipeline`."""
    for install in [b.text for b in blocks("", README) if ".venv" in b.text or "make model" in b.text]:
        assert "source .venv/bin/activate" in install.split("python -m pipeline")[0]
    first = text_of(README).index("python -m pipeline")
    assert text_of(README).index("source .venv/bin/activate") < first


# --- the team of the README ---------------------------------------------------------------------------


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the files that the README's and the pages' blocks name in their first line."""
    for block in blocks("python"):
        if named := re.match(r"# (acme_team/\w+\.py)\n", block.text):
            file = tmp_path / named[1]
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_in(folder: Path, code: str) -> None:
    (folder / "trial.py").write_text(code)
    done = subprocess.run([sys.executable, "trial.py"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_workflow_of_the_readme_plays(team: Path) -> None:
    (trial,) = [b.text for b in blocks("python", ROOT / "docs/workflows.md") if "play_once" in b.text]
    run_in(team, trial)


REWARDS = """
from acme_team.brevity import Brevity
from acme_team.rewards import brevity
from rewards.base import PlayedEpisode
from rewards.scoring.score import score_turns
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from rewards.testing import check_forms
from tests.support.stored_runs import SHARED, Shape, part_tables

tables = part_tables(0, 0, Shape(turns=96, group_size=4, tasks_per_part=1), 3, SHARED["full"])
played = [tables[name] for name in ("tasks", "turns", "episodes")]
check_forms(Brevity(10), *played)
one, other = (
    score_turns(*played, WeightedRewards((WeightedReward("b", 1.0, reward),)))
    for reward in (Brevity(), brevity)
)
assert one.equals(other)
assert set(one["reward"].drop_null().to_pylist()) <= {0.0, 1.0}
assert 0 < one["reward"].null_count < len(one)  # tools get none
"""


def test_the_rewards_of_the_pages_give_the_same_in_both_forms(team: Path) -> None:
    run_in(team, f"import sys; sys.path.append({str(ROOT)!r})\n{REWARDS}")


def test_the_settings_of_the_readme_find_its_team(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.plan.assemble import assemble

    monkeypatch.syspath_prepend(str(team))
    (raw,) = [tomllib.loads(b.text) for b in blocks("toml", README)]
    rows = [f'{{"query": "What is {n} + {n}?", "targets": ["{2 * n}"]}}\n' for n in range(8)]
    (team / "questions.jsonl").write_text("".join(rows))
    plan = assemble(parse_settings(raw | {"run": {"root": str(team / "runs")}}))
    assert plan.workflow.answer_step == "write"
    assert set(plan.workflow.roles) == {"author", "critic"}
