"""A server that speaks S3, on loopback, in a process of its own that ends with whoever started it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BUCKET = "cadre-test"


@contextmanager
def s3_server(port: int) -> Iterator[None]:
    """A new, empty server at this port of loopback, for as long as the block lasts."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.s3_server", str(port)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def serve(port: int) -> None:
    """Serve until the standard input is closed, which the end of the parent does too."""
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
