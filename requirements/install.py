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
# of pip's settings, what says where packages lie: uv's variable for it, and what parts its words there
PLACES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "constraint": ("UV_CONSTRAINT", " "),
    "cert": ("SSL_CERT_FILE", " "),
}


def main(lock: str) -> int:
    uv = [sys.executable, "-m", "uv", "pip", *QUIET, "--python", sys.executable, "-r", lock]
    if not (_run([*PIP, *QUIET, "--quiet", "uv"]) and _run(uv, uv_environment(pip_settings()))):
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


def uv_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """What makes uv look where pip would, and take the best version of all places, as pip does. In the
    environment, for an index may have a password; what is set there for uv itself stays."""
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for name, (variable, separator) in PLACES.items():
        if words := settings.get(name, "").split():
            found[variable] = separator.join(words)
    return found | os.environ


def _run(command: list[str], environment: Mapping[str, str] | None = None) -> bool:
    return subprocess.run(command, check=False, env=environment).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
