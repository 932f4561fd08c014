"""Install a lock into this environment: `python requirements/install.py requirements/cpu.txt`.

uv does it in a third of pip's work. It doesn't read pip's settings, so it is given the indexes of this
machine; where there is no uv for it, or it finds less than pip would, pip installs.
"""

from __future__ import annotations

import ast
import compileall
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
QUIET = ["install", "--quiet", "--no-deps"]
# of pip's settings, what says where packages lie: pip's name, and uv's options for each of its words
PLACES = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
    "constraint": "--constraint",
}


def main(lock: str) -> int:
    settings = pip_settings()
    if not (_run([*PIP, *QUIET, "uv"]) and _run(uv_command(lock, settings), settings.get("cert"))):
        sys.stderr.write("note: uv could not install the lock, so pip does: some minutes\n")
        if not _run([*PIP, *QUIET, "-r", lock]):
            return 1
    if sys.flags.dont_write_bytecode:  # else Python compiles what it imports, once
        # each process's start would compile again; tests of packages are never imported
        place = sysconfig.get_path("purelib")
        left_out = re.compile(re.escape(place) + "/(pip/|.*/tests?/)")
        compileall.compile_dir(place, quiet=2, workers=0, rx=left_out)
    return 0


def pip_settings() -> dict[str, str]:
    """Pip's settings by their last word, from its files and then the environment, which wins."""
    listed = subprocess.run([*PIP, "config", "list"], check=False, capture_output=True, text=True).stdout
    found: dict[str, str] = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, separator, value = line.partition("=")
        if separator:
            found[name.rpartition(".")[2]] = str(ast.literal_eval(value))
    return found


def uv_command(lock: str, settings: Mapping[str, str]) -> list[str]:
    """The lock from where pip would look, and of all places the best version, as pip does."""
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "-r", lock]
    command += ["--python", sys.executable, "--index-strategy", "unsafe-best-match"]
    for name, option in PLACES.items():
        for word in settings.get(name, "").split():
            command += [option, word]
    return command


def _run(command: list[str], certificate: str | None = None) -> bool:
    own = {"SSL_CERT_FILE": certificate} if certificate else {}
    return subprocess.run(command, check=False, env={**os.environ, **own}).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
