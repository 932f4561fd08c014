"""What installs the lock: uv is told of every place that pip would look in."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "requirements/install.py"


def test_uv_looks_where_pip_looks_and_what_is_set_nearer_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = runpy.run_path(str(SCRIPT))
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://one.example/simple\nextra-index-url =\n    https://two.example/simple\n"
        "    file:///three\n[install]\nfind-links = /wheels\n"
    )
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_FIND_LINKS", "/others /more")
    monkeypatch.setenv("UV_INDEX_STRATEGY", "first-index")
    found = install["uv_environment"](install["pip_settings"]())
    assert found["UV_DEFAULT_INDEX"] == "https://one.example/simple"
    assert found["UV_INDEX"].split()[-2:] == ["https://two.example/simple", "file:///three"]
    assert found["UV_FIND_LINKS"] == "/others,/more"
    assert found["UV_INDEX_STRATEGY"] == "first-index"


def test_what_neither_can_install_fails(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("no-such-package-of-anyone==9.9.9\n")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(lock)],
        check=False,
        capture_output=True,
        text=True,
        env={"PIP_NO_INDEX": "1", "PATH": ""},
    )
    assert done.returncode == 1
    assert "so pip does" in done.stderr
