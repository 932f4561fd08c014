"""Peak memory of processes: what was needed once stays, and children count."""

from __future__ import annotations

import subprocess
import sys

import psutil

from stages.process.memory import peak_resident_bytes


def test_what_was_needed_once_stays_in_the_peak() -> None:
    before = peak_resident_bytes()
    assert before >= psutil.Process().memory_info().rss * 0.9  # the two are read a moment apart
    block = bytearray(b"x") * (64 * 2**20)
    with_block = peak_resident_bytes()
    assert with_block >= len(block)
    del block
    # the kernel counts in batches of pages, so two readings may differ by some hundred kB
    assert peak_resident_bytes() >= with_block - 2**20
    assert with_block >= before - 2**20


def test_children_count_and_a_process_that_is_gone_is_nothing() -> None:
    code = "import sys; block = bytearray(b'x') * 2**25; print('ready', flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    alone = peak_resident_bytes(child.pid)
    assert alone >= 2**25
    assert peak_resident_bytes() >= alone + 2**20
    child.communicate()
