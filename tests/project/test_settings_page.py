"""docs/settings.md is made from the settings' types, and every key has its sentence there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.settings.page import PAGE, page, parts
from pipeline.settings.schema import Settings
from tests.support.pages import ROOT

KEYS = [(part.header, name, field) for part in parts() for name, field in part.section.model_fields.items()]


def test_the_page_is_that_of_the_types() -> None:
    shown = (ROOT / PAGE).read_text("utf-8")
    assert shown == page(), "run: python -m pipeline.settings.page"


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    command = [sys.executable, "-m", "pipeline.settings.page"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / PAGE).read_text("utf-8") == page()


def test_every_section_of_the_settings_is_on_the_page() -> None:
    headers = {part.header.strip("[]").partition(".")[0] for part in parts()}
    assert headers == set(Settings.model_fields)


@pytest.mark.parametrize(("header", "key", "field"), KEYS, ids=[f"{h}-{k}" for h, k, _ in KEYS])
def test_a_key_has_one_plain_sentence(header: str, key: str, field) -> None:
    text = field.description or ""
    assert text.endswith("."), f"{header} {key}: {text!r}"
    assert text[0].isupper() or text.partition(" ")[0].strip(",") in str(field.annotation) + str(
        field.default
    ), text
    assert not text.startswith(("Of ", "Those", "The same", "It ")), text
    assert text.count(". ") == 0, f"{header} {key}: more than one sentence"
