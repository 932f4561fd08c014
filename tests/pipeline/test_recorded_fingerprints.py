"""Runs that exist can be gone on with: unchanged settings give the fingerprints that older code gave.

`recorded_fingerprints.json` holds the fingerprints of the shipped examples and of some teams with
separate models, adapters, a critic and roles of their own. A change of them breaks every run that was made
before; where that is meant, write them anew with `python -m tests.pipeline.test_recorded_fingerprints` and
say so in CHANGELOG.md.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.assemble import assemble, assemble_evaluation
from pipeline.settings.reading import load_settings, parse_settings
from pipeline.settings.schema import Settings
from pipeline.settings.section import Section
from pipeline.store.differences import plain
from tests.conftest import SCRIPTED, merge

RECORD = Path(__file__).with_name("recorded_fingerprints.json")
EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.toml"))
SOURCES = {"workflow_source", "loss_source"}  # hashes of code that may change between versions

TEAMS: dict[str, dict[str, Any]] = {
    "shared": {"roles": {"reader": {"ppo": {"weight": 2.0, "clip_low": 0.1}, "frozen": False}}},
    "separate": {
        "sharing": {"regime": "separate"},
        "models": {"team": {"ppo": {"clip_high": 0.5}}},
        "roles": {"reader": {"ppo": {"learning_rate": 0.5, "kl_coefficient": 0.2, "weight": 2.0}}},
    },
    "adapters": {"sharing": {"regime": "adapters"}, "ppo": {"kl_coefficient": 0.1, "kl_in": "reward"}},
    "critic": {
        "sharing": {"groups": {"reading": ["reader"], "asking": ["decomposer", "answerer"]}},
        "advantage": {"use": "gae", "lam": 0.9},
        "critic": {"kind": "head"},
        "models": {"team": {"critic": {"learning_rate": 2e-5}}},
        "ppo": {"importance": "truncated", "epochs": 2},
    },
    "frozen role": {
        "roles": {"reader": {"frozen": True, "format_weight": 0.5, "max_response_tokens": 40}},
        "credit": {"silent": "exclude", "silent_by": "token_f1", "truncated": "exclude"},
        "evaluate": {"samples": 2, "temperature": 1.0, "rewards": [{"use": "exact_match"}]},
    },
}


def fingerprints_of(settings: Settings) -> dict[str, Any]:
    """Every fingerprint of a plan and of its evaluation, and its identity, without hashes of sources."""
    plan = assemble(settings)
    every = {
        "identity": plan.identity,
        "stages": plan.fingerprints,
        "evaluation": assemble_evaluation(plan).fingerprints,
    }
    return dict(_without_sources(plain(every)))


def settings_of(name: str, root: str) -> Settings:
    """The settings of an example or a team of TEAMS, with runs under `root`."""
    if name in TEAMS:
        return parse_settings(merge(merge(SCRIPTED, {"run": {"root": root}}), TEAMS[name]))
    file = next(file for file in EXAMPLES if file.stem == name)
    isolation = ["sandbox.isolation=none"] if "[sandbox]" in file.read_text("utf-8") else []
    return load_settings(file, [f'run.root="{root}"', *isolation])


def _without_sources(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        if key in ("sources", "said_by_others"):
            return {name: source and "a source" for name, source in value.items()}
        if set(value) == {"credit", "source"}:
            return {**value, "source": value["source"] and "a source"}
        return {k: "a source" if k in SOURCES and v else _without_sources(v, k) for k, v in value.items()}
    return [_without_sources(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", [*(file.stem for file in EXAMPLES), *TEAMS])
def test_unchanged_settings_give_the_fingerprints_of_older_code(name: str, tmp_path: Path) -> None:
    recorded = json.loads(RECORD.read_text("utf-8"))[name]
    now = fingerprints_of(settings_of(name, str(tmp_path)))
    assert now == recorded
    assert json.dumps(now, sort_keys=True) == json.dumps(recorded, sort_keys=True)  # 600 is not 600.0


class Old(Section):
    size: int = 1


class New(Section):
    later = frozenset({"colour"})

    size: int = 1
    colour: str = "blue"


class Outer(Section):
    inner: New = New()
    several: tuple[New, ...] = ()
    named: dict[str, New] = {}  # noqa: RUF012 (pydantic copies defaults)


def test_a_key_that_came_later_is_in_no_fingerprint_until_it_is_set() -> None:
    assert New(size=2).fingerprint() == Old(size=2).fingerprint() == {"size": 2}
    assert New(colour="blue").fingerprint() == {"size": 1}
    assert New(colour="red").fingerprint() == {"size": 1, "colour": "red"}


def test_sections_inside_sections_leave_out_later_keys_too() -> None:
    outer = Outer(several=(New(), New(colour="red")), named={"a": New()})
    assert outer.fingerprint() == {
        "inner": {"size": 1},
        "several": [{"size": 1}, {"size": 1, "colour": "red"}],
        "named": {"a": {"size": 1}},
    }


def test_without_later_keys_a_fingerprint_is_the_section_as_plain_values(tmp_path: Path) -> None:
    settings = settings_of("critic", str(tmp_path))
    for section in (settings.rollout, settings.ppo, settings.credit, settings.models["team"]):
        assert section.fingerprint() == section.settled().model_dump(mode="json", exclude=set(section.later))


def _record() -> None:
    with tempfile.TemporaryDirectory() as root:
        names = [*(file.stem for file in EXAMPLES), *TEAMS]
        every = {name: fingerprints_of(settings_of(name, root)) for name in names}
    lines = [f"{json.dumps(name)}: {json.dumps(every[name], sort_keys=True)}" for name in sorted(every)]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    _record()
