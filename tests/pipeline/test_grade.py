"""The bench for graders: lines keep their order, a bad line stops no other, verdicts are those of rewards."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from pipeline.cli.grade import grade
from rewards.grading import qa
from rewards.grading.lines import MATH_MODES
from workflows.errors import UsageError
from workflows.tools.code.judge import CodeJudge


def _sandbox() -> str:
    try:
        CodeJudge().check()
    except UsageError:
        return "none"
    return "auto"


def _written(path: Path, *lines: Any) -> str:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return str(path)


@pytest.fixture
def graded(tmp_path, capfdbinary):
    """Grade lines; what comes out, and the summary."""

    def run(kind: str, *lines: Any, **options: Any) -> tuple[list[dict[str, Any]], str]:
        with contextlib.suppress(typer.Exit):  # exit code 1: some lines could not be graded
            grade(kind, _written(tmp_path / "lines.jsonl", *lines), **options)
        out, err = capfdbinary.readouterr()
        return [json.loads(line) for line in out.splitlines()], err.decode()

    return run


def test_every_line_comes_back_with_its_verdict_in_order(graded):
    lines = [{"id": i, "prediction": f"{i % 3}", "gold": "1"} for i in range(300)]
    found, summary = graded("math", *lines)
    assert [{k: line[k] for k in ("id", "prediction", "gold")} for line in found] == lines
    assert [line["correct"] for line in found] == [i % 3 == 1 for i in range(300)]
    assert "300 of 300 lines graded (math): correct 0.3333" in summary


BAD = ["{nope", "[1]", "7", '{"prediction": "x"', "\ud800", "[" * 100_000]


@pytest.mark.parametrize("kind", ["qa", "math"])
def test_a_line_that_can_not_be_graded_says_why_and_stops_no_other(graded, kind):
    good = {"prediction": "5", "golds": ["5"], "gold": "5"}
    wrong: list[Any] = [
        {},
        {"prediction": "5"},
        {"golds": ["5"], "gold": "5"},
        {"prediction": ["5"], "golds": ["5"], "gold": "5"},
        {"prediction": "5", "golds": "5", "gold": None},
        {"prediction": "5", "golds": [], "gold": []},
        {"prediction": "5", "golds": [None], "gold": True},
    ]
    lines = [line for bad in [*BAD, *wrong] for line in (bad, good)]
    found, summary = graded(kind, *lines)
    assert ["error" in line for line in found] == [True, False] * (len(lines) // 2)
    assert [line["line"] for line in found[: 2 * len(BAD) : 2]] == [2 * i + 1 for i in range(len(BAD))]
    assert f"{len(lines) // 2} could not be graded" in summary


def test_blank_lines_are_no_lines(graded):
    found, _ = graded("qa", "", {"prediction": "a", "golds": ["a"]}, "   ")
    assert len(found) == 1


def test_qa_gives_the_numbers_of_the_mode(graded):
    line = {"prediction": "The 3.5", "golds": ["35", "x"], "text": "北京 \ud83e"}
    for mode in (*qa.MODES, None):
        (found,), summary = graded("qa", line, mode=mode)
        scores = [
            grader(line["prediction"], line["golds"], mode or "strict") for grader in (qa.f1, qa.exact_match)
        ]
        assert found == {**line, "f1": scores[0], "exact_match": scores[1]}
        assert f"f1 {scores[0]:.4f}" in summary


@pytest.mark.parametrize(("prediction", "score"), [(True, 1.0), ("yes", 1.0), ("true", 1.0), (False, 0.0)])
def test_truth_values_are_golds_and_predictions(graded, prediction, score):
    (line,), _ = graded("qa", {"prediction": prediction, "golds": [True]})
    assert (line["f1"], line["exact_match"]) == (score, score)


@pytest.mark.parametrize(
    "tests",
    [
        {"tests": ["assert f(1) == 1"]},
        {
            "tests": [{"input": "1", "output": "1"}],
            "checker": "custom",
            "checker_code": "def check(input, output, expected): return True",
        },
    ],
)
def test_exact_is_refused_for_tests_that_compare_by_themselves(graded, tests):
    line = {"code": "def f(x): return True", **tests}
    (exact,), _ = graded("code", line, exact=True)
    (usual,), _ = graded("code", line)
    assert "--exact has no effect" in exact["error"]
    assert "error" not in usual


def test_exact_holds_for_calls_and_for_what_is_printed(graded):
    call = {"code": "def f(x): return True", "fn_name": "f", "tests": {"inputs": [[1]], "outputs": [1]}}
    shown = {"code": "print(True)", "tests": [{"input": "", "output": "1"}]}
    verdicts = [line["verdict"] for line in graded("code", call, shown, exact=True)[0]]
    assert verdicts == ["wrong_answer", "wrong_answer"]
    assert graded("code", call)[0][0]["verdict"] == "passed"


def test_a_prediction_of_null_is_wrong_and_a_vanishing_gold_is_an_error(graded):
    (nothing, vanished), _ = graded(
        "qa", {"prediction": None, "golds": ["x"]}, {"prediction": "x", "golds": ["\u200b"]}
    )
    assert (nothing["f1"], nothing["exact_match"]) == (0.0, 0.0)
    assert "no gold" in vanished["error"]
    (nothing,), _ = graded("math", {"prediction": None, "gold": "5"})
    assert nothing["correct"] is False


def test_math_finds_the_answers_of_both_sides(graded):
    lines = [
        {"prediction": r"so \boxed{\frac{1}{2}}", "gold": "half of it\n#### 0.5"},
        {"prediction": "many words\nand 0.5", "gold": "0.5"},
        {"prediction": 72, "gold": "#### 72"},
        {"prediction": "1,2", "gold": "12"},
        {"prediction": "nan", "gold": "nan"},
        {"prediction": "9**9**9**9", "gold": "5"},
    ]
    found, _ = graded("math", *lines)
    assert [line.get("correct") for line in found] == [True, False, True, False, False, None]
    assert "too large" in found[-1]["error"]
    assert all(line["reason"] for line in found[:-1])
    found, _ = graded("math", lines[1], mode="number")
    assert found[0]["correct"] is True


def test_code_gives_a_verdict_and_one_for_each_case(graded):
    stdio = [{"input": "2", "output": "4"}, {"input": "3", "output": "7"}]
    lines = [
        {"code": "print(int(input())*2)", "tests": stdio},
        {"code": "```python\nprint(int(input())*2)\n```", "tests": json.dumps(stdio[:1])},
        {"code": "def f(x): return x+1", "tests": {"inputs": [[1], [2]], "outputs": [2, 3]}, "fn_name": "f"},
        {"code": "def f(x): return x+1", "tests": ["assert f(1) == 2", "assert f(1) == 3"]},
        {"code": "print('b a')", "tests": [{"input": "", "output": "a b"}], "checker": "unordered_tokens"},
        {"code": "while True: pass", "tests": stdio[:1], "time_limit_seconds": 0.2},
        {"code": "time = = 3", "tests": stdio[:1]},
        {"code": "", "tests": stdio},
        {"code": "print(1)", "tests": []},
        {"code": "print(1)"},
        {"code": 5, "tests": stdio, "time_limit_seconds": "soon"},
    ]
    found, summary = graded("code", *lines, sandbox=_sandbox())
    assert [(line.get("verdict"), line.get("passed"), line.get("total")) for line in found] == [
        ("wrong_answer", 1, 2),
        ("passed", 1, 1),
        ("passed", 2, 2),
        ("wrong_answer", 1, 2),
        ("passed", 1, 1),
        ("time_limit", 0, 1),
        ("runtime_error", 0, 1),
        ("no_code", 0, 2),
        ("not_graded", 0, 0),
        (None, None, None),
        (None, None, None),
    ]
    assert ["error" in line for line in found] == [False] * 8 + [True] * 3
    assert [case["verdict"] for case in found[0]["cases"]] == ["passed", "wrong_answer"]
    assert "passed 3, wrong_answer 2" in summary


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("qa", {"mode": "strikt"}, "did you mean 'strict'"),
        ("math", {"mode": "strict"}, ", ".join(MATH_MODES)),
        ("code", {"mode": "strict"}, "no --mode"),
        ("code", {"sandbox": "firejail"}, "bwrap"),
        ("qa", {"sandbox": "none"}, "grade qa has no --sandbox, got 'none'"),
        ("math", {"sandbox": "auto"}, "grade math has no --sandbox"),
        ("qa", {"exact": True}, "grade qa has no --exact"),
    ],
)
def test_an_unknown_mode_is_refused_before_anything_is_graded(graded, kind, options, says):
    with pytest.raises(UsageError, match=says):
        graded(kind, "{}", **options)


@pytest.mark.parametrize("bad", [0, 1])
def test_the_command_reads_stdin_needs_no_ray_and_its_exit_code_says_whether_all_lines_were_graded(bad):
    lines = '{"prediction": "a", "golds": ["b"]}\n' + "nope\n" * bad
    program = (
        "import sys; sys.argv[1:] = ['grade', 'qa', '-', '--mode', 'official_squad'];"
        "from pipeline.cli.app import main\n"
        "try: main()\n"
        "finally: assert not {'ray', 'torch', 'mlflow', 'transformers', 'sympy'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=lines, capture_output=True, text=True, check=False
    )
    assert done.returncode == bad, done.stderr
    assert [json.loads(line).keys() >= {"f1"} for line in done.stdout.splitlines()] == [True, False][
        : 1 + bad
    ]
    assert f"1 of {1 + bad} lines graded" in done.stderr
    assert ("1 could not be graded" in done.stderr) == bool(bad)
    assert "could not be graded" not in done.stdout


def test_a_missing_file_is_wrong_usage():
    command = [sys.executable, "-m", "pipeline", "grade", "math", "nowhere.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nowhere.jsonl" in done.stderr


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    path = _written(tmp_path / "many.jsonl", *[{"prediction": "a", "golds": ["a"]}] * 5000)
    command = f"{sys.executable} -m pipeline grade qa {path} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr
