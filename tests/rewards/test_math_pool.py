"""Math answers are compared in bounded time, from any thread."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from rewards.grading import math_pool
from rewards.grading.math import GradingError, equal
from tests.support.math_pairs import CASES

GIANTS = ["9**9**9**9", "9^{9^{9}}", "2^{10^{10}}", "999999!", "(" * 60 + "1" + ")" * 60]


@pytest.mark.parametrize("giant", GIANTS)
def test_what_can_not_be_evaluated_is_an_error_and_not_a_wrong_answer(giant):
    with ThreadPoolExecutor(1) as pool, pytest.raises(GradingError):
        pool.submit(equal, giant, "5").result(60)
    assert equal(giant, giant).correct  # the same text needs no evaluation


def test_a_slow_comparison_ends_with_an_error_and_leaves_no_process(monkeypatch):
    monkeypatch.setattr(math_pool, "CPU_SECONDS", 1.0)
    pool = math_pool.Pool(1)
    slow = ("(x+1)^{900}", "(x+1)^{899}(x+2)")
    outcomes: list[object] = []

    def ask(a: str, b: str) -> None:
        try:
            outcomes.append(pool.compare(a, b)[0])
        except GradingError as error:
            outcomes.append(error)

    # the quick ones wait behind the slow one for the only process, and that costs them nothing
    threads = [threading.Thread(target=ask, args=pair) for pair in [slow, *[("x+1", "1+x")] * 12]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len([o for o in outcomes if isinstance(o, GradingError)]) == 1
    assert outcomes.count(True) == 12
    children = {p.pid for p in psutil.Process().children()}
    pool.close()
    after = psutil.Process().children()
    assert len(after) < len(children)
    assert not [p for p in after if p.status() == psutil.STATUS_ZOMBIE]


def test_many_threads_get_the_verdicts_of_one():
    cases = [(a, b) for kind, a, b, _ in CASES if kind in ("surds and pi", "algebra")]
    serial = [equal(a, b) for a, b in cases]
    equal.cache_clear()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda pair: equal(*pair), cases)) == serial


def test_an_interruption_is_passed_on_and_no_verdict(monkeypatch):
    pool = math_pool.Pool(1)

    def interrupt(worker: object, request: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(math_pool._Worker, "ask", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pool.compare("x+1", "1+x")
    assert pool.compare("x+1", "1+x")[0]  # the process that was asked is gone, its place is free
    pool.close()


def test_a_killed_process_is_replaced():
    pool = math_pool.Pool(1)
    assert pool.compare("x+1", "1+x")[0]
    (worker,) = pool._idle
    os.kill(worker._process.pid, 9)
    assert pool.compare("x+2", "2+x")[0]
    pool.close()


def _graded_in_a_fork(results) -> None:
    equal.cache_clear()
    results.put(equal(r"\sqrt{18}", r"3\sqrt{2}").correct)


def test_a_forked_process_has_a_pool_of_its_own():
    assert equal(r"\sqrt{18}", r"3\sqrt{2}").correct
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    process = context.Process(target=_graded_in_a_fork, args=(results,))
    process.start()
    assert results.get() is True
    process.join(30)
    assert equal(r"\sqrt{50}", r"5\sqrt{2}").correct


def test_its_processes_end_with_the_process_that_grades():
    program = (
        "import psutil; from rewards.grading.math import equal; equal('x+1', '1+x');"
        "print(psutil.Process().children()[0].pid, flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not psutil.pid_exists(int(done.stdout))
