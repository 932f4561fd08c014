"""The weights that a run stands on are known by their content."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline.store.initial_weights import KEY, check_and_record, folders_of, refuse_others
from pipeline.store.run import Run
from stages.training.loss.spec import ReferenceSpec
from stages.training.spec import TrainerSpec
from stages.weights.content import PIECE_BYTES, PIECES, content_fingerprint
from workflows.errors import UsageError


def weights(folder: Path, seed: int, rows: int = 64) -> str:
    folder.mkdir(exist_ok=True)
    numbers = np.random.default_rng(seed).normal(size=(rows, 1024)).astype(np.float32)
    save_file({"w": numbers}, folder / "model.safetensors")
    return str(folder)


def test_equal_weights_have_one_fingerprint_wherever_they_lie_and_others_another(tmp_path: Path) -> None:
    rows = 3 * PIECES * PIECE_BYTES // 4096  # three times what is read of it
    one, copy, other = (weights(tmp_path / name, seed, rows) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert content_fingerprint(one) == content_fingerprint(copy) != content_fingerprint(other)
    file = tmp_path / "b" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert content_fingerprint(one) != content_fingerprint(copy)


def test_a_base_that_was_replaced_is_refused_and_one_that_was_moved_is_not(tmp_path: Path) -> None:
    run = Run(str(tmp_path), "r")
    base = weights(tmp_path / "base", 0)
    assert check_and_record(run, {"team": base}) is None  # a new run
    assert check_and_record(run, {"team": weights(tmp_path / "moved", 0)}) is None
    weights(tmp_path / "base", 1)
    for check in (check_and_record, refuse_others):
        with pytest.raises(
            UsageError, match=r"'team' in .*base are not those that run 'r' began with.*--new"
        ):
            check(run, {"team": base})


def test_an_older_run_gets_its_record_now_with_a_remark(tmp_path: Path) -> None:
    run = Run(str(tmp_path), "r")
    run.iteration(0).folder.write_text("done.json", "{}")
    base = weights(tmp_path / "base", 0)
    remark = check_and_record(run, {"team": base})
    assert remark is not None
    assert "no record of the content of its initial weights (team)" in remark
    assert check_and_record(run, {"team": base}) is None
    recorded = json.loads((tmp_path / "r" / "run.json").read_text())[KEY]
    assert recorded == {"team": {"folder": base, "content": content_fingerprint(base)}}


def test_anchors_of_kl_terms_are_among_them_and_may_be_set_to_another_folder(tmp_path: Path) -> None:
    run = Run(str(tmp_path), "r")
    base, anchor = weights(tmp_path / "base", 0), weights(tmp_path / "anchor", 1)

    def folders(reference: str) -> dict[str, str]:
        spec = TrainerSpec("team", "team", base, reference=ReferenceSpec(reference))
        return folders_of({"team": spec}, {"judge": base})

    assert folders("initial") == {"judge": base, "team": base}
    check_and_record(run, folders(anchor))
    check_and_record(run, folders(weights(tmp_path / "other", 2)))  # a setting, told as such
    check_and_record(run, folders(anchor))
    weights(tmp_path / "anchor", 3)
    with pytest.raises(UsageError, match="'team reference'"):
        check_and_record(run, folders(anchor))
