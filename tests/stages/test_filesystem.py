"""URLs whose client is not installed are refused with a command that installs it."""

from __future__ import annotations

import shlex
import sys

import pytest

from stages.tables.filesystem import filesystem
from workflows.errors import UsageError


@pytest.mark.parametrize(
    ("url", "module", "package"),
    [
        ("s3://bucket/runs", "s3fs", "s3fs"),
        ("gs://bucket/runs", "gcsfs", "gcsfs"),
        ("abfs://c/runs", "adlfs", "adlfs"),
    ],
)
def test_a_missing_client_is_installed_by_the_command_that_the_message_names(
    url: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    classes = sys.modules["fsspec.registry"]._registry  # those that were imported already
    monkeypatch.delitem(classes, url.partition("://")[0], raising=False)
    with pytest.raises(UsageError, match="needs a package that is not installed") as refused:
        filesystem(url)
    command = shlex.split(str(refused.value).rpartition("run: ")[2])
    assert command == [sys.executable, "-m", "pip", "install", package]
