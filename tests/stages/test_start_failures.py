"""An engine that does not start says why: in its own words, and in those of the processes that it started."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stages.engines.base import EngineSpec
from stages.engines.scripted import ScriptedServer
from stages.engines.start import EngineActor
from stages.engines.vllm.arguments import engine_arguments
from stages.process.output import kept_output, last_words
from workflows.errors import RunFailed
from workflows.trajectory import library_seed

CORE = "import sys; print('one'); raise ValueError('the cache has room for 0 tokens')"


class Core(ScriptedServer):
    """An engine whose child process fails, of which it says nothing."""

    def __init__(self, spec: EngineSpec) -> None:
        subprocess.run([sys.executable, "-c", CORE], check=False)
        raise RuntimeError("Engine core initialization failed. See root cause above.")


class Leaving(ScriptedServer):
    """An engine whose library ends the process."""

    def __init__(self, spec: EngineSpec) -> None:
        raise SystemExit("no device")


@pytest.mark.parametrize(
    ("name", "said"),
    [("Core", "it wrote last: ValueError: the cache has room for 0 tokens"), ("Leaving", "no device")],
)
def test_the_cause_is_in_the_message(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT", "TOKENIZERS_PARALLELISM", "VLLM_LOGGING_LEVEL"):
        monkeypatch.setenv(variable, os.environ.get(variable, "1"))  # the actor sets them in its process
    spec = EngineSpec("team", f"tests.stages.test_start_failures:{name}", "")
    with pytest.raises(RunFailed, match="does not start") as failed:
        asyncio.run(EngineActor(spec).ready())
    assert said in str(failed.value)


def test_output_is_passed_on_and_a_child_may_write_when_the_block_has_ended(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys\n"
        "from stages.process.output import kept_output\n"
        "late = 'import sys; sys.stdin.read(); print(\"late\")'\n"
        "with kept_output() as output:\n"
        "    print('mine')\n"
        "    child = subprocess.Popen([sys.executable, '-c', late], stdin=subprocess.PIPE)\n"
        "    assert 'mine' in output.read()\n"
        "print('after', flush=True)\n"
        "child.communicate()\n"
        "assert 'late' in output.read()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "after\n"
    assert done.stderr.split() == ["mine", "late"]


def test_last_words_are_the_last_error_beside_the_one_that_is_known() -> None:
    text = "INFO start\n\x1b[31m(core) ERROR ValueError: no room\x1b[0m\nRuntimeError: see above\n"
    assert last_words(text, besides="see above") == "ValueError: no room"
    assert last_words(text) == "RuntimeError: see above"
    assert last_words("a\nb\n\nc\nd\n") == "b / c / d"
    assert last_words("") == ""
    with kept_output() as output:
        pass
    assert output.read() == ""


@pytest.mark.parametrize("seed", [-1, 0, 7, 2**32 - 1, 2**32, 2**64, 2**64 + 1, -(2**70)])
def test_any_integer_is_a_seed_that_libraries_take(seed: int) -> None:
    assert 0 <= library_seed(seed) < 2**32
    assert library_seed(seed) == (seed if 0 <= seed < 2**32 else library_seed(seed))
    assert engine_arguments(EngineSpec("m", "vllm", "folder", seed=seed), "float32")["seed"] == library_seed(
        seed
    )


def test_seeds_beyond_the_range_stay_apart() -> None:
    seeds = [-1, -2, 2**32, 2**32 + 1, 2**64, 2**64 + 1]
    assert len({library_seed(seed) for seed in seeds}) == len(seeds)
