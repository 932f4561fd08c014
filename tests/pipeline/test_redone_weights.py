"""Weights of updates that were made again: equal ones pass, others are measured, strange ones are refused."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pipeline.run import redone_updates
from pipeline.run.redone_updates import Redone
from stages.weights.distance import TOLERANCE, distance
from workflows.errors import RunFailed

START = torch.zeros(10)
WAY = torch.full((10,), 2.0)


def write(folder: Path, weights: torch.Tensor) -> str:
    folder.mkdir(parents=True)
    save_file({"layer": weights.contiguous(), "tied": weights.clone()}, folder / "model.safetensors")
    return hashlib.blake2b(weights.numpy().tobytes(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Spec:
    model_id: str = "team"


@dataclass
class Written:
    hash: str


@dataclass
class Trained:
    """A trainer that stands at these weights."""

    weights: torch.Tensor
    spec: Any = Spec()

    def publish(self, uri: str) -> Written:
        return Written(write(Path(uri) / "weights", self.weights))


def compared(tmp_path: Path, weights: torch.Tensor, *, gone: bool = False, source: str | None = None) -> None:
    published = write(tmp_path / "2/weights", START + WAY)
    write(tmp_path / "start", START)
    if gone:
        (tmp_path / "2/weights/model.safetensors").unlink()
        (tmp_path / "2/weights").rmdir()
    redone = Redone({}, None, published, source)  # type: ignore[arg-type]
    redone_updates._compare(
        Trained(weights),  # type: ignore[arg-type]
        [redone],
        str(tmp_path / "2-redone"),
        str(tmp_path / "2/weights"),
        str(tmp_path / "start"),
        TOLERANCE,
    )


def test_the_published_weights_are_passed_in_silence(tmp_path: Path, capsys: Any) -> None:
    compared(tmp_path, START + WAY)
    assert capsys.readouterr().out == ""


def test_a_rounding_of_another_machine_is_one_message_with_what_was_measured(
    tmp_path: Path, capsys: Any
) -> None:
    compared(tmp_path, START + WAY + 0.02)
    out = " ".join(capsys.readouterr().out.split())
    assert "1 update since its last checkpoint was made again" in out
    assert "difference is 0.01 of the way that they have moved, the largest of one weight 0.02" in out
    assert "the run goes on" in out


def test_weights_that_no_rounding_explains_are_refused_with_the_number_and_a_way_on(tmp_path: Path) -> None:
    with pytest.raises(
        RunFailed, match=r"1\.5 of the way .*more than checkpoints\.redo_tolerance = 0\.5.*raise"
    ):
        compared(tmp_path, START - WAY / 2)


def test_a_changed_loss_and_published_weights_that_are_gone_are_said(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(RunFailed, match="source of loss 'mine'"):
        compared(tmp_path / "a", START, source="mine")
    compared(tmp_path / "b", START, gone=True)
    assert "the published ones are gone" in " ".join(capsys.readouterr().out.split())


def test_a_distance_is_over_all_tensors_that_both_have(tmp_path: Path) -> None:
    write(tmp_path / "one", START + 3)
    (tmp_path / "other").mkdir()
    save_file({"layer": START + 2}, tmp_path / "other/model.safetensors")  # its output layer is tied
    apart = distance(str(tmp_path / "one"), str(tmp_path / "other"))
    assert (apart.largest, apart.share, apart.of_the_way) == (1.0, 0.5, False)
    assert "of the weights' length" in str(apart)
    same = distance(str(tmp_path / "one"), str(tmp_path / "one"), str(tmp_path / "one"))
    assert (same.largest, same.share, same.of_the_way) == (0.0, 0.0, True)
