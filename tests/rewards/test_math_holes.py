r"""Answers of mathematics that a policy could be paid for without being right, or not paid for though right.

Each table is a kind: the case that was found, its siblings, and neighbours that must stay as they are.
"""

from __future__ import annotations

import pytest

from rewards.grading.math import equal
from rewards.grading.math_extract import extract_answer

# kind → pairs that mean the same, pairs that do not
KINDS: dict[str, tuple[list[tuple[str, str]], list[tuple[str, str]]]] = {
    "products are no units": (
        [
            ("2ab", "2ba"),
            ("2abx", "2xab"),
            ("5mn", "5nm"),
            ("3pqr", "3rqp"),
            ("2 ab", "2ba"),
            ("5 km", "5"),
            ("5km", "5"),
            ("5 cm", r"5\text{ cm}"),
            ("7 apples", "7"),
            ("7 men", "7"),
            ("1 box", "1"),
            ("7 ft", "7"),
            ("3 hot dogs", "3"),
            ("5 sq ft", "5"),
            (r"2\sqrt{3} cm", r"2\sqrt3"),
            (r"\frac{1}{2} cup", "1/2"),
            ("6 pm", "6"),
            (r"5\text{ m/s}^2", "5"),
        ],
        [
            ("2", "2ab"),
            ("2", "2xy"),
            ("5", "5mn"),
            ("2", "2mg"),
            ("2", "2abx"),
            ("3", "3pqr"),
            ("5", "5kt"),
            ("5", "5 mn"),
            ("2", "2 abx"),
            ("4", "4xyz"),
            ("5 cm", "5 m"),
            ("5cm", "5m"),
        ],
    ),
    "words of value are no units": (
        [
            ("5 dozen", "60"),
            ("5 hundred thousand", "500000"),
            ("3 quarters", "0.75"),
            ("1 half", "0.5"),
            ("2 tenths", "0.2"),
            ("4 and a half", "4.5"),
            ("5 degrees", "5"),
            ("5 minutes", "5 min"),
            ("5 seconds", "5"),
            ("2 million dollars", r"\$2{,}000{,}000"),
            ("5 pairs", "5"),
        ],
        [
            (f"5 {word}", "5")
            for word in (
                "squared",
                "cubed",
                "half",
                "halves",
                "double",
                "tenths",
                "thirds",
                "factorial",
                "negative",
                "dozen",
                "score",
                "gross",
                "root",
                "less",
                "or less",
                "or more",
                "at least",
                "below zero",
                "degrees below zero",
                "minus one",
                "times two",
                "hundred thousand",
                "percent",
                "plus",
                "is wrong",
                "never",
                "repeating",
                "lakh",
                "base two",
                "out of ten",
                "binary",
            )
        ]
        + [("100 below zero", "100"), ("4 half", "4"), ("5 hundred thousand", "500"), ("4 half", "2")],
    ),
    "words of value in \\text": (
        [
            (r"5\text{ cm}", "5"),
            (r"\frac{3}{4}\text{ of the cake}", r"\frac34"),
            (r"5\text{ hundred}", "500"),
            (r"\text{10}", "10"),
            (r"x = \text{5}", "5"),
            (r"5\text{ m}^2", "5 square meters"),
        ],
        [(rf"5\text{{ {word}}}", "5") for word in ("or less", "squared", "below zero", "half", "of 10")]
        + [(r"10\text{ base 2}", "10"), (r"10\text{ (base two)}", "10"), (r"5\mathrm{ or\ more}", "5")]
        + [(r"5^\circ\text{ below zero}", "5"), (r"\text{at least }5", "5")],
    ),
    "digits to a base are no decimal number": (
        [
            ("1011_2", "1011_{2}"),
            (r"\text{1011}_2", "1011_2"),
            ("1011 base 2", "1011_2"),
            ("1011_{two}", "1011_2"),
            (r"1011_{\text{two}}", "1011_2"),
            ("(1011)_2", "1011_2"),
        ],
        [
            (base, "10")
            for base in (
                r"\text{10}_2",
                "10_2",
                "(10)_2",
                "{10}_2",
                r"10_{\text{two}}",
                "10_{(2)}",
                "10 base 2",
            )
        ]
        + [
            (r"10_{\text{base }2}", "10"),
            ("10 in base 2", "10"),
            (r"10\text{ in base }2", "10"),
            ("0x10", "0"),
        ]
        + [("1011_2", "1011_3"), ("0b10", "0"), ("1011_2", "11")],
    ),
    "capital and small letters are two variables": (
        [(r"\frac{M}{m}", "M/m"), (r"\pi(R^2-r^2)", r"\pi R^2 - \pi r^2"), ("AB", "BA"), ("2+3i", "3i+2")],
        [
            ("1", r"\frac{M}{m}"),
            ("0", r"\pi(R^2-r^2)"),
            ("M", "m"),
            ("2x", "x+X"),
            ("Ab", "aB"),
            ("i", "I"),
            ("e", "E"),
            ("y'", "y"),
            ("f''", "f'"),
            ("N", "n"),
            (r"\Theta", r"\theta"),
            ("y = Mx", "y = mx"),
        ],
    ),
    "a lone symbol": (
        [
            ("x", r"\frac{2x}{2}"),
            ("x", r"\frac{3x}{3}"),
            ("a", "a+0"),
            ("n", r"n \cdot 1"),
            ("x", "2x-x"),
            (r"\theta", r"\frac{2\theta}{2}"),
            ("x_1", "2x_1/2"),
            ("x^2", r"x \cdot x"),
        ],
        [("x", "y"), ("x", "2x"), ("x", "x^2"), ("x", "x_1"), ("x", "-x"), ("x", "X")],
    ),
    "plus and minus, and classes of remainders": (
        [
            (r"3 \pm 5", "8, -2"),
            (r"3\pm 5", "-2, 8"),
            ("±3", r"\pm 3"),
            (r"3 \pmod 5", r"3 \pmod{5}"),
            (r"3 \pmod 5", "3 (mod 5)"),
            (r"x \equiv 3 \pmod 5", r"3 \pmod 5"),
            (r"13 \pmod 5", r"3 \pmod{5}"),
        ],
        [
            ("3 + od 5, 3 - od 5", r"3 \pmod 5"),
            (r"3 \pmod 5", "3"),
            (r"3 \pmod 5", r"3 \pmod 7"),
            (r"3 \pmod 5", r"4 \pmod 5"),
            ("3+b{x}, 3-b{x}", r"3\pmb{x}"),
        ],
    ),
    "Unicode's fractions, digits and signs": (
        [
            *[
                ("⅛", "0.125"),
                ("⅒", "0.1"),
                ("↉", "0"),
                ("⅞", "7/8"),
                ("2⅛", "2.125"),
                ("⅐", "1/7"),
                ("⅟8", "1/8"),
            ],
            *[
                ("¹⁄₂", "0.5"),
                ("²/₃", "2/3"),
                ("x⁻¹", "1/x"),
                ("2¹⁰", "1024"),
                ("a₁₂", "a_{12}"),
                ("xⁿ", "x^n"),
            ],
            *[("٣", "3"), ("１２", "12"), ("𝟓", "5"), ("𝑥+1", "x+1"), ("③", "3"), ("Ⅷ", "8")],
            *[("−7", "-7"), ("–7", "-7"), ("－7", "-7"), ("﹣7", "-7"), ("3⋅4", "12"), ("x≦2", r"x \le 2")],
        ],
        [("⅛", "8"), ("⅟8", "18"), ("2⅛", "21/8"), ("−7", "7"), ("10²", "102"), ("x₂", "x^2"), ("½", "12")],
    ),
    "money": (
        [(money, "500") for money in ("₹500", "¥500", "€500", "₿500", "500 €", "US$500", r"\$500", "฿500")]
        + [("500 ₽", "500"), ("USD 500", "500"), ("Rs. 500", "₹500"), ("5 euros", "€5"), ("-₹5", "-5")]
        + [("$5 million", "5000000"), ("₹5 million", "5000000"), ("-$5", "-5")],
        [("€500", "$500"), ("₹500", "500 dollars"), ("₹500", "50"), ("-₹5", "5"), ("£5", "€5")],
    ),
    "how a value is introduced": (
        [
            ("approximately 7", "7"),
            ("about 7", "7"),
            ("≈7", "7"),
            (r"\approx 7", "7"),
            ("= 7", "7"),
            ("~7", "7"),
            (r"\text{approximately }7", "7"),
            ("exactly 7", "7"),
        ],
        [
            (f"{word} 7", "7")
            for word in ("at least", "at most", "not", "more than", "under", "minus", "below")
        ]
        + [("<7", "7"), (r"\ge 7", "7"), (r"\neq 7", "7"), ("about 7", "8")],
    ),
    "hedged answers": (
        [("7 or 8", "8, 7"), ("{1, 2}", r"\{2, 1\}")],
        [
            ("7 or 8", "7"),
            ("7 or 8", "8"),
            ("either 7 or 8", "7"),
            ("7, 8", "8"),
            ("between 7 and 8", "7"),
            ("7/8", "7"),
            ("7 (or 8)", "7"),
            (r"7\text{ or }8", "7"),
            ("7, maybe 8", "7"),
            ("7–8", "7"),
            (r"7 \pm 1", "8"),
            (r"7\vee 8", "7"),
            ("7?", "7"),
            (r"\{7, 8\}", "7"),
            ("[7, 8]", "7, 8"),
        ],
    ),
    "letters with an index are no digits to a base": (
        [("a_1", r"\frac{2a_1}{2}"), ("C_A", "C_A"), ("F_2", "F_2"), ("FF_{16}", "ff_{16}")],
        [("C_A", "C_a"), ("A_1", "A_2"), ("a_1", "a"), ("FF_{16}", "255"), ("1A_{16}", "26")],
    ),
    "spellings of decimals": (
        [("1.5x10^3", "1500"), ("1.5 X 10^{3}", "1500"), (r"0.\bar{3}", "1/3"), ("0.(3)", r"0.\overline{3}")],
        [("1.000.000", "1"), ("1.000.000", "1000000"), ("5x10", "50"), (r"0.\bar{3}", "0.3")],
    ),
    "words that touch a number": (
        [("5hours", "5"), ("5meters", r"5\text{ m}"), ("5kg", "5 kg")],
        [("2", "2abcdefg"), ("5apples", "5"), ("2", "2axe")],
    ),
    "an open box is no answer": ([], [(r"\boxed{8", "8"), (r"\boxed{7} \boxed{8", "7")]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_answer_is_right_by_how_it_is_written(kind):
    equals, differents = KINDS[kind]
    wrong = [
        (x, y, same, verdict.reason)
        for pairs, same in ((equals, True), (differents, False))
        for a, b in pairs
        for x, y in ((a, b), (b, a))
        if (verdict := equal(x, y)).correct is not same
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("0.3333333", r"\frac13"),
        ("3.141593", r"\pi"),
        ("0.30000000000000004", "0.3"),
        ("1.414214", r"\sqrt2"),
    ],
)
def test_only_an_exact_comparison_tells_a_decimal_from_what_rounds_to_it(prediction, gold):
    for a, b in ((prediction, gold), (gold, prediction), (f"{prediction}, 1", f"1, {gold}")):
        assert equal(a, b).correct
        assert not equal(a, b, exact=True).correct


@pytest.mark.parametrize(
    ("a", "b"),
    [("0.5", r"\frac12"), ("2.50", "5/2"), (r"50\%", "0.5"), (r"\sqrt{8}", r"2\sqrt2"), ("1e3", "1000")],
)
def test_an_exact_comparison_takes_every_spelling_of_the_same_number(a, b):
    assert equal(a, b, exact=True).correct
    assert equal(b, a, exact=True).correct


# --- extraction ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{7}… it is \boxed{8",
        r"first \boxed{7} then \boxed{",
        r"\boxed{7} so \fbox{8",
        r"\boxed{7} then \boxed",
        r"\boxed{7} then \box",
        r"\boxed{8",
        r"\boxed{\frac{1}{2}",
        "<answer>7</answer> no, <answer>8",
        "<answer>7</answer> no, <FINAL_ANSWER>8",
        "<answer>7</answer> no, <answ",
        r"\boxed{7} <answer>8",
        r"<answer>\boxed{7} or rather \boxed{8</answer>",
        "#### 7\nno:\n#### ",
        "Answer: 7\nNo, wait.\nFinal answer:",
        "The answer is 7.\nNo: the answer is",
    ],
)
@pytest.mark.parametrize("fallback", ["none", "whole", "text", "number"])
def test_a_later_statement_that_was_cut_off_takes_the_earlier_one_back(text, fallback):
    assert extract_answer(text, fallback) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The final answer is $24$. I hope it is correct.", "$24$"),
        ("Final Answer: The final answer is $\\frac{1}{2}$. I hope it is correct.", r"$\frac{1}{2}$"),
        ("The answer is 3.5. I am sure of it.", "3.5"),
        ("The answer is 24 because I counted.", "24"),
        ("The answer is therefore 24.", "24."),
        ("**Answer:** 24. That is all!", "24"),
        ("The answer is 24", "24"),
        ("The answer is 24. It is wrong.", "24. It is wrong."),
        ("The answer is 7. Or 8.", "7. Or 8."),
        ("The answer is 7. It could be more.", "7. It could be more."),
        ("The answer is $x. Then$ 5", "$x. Then$ 5"),
        (r"\boxed{7} or \boxed{8}", "7, 8"),
        (r"$\boxed{7}$, $\boxed{8}$ and $\boxed{9}$", "7, 8, 9"),
        (r"\boxed{7} and \boxed{7}", "7"),
        (r"\boxed{7}. So I say \boxed{8}", "8"),
        (r"\boxed{3} <answer> </answer>", "3"),
        (r"{\boxed{3}} } {", "3"),
    ],
)
def test_a_statement_ends_where_its_sentence_does(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("fell to −7", "-7"),
        ("fell to –7 degrees", "-7"),
        ("it is -$7", "-7"),
        ("is .75", ".75"),
        ("costs $.75", ".75"),
        ("is １２", "12"),
        ("is ⅛", r"\frac{1}{8}"),
        ("takes 2½ hours", r"2\frac{1}{2}"),
        (r"so it is \frac{1}{2}", r"\frac{1}{2}"),
        ("gives 2^{10}", "2^{10}"),
        ("gives 1.5e3", "1.5e3"),
        ("about 5 million people", "5 million"),
        ("an area of 5 cm^2", "5"),
        ("an area of 5 cm²", "5"),
        ("5 litres of H2O", "5"),
        ("from 3-4", "4"),
        ("it is 7 or 8", "7, 8"),
        ("at 12:30", "12:30"),
        ("has 1,234,567 of 1 kind: 1,234.5", "1,234.5"),
        ("it is 50%", "50%"),
        ("3/4 of them", "3/4"),
        ("so 3 and then 4.5", "4.5"),
        ("it is 10_2", "10_2"),
        ("it ends with 42.", "42"),
    ],
)
def test_the_last_number_of_a_text_is_all_that_belongs_to_it(text, number):
    assert extract_answer(text, "number") == number
