"""What a trainer's process leaves out of the libraries that it imports, and that it stays usable."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stages.process.imports import without

TRAINER = """
import os, sys
from stages.process.imports import import_trainer_libraries
import_trainer_libraries()
left_out = {"sklearn", "scipy", "mlflow", "torch._inductor.compile_fx"}
assert not left_out & sys.modules.keys(), left_out & sys.modules.keys()
assert "TORCHDYNAMO_DISABLE" not in os.environ
import deepspeed, mlflow, scipy.stats, sklearn.metrics, torch  # whoever needs them later gets them whole
from deepspeed.runtime.zero.muon import original_muon
assert mlflow.start_run and sklearn.metrics.roc_curve
assert torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(1)) == 1
import peft
print("whole")
"""


@pytest.mark.slow
def test_a_trainers_process_imports_no_mlflow_no_sklearn_no_scipy_and_no_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", TRAINER], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("whole")
    assert "leaked" not in done.stderr  # what Triton prints of what is not collected at the end


def test_packages_are_missing_inside_and_back_outside() -> None:
    sys.modules.pop("this", None)
    with without("this", "json"):
        with pytest.raises(ModuleNotFoundError):
            import this  # noqa: F401
        import json  # was there: stays

        assert json.loads("1") == 1
    import colorsys

    with without("colorsys"):
        assert sys.modules["colorsys"] is colorsys
    assert "this" not in sys.modules
