"""Floats that are left open: bfloat16 where the hardware has it, float32 where it would be slow."""

from __future__ import annotations

from pathlib import Path

import pytest

import stages.weights.precision as precision
from stages.weights.checkpoints import describe_checkpoint
from stages.weights.precision import (
    cpu_computes_bf16,
    engine_dtype,
    is_rounded,
    trainer_precision,
    weights_gib,
)
from stages.weights.resolve import resolve_checkpoint

X86 = "processor\t: 0\nmodel name\t: bf16 is in this name\nflags\t\t: fpu avx2 {}\n\n"


@pytest.mark.parametrize(
    ("text", "has"),
    [
        (X86.format("avx512_bf16"), True),
        (X86.format("amx_tile amx_bf16"), True),
        (X86.format("avx512f avx512vl"), False),
        ("processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n", True),
        ("processor\t: 0\nFeatures\t: fp asimd\n", False),
        ("", False),
    ],
)
def test_a_processor_says_what_it_computes_in(tmp_path: Path, text: str, has: bool) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert cpu_computes_bf16(file) is has


def test_a_system_that_says_nothing_has_none(tmp_path: Path) -> None:
    assert not cpu_computes_bf16(tmp_path / "nothing")


@pytest.mark.parametrize("native", [True, False])
def test_only_what_is_left_open_follows_the_hardware(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    monkeypatch.setattr(precision, "cpu_computes_bf16", lambda: native)
    here = "bf16" if native else "fp32"
    assert [trainer_precision("auto", gpus) for gpus in (0.0, 1.0)] == [here, "bf16"]
    assert [trainer_precision(asked, 0.0) for asked in ("bf16", "fp32")] == ["bf16", "fp32"]
    slow = "auto" if native else "float32"
    assert [engine_dtype("auto", 0.0, stored) for stored in ("bfloat16", "float16")] == [slow, slow]
    assert engine_dtype("auto", 1.0, "bfloat16") == "auto"
    assert engine_dtype("auto", 0.0, "float32") == "auto"
    assert engine_dtype("bfloat16", 0.0, "bfloat16") == "bfloat16"


def test_an_engine_with_fewer_digits_than_its_trainer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "cpu_computes_bf16", lambda: False)
    assert is_rounded("fp32", "auto", 1.0, "bfloat16")
    assert is_rounded("fp32", "bfloat16", 0.0, "float32")
    assert not is_rounded("fp32", "auto", 0.0, "bfloat16")  # which is float32 here
    assert not is_rounded("fp32", "auto", 1.0, "float32")
    assert not is_rounded("bf16", "auto", 1.0, "bfloat16")


def test_weights_take_what_they_are_loaded_as() -> None:
    info = describe_checkpoint(resolve_checkpoint("tiny"))
    assert info.dtype == "float32"
    assert weights_gib(info, "bfloat16", 0) * 2 == weights_gib(info, "float32", 0)
    assert weights_gib(info, "auto", 0) == pytest.approx(weights_gib(info, "float32", 0), rel=0.1)
