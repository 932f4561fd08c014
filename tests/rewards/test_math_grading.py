r"""Math answers: labelled pairs by kind, laws, extraction rules, and bounded time from any thread."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.grading import math_pool
from rewards.grading.math import MAX_ANSWER_CHARACTERS, GradingError, equal, extract_answer

law = settings(deadline=None)

# kind → pairs that mean the same, pairs that do not
PAIRS: dict[str, tuple[list[tuple[str, str]], list[tuple[str, str]]]] = {
    "integers": (
        [("5", "5."), ("+5", "5"), ("-0", "0"), ("05", "5"), ("−5", "-5"), ("１２", "12")],
        [("5", "-5"), ("12345678901234567", "12345678901234568"), ("five", "5"), ("12 34", "1234")],
    ),
    "thousands": (
        [("1,000", "1000"), (r"1{,}000", "1000"), (r"1\,000", "1000"), ("1 234 567", "1,234,567")],
        [("1,2", "12"), ("3,4", "34"), ("12,34", "1234"), ("1,2,3", "123"), ("1,200,3", "12003")],
    ),
    "lists": (
        [
            ("3,2,1", "1,2,3"),
            ("100,200", "100, 200"),
            ("200,100", "100, 200"),
            (r"3 \text{ or } 5", "5, 3"),
            ("1, 2, and 3", "3,2,1"),
            (r"\pm 3", "-3, 3"),
            (r"x = 1 \pm \sqrt{2}", r"1+\sqrt2, 1-\sqrt2"),
            (r"\frac12, \frac14", "0.5, 0.25"),
        ],
        [("1,2,3", "2,3,4"), ("2,3", "2"), ("2,2", "2"), ("1,1,2", "1,2,2")],
    ),
    "decimals and fractions": (
        [
            ("5.0", "5"),
            (".5", "0.5"),
            (r"\frac{2}{4}", r"\frac12"),
            (r"\frac{7}{-2}", "-3.5"),
            (r"\frac{1+2}{3}", "1"),
            ("7/2", "3.5"),
            ("0.333333", r"\frac13"),
            (r"0.\overline{3}", "1/3"),
            ("0.30000000000000004", "0.3"),
            ("½", "0.5"),
        ],
        [
            ("0.33", "1/3"),
            ("0.666666", "2/3"),
            (r"\frac{1+2}{3}", "1+2/3"),
            ("1.000001", "1"),
            ("0.5", "5"),
            ("0,5", "0.5"),
        ],
    ),
    "mixed numbers": (
        [(r"1\frac{1}{2}", "1.5"), ("11 2/3", "35/3"), (r"-2\frac13", "-7/3")],
        [(r"1\frac{1}{2}", r"\frac12"), ("1 1/2", "11/2")],
    ),
    "percent": (
        [(r"50\%", "0.5"), ("50%", r"\frac12"), ("10 percent", "0.1"), (r"12.5\%", r"\frac18")],
        [(r"50\%", "50"), (r"50\%", "5"), (r"33.33\%", "1/3")],
    ),
    "powers and scientific": (
        [
            (r"2^{10}", "1024"),
            ("2**10", "1024"),
            ("2^10", "1024"),
            (r"1.5\times 10^3", "1500"),
            ("1.5e3", "1500"),
            (r"6.02 \cdot 10^{23}", "6.02E23"),
            ("x²", "x^{2}"),
            ("2^{-1}", "0.5"),
        ],
        [("1e-7", "2e-7"), ("10^{-20}", "0"), ("x^2", "x_2"), ("2^{10}", "210"), ("1e400", "1e401")],
    ),
    "surds and pi": (
        [
            (r"\sqrt{8}", r"2\sqrt{2}"),
            (r"\frac{\sqrt3}{3}", r"\frac{1}{\sqrt{3}}"),
            ("sqrt(12)", "3.464102"),
            (r"\sqrt[3]{8}", "2"),
            (r"2\pi", r"\pi \cdot 2"),
            ("2π", "2pi"),
            ("3.14159265", r"\pi"),
        ],
        [(r"\pi", "3.14"), (r"\sqrt{2}", "1.4"), (r"\sqrt{2}", "2"), ("1+1/e", "1-1/e")],
    ),
    "units, money, degrees": (
        [
            (r"5\text{ cm}", "5"),
            ("5 cm", r"5 \mathrm{cm}"),
            ("10 square meters", r"10\text{ m}^2"),
            (r"90^\circ", "90"),
            ("90°", "90 degrees"),
            (r"\$1,234.50", "1234.5"),
            ("18 dollars", "$18"),
            ("5 thousand", "5000"),
            ("7 apples", "7"),
            (r"\frac{3}{4}\text{ of the cake}", r"\frac34"),
        ],
        [
            ("5 cm", "5 m"),
            (r"10\text{ m}^2", r"10\text{ m}"),
            ("5 hours", "5 minutes"),
            (r"\frac{\pi}{2}", r"90^\circ"),
            ("5 m", "5"),
            ("5 thousand", "5"),
        ],
    ),
    "names": (
        [
            ("x=5", "5"),
            ("x = 2 + 3 = 5", "5"),
            ("f(x)=x^2", "x^2"),
            ("y=2x+1", "2x+1"),
            ("x=1,y=2", "y=2,x=1"),
            ("x=1,y=2", "(1,2)"),
            (r"x \in [1,2]", "[1,2]"),
            ("2+3=5", "5"),
        ],
        [
            ("x=5", "y=5"),
            ("n=3k", "3"),
            ("3k", "3"),
            ("x+y=5", "5"),
            ("xy=6", "6"),
            ("n=1,2,3", "n=2,3,4"),
            ("x=1, y=2", "2,1"),
            ("f(x)=x^2", "g(x)=x^2"),
            ("2+3=6", "6"),
            ("3x+2=0", "x=-2/3"),
        ],
    ),
    "tuples, intervals, sets": (
        [
            (r"\left(3,\frac{\pi}{2}\right)", r"(3, \pi/2)"),
            ("1,2,3", "(1,2,3)"),
            (r"\langle 1,2\rangle", "(1,2)"),
            (r"\{1,2\}", r"\{2,1\}"),
            (r"\{1,2,2\}", "{2,1}".replace("{", r"\{").replace("}", r"\}")),
            ("1<x<2", "(1,2)"),
            (r"x \ge 5", r"[5,\infty)"),
            (r"0 \le x < 1", "[0,1)"),
            (r"(-\infty,1)\cup(2,\infty)", r"(2,\infty) \cup (-\infty,1)"),
            (r"\emptyset", r"\{\}"),
            ("(1,2),(3,4)", "(3,4), (1,2)"),
        ],
        [
            ("(1,2)", "(2,1)"),
            ("[1,2]", "(1,2)"),
            ("(1,2]", "[1,2)"),
            ("[0,1)", "0<x<1"),
            (r"\{1,2\}", "(1,2)"),
            ("(1,2),(3,4)", "(1,2,3,4)"),
            ("x>2", r"x \geq 2"),
        ],
    ),
    "algebra": (
        [
            ("x^2-1", "(x-1)(x+1)"),
            (r"\frac{a+b}{2}", "(a+b)/2"),
            ("2x+y=4", "y=4-2x"),
            ("abc", "cba"),
            ("3+4i", "4i+3"),
            (r"\log_2 8", "3"),
            ("5!", "120"),
            (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\\frac{4}{2}\end{bmatrix}"),
            (r"\cos(\pi)", "-1"),
        ],
        [
            ("2x", "x^2"),
            ("x_1", "x_2"),
            (r"\sqrt{x^2}", "x"),
            (r"\alpha", r"\beta"),
            (r"\sin(30)", "1/2"),
            ("2(3)", "23"),
            ("1/0", "5"),
        ],
    ),
    "words and letters": (
        [
            (r"\text{Monday}", "monday."),
            ("(A)", r"\text{A}"),
            ("No solution", r"\text{no solution}"),
            ("**True**", "true"),
            ("3:2", "3 : 2"),
        ],
        [("east", "seat"), ("A", "B"), ("12:00", "1:00"), ("1011_2", "1011"), ("3:2", "3/2")],
    ),
    "no answer": (
        [],
        [
            ("", ""),
            (" ", " "),
            (r"\boxed{}", r"\boxed{}"),
            ("nan", "nan"),
            ("inf", "inf"),
            ("None", "None"),
            ("$$", "$$"),
            ("5", ""),
            ("", "5"),
        ],
    ),
}
CASES = [
    (kind, a, b, same)
    for kind, (equals, differents) in PAIRS.items()
    for pairs, same in ((equals, True), (differents, False))
    for a, b in pairs
]


@pytest.mark.parametrize("kind", PAIRS)
def test_pairs_of_every_kind_get_the_right_verdict_in_both_orders(kind):
    cases = [(a, b, same) for k, a, b, same in CASES if k == kind]
    wrong = [
        (x, y, same, verdict)
        for a, b, same in cases
        for x, y in ((a, b), (b, a))
        if (verdict := equal(x, y)).correct is not same
    ]
    assert wrong == []


def test_the_guards_correct_verdicts_of_the_bare_library(record_property):
    """As the library is meant to be called: gold and prediction parsed from LaTeX."""
    from math_verify import parse, verify

    def bare(prediction: str, gold: str) -> bool:
        return verify(parse(f"${gold}$"), parse(f"${prediction}$"))

    wrong = [(kind, a, b) for kind, a, b, same in CASES if bare(a, b) is not same]
    record_property("wrong_without_guards", len(wrong))
    assert len(CASES) >= 150
    assert len(wrong) > 20
    assert {"thousands", "units, money, degrees", "names"} <= {kind for kind, _, _ in wrong}


@pytest.mark.parametrize(
    "answer", sorted({x for kind, a, b, _ in CASES if kind != "no answer" for x in (a, b)})
)
def test_every_answer_equals_itself_and_never_nothing(answer):
    assert equal(answer, answer).correct
    for nothing in ("", None, r"\text{}", "none"):
        assert not equal(nothing, answer).correct
        assert not equal(answer, nothing).correct


@law
@given(st.fractions(-(10**16), 10**16, max_denominator=99))
def test_a_number_is_the_same_in_every_spelling(number):
    above, below = number.numerator, number.denominator
    spellings = [rf"\frac{{{above}}}{{{below}}}", f"{above}/{below}", rf"x = \dfrac{{{above}}}{{{below}}}"]
    if 10**12 % below == 0:
        decimal = f"{number * 10**12 // 1:+014d}"
        spellings.append(f"{decimal[:-12]}.{decimal[-12:]}")
    if below == 1:
        spellings += [f"{above:,}", f"{above}.0", rf"{above}\text{{ km}}", f"${above}$"]
    for one in spellings:
        for other in spellings:
            assert equal(one, other).correct, (one, other)
        assert not equal(one, f"{above + below}/{below}").correct


@law
@given(st.text(max_size=40))
def test_any_text_gets_a_verdict_or_a_stated_error(text):
    for one, other in ((text, "5"), ("5", text)):
        with contextlib.suppress(GradingError):  # stated; anything else fails
            assert equal(one, other).reason
    assert not equal(text, "").correct


# --- extraction ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>4</answer> or <FINAL_ANSWER> 5 </FINAL_ANSWER>", "5"),
        (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"<answer>so \boxed{7}</answer> \boxed{8}", "7"),
        (r"\boxed{3} <answer> </answer>", "3"),
        ("16 - 7 = 9\n#### 1,234\n", "1,234"),
        ("Answer: 3\nThe final answer is **42**", "42**"),
        ("answer: 3\nanswer: 4 apples", "4 apples"),
        (r"\boxed{2}, answer: 3", "2"),
        ("the answer was never found", None),
        (r"\boxed{1 and no end", None),
        ("<answer>5", None),
        ("", None),
        (r"\boxed{\boxed{5}} \boxed{never \{ closed", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"{\boxed{3}} } {", "3"),
        ("<answer>a <answer>b</answer>", "b"),
        ("<answer>1</final_answer> <final_answer>2</answer></final_answer>", "2</answer>"),
        (f"<answer>{'9' * (MAX_ANSWER_CHARACTERS + 1)}</answer>", None),
    ],
)
def test_the_last_statement_of_the_strongest_kind_is_the_answer(text, answer):
    assert extract_answer(text) == answer


def test_without_a_statement_the_fallback_says_what_is_taken():
    assert [extract_answer("so 3 and then 4.5", f) for f in ("none", "whole", "number")] == [
        None,
        "so 3 and then 4.5",
        "4.5",
    ]
    assert extract_answer("two\nlines 7", "whole") is None
    assert extract_answer("no digits", "number") is None


@pytest.mark.parametrize(
    "piece",
    [
        r"\boxed{",
        "<answer>",
        r"\boxed{1} ",
        "answer: ",
        "answer is x  ",
        "#### ",
        "\n",
        "1,",
        "{",
        r"\text{",
        "5 cm ",
        "$",
    ],
)
def test_rambling_replies_are_read_in_linear_time(piece):
    """So long that anything quadratic would meet the time limit of the tests."""
    extract_answer(piece * (2_000_000 // len(piece)), "number")
    rambling = piece * (MAX_ANSWER_CHARACTERS // len(piece))
    with contextlib.suppress(GradingError):
        equal(rambling, "5")


def test_failed_extraction_on_either_side_never_matches():
    nothing = extract_answer("I don't know")
    assert nothing is None
    for other in (None, "", "None", r"\emptyset", "0", str(nothing)):
        assert not equal(nothing, other).correct
        assert not equal(other, nothing).correct


# --- bounded, from any thread -------------------------------------------------------------------------

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


@pytest.mark.skipif(
    "CADRE_TEST_DATA" not in os.environ, reason="CADRE_TEST_DATA names no folder of data sets"
)
def test_gsm8k_golds_equal_themselves_and_nothing_near():
    folder = pathlib.Path(os.environ["CADRE_TEST_DATA"]) / "math"
    golds = [
        extract_answer(json.loads(line)["answer"])
        for name in ("gsm8k_test.jsonl", "gsm8k_train.jsonl")
        for line in (folder / name).read_text("utf-8").splitlines()
    ]
    assert len(golds) >= 1000
    assert None not in golds
    for gold in golds:
        assert equal(gold, gold).correct
        assert equal(f"x = {gold}.00", gold).correct
        assert not equal(f"{gold}1", gold).correct
        assert not equal(None, gold).correct
