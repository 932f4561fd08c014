"""What installs the lock: uv is told of every place that pip would look in."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "requirements/install.py"


def test_uv_looks_where_pip_looks_and_the_environment_wins(
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
    monkeypatch.setenv("PIP_FIND_LINKS", "/others")
    words = install["uv_command"]("lock.txt", install["pip_settings"]())
    given = {
        option: [words[i + 1] for i, word in enumerate(words) if word == option]
        for option in ("--default-index", "--index", "--find-links", "-r")
    }
    assert given["--default-index"] == ["https://one.example/simple"]
    assert given["--index"][-2:] == ["https://two.example/simple", "file:///three"]
    assert given["--find-links"] == ["/others"]
    assert given["-r"] == ["lock.txt"]


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
