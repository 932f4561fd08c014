"""The families of programming problems of the `functions` task set: text, reference solution, arguments.

In every text `<word>` stands for a parameter; a family with its parameters filled in is one problem. The
arguments of its tests come from `workflows/data/makers/functions_arguments.py` by the names in `takes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Family:
    """`variants`: the parameters of each problem. `solution` is the body of the function `name`."""

    name: str
    problem: str
    arguments: str  # the function's own names for them
    takes: tuple[str, ...]  # kinds of arguments, in order
    solution: str
    variants: tuple[Mapping[str, Any], ...]


def _each(key: str, *values: Any) -> tuple[dict[str, Any], ...]:
    return tuple({key: value} for value in values)


FAMILIES: Final = (
    # numbers
    Family(
        "scale_and_shift_<a>_<b>",
        "multiplies the whole number `x` by <a>, adds <b> to the product and returns the result.",
        "x",
        ("number",),
        "return x * <a> + <b>",
        ({"a": 3, "b": 4}, {"a": 5, "b": 7}, {"a": 2, "b": 9}, {"a": 7, "b": 1}, {"a": 10, "b": 6}),
    ),
    Family(
        "clip_<low>_<high>",
        "returns the whole number `x` if it lies from <low> to <high>, else the nearer of these two.",
        "x",
        ("number",),
        "return max(<low>, min(<high>, x))",
        (
            {"low": 0, "high": 10},
            {"low": 5, "high": 20},
            {"low": 1, "high": 15},
            {"low": 3, "high": 30},
            {"low": 2, "high": 8},
        ),
    ),
    Family(
        "round_up_to_<step>",
        "returns the smallest multiple of <step> that is not smaller than the non-negative whole number `n`.",
        "n",
        ("natural",),
        "return -(-n // <step>) * <step>",
        _each("step", 3, 4, 6, 7, 9),
    ),
    Family(
        "digit_sum_base_<base>",
        "writes the non-negative whole number `n` in base <base> and returns the sum of its digits.",
        "n",
        ("natural",),
        "total = 0\nwhile n:\n    total += n % <base>\n    n //= <base>\nreturn total",
        _each("base", 2, 3, 5, 7, 10),
    ),
    Family(
        "label_<a>_<b>",
        'returns "<first>" if the positive whole number `n` is divisible by <a> only, "<second>" if by <b> '
        'only, "both" if by <a> and by <b>, and "neither" otherwise.',
        "n",
        ("positive",),
        "if n % <a> == 0 and n % <b> == 0:\n    return 'both'\nif n % <a> == 0:\n    return '<first>'\n"
        "return '<second>' if n % <b> == 0 else 'neither'",
        (
            {"a": 3, "b": 5, "first": "red", "second": "blue"},
            {"a": 2, "b": 7, "first": "tick", "second": "tock"},
            {"a": 4, "b": 3, "first": "north", "second": "south"},
            {"a": 5, "b": 2, "first": "sun", "second": "moon"},
            {"a": 3, "b": 2, "first": "up", "second": "down"},
        ),
    ),
    Family(
        "steps_below_<limit>",
        "halves the positive whole number `n` (rounding down) until it is smaller than <limit>, and returns "
        "how many halvings that took.",
        "n",
        ("positive",),
        "count = 0\nwhile n >= <limit>:\n    n //= 2\n    count += 1\nreturn count",
        _each("limit", 2, 3, 5, 9, 12),
    ),
    # lists of numbers
    Family(
        "count_multiples_of_<k>",
        "returns how many of the whole numbers in the list `numbers` are divisible by <k>.",
        "numbers",
        ("numbers",),
        "return sum(1 for x in numbers if x % <k> == 0)",
        _each("k", 2, 3, 4, 5, 6),
    ),
    Family(
        "sum_above_<limit>",
        "returns the sum of those numbers in the list `numbers` that are greater than <limit>.",
        "numbers",
        ("numbers",),
        "return sum(x for x in numbers if x > <limit>)",
        _each("limit", 0, 3, 5, 8, 10),
    ),
    Family(
        "first_place_over_<limit>",
        "returns the position, counted from 0, of the first number in the list `numbers` that is greater "
        "than <limit>, or -1 if there is none.",
        "numbers",
        ("numbers",),
        "for place, x in enumerate(numbers):\n    if x > <limit>:\n        return place\nreturn -1",
        _each("limit", 2, 4, 7, 9, 12),
    ),
    Family(
        "every_<word>_item",
        "returns a list of every <word> item of the list `numbers`: the first one, and then always <k> "
        "places further.",
        "numbers",
        ("numbers",),
        "return numbers[::<k>]",
        (
            {"k": 2, "word": "second"},
            {"k": 3, "word": "third"},
            {"k": 4, "word": "fourth"},
            {"k": 5, "word": "fifth"},
        ),
    ),
    Family(
        "rotate_left_<k>",
        "returns a list of the items of `numbers` moved <k> places to the left; what falls off at the left "
        "comes back at the right. An empty list stays empty.",
        "numbers",
        ("numbers",),
        "if not numbers:\n    return []\nk = <k> % len(numbers)\nreturn numbers[k:] + numbers[:k]",
        _each("k", 1, 2, 3, 4, 5),
    ),
    Family(
        "differences_<k>_apart",
        "returns the list of differences between each number in `numbers` and the one <k> places before it, "
        "beginning with the first that has one.",
        "numbers",
        ("numbers",),
        "return [numbers[i] - numbers[i - <k>] for i in range(<k>, len(numbers))]",
        _each("k", 1, 2, 3, 4),
    ),
    Family(
        "running_total_reset_at_<limit>",
        "returns the list of running totals of `numbers`. Whenever a total has reached <limit> or more, the "
        "count starts again at 0 for the number after it.",
        "numbers",
        ("naturals",),
        "totals, total = [], 0\nfor x in numbers:\n    total += x\n    totals.append(total)\n"
        "    if total >= <limit>:\n        total = 0\nreturn totals",
        _each("limit", 8, 10, 12, 15, 20),
    ),
    Family(
        "sort_by_remainder_<k>",
        "returns the list `numbers` sorted by the remainder after division by <k>; numbers with the same "
        "remainder are in ascending order.",
        "numbers",
        ("naturals",),
        "return sorted(numbers, key=lambda x: (x % <k>, x))",
        _each("k", 2, 3, 4, 5, 7),
    ),
    Family(
        "largest_<k>_sum",
        "returns the sum of the <k> largest numbers in the list `numbers`, or of all of them if there are "
        "fewer.",
        "numbers",
        ("numbers",),
        "return sum(sorted(numbers, reverse=True)[:<k>])",
        _each("k", 2, 3, 4, 5),
    ),
    Family(
        "longest_run_below_<limit>",
        "returns the length of the longest stretch of neighbouring numbers in the list `numbers` that are "
        "all smaller than <limit>.",
        "numbers",
        ("numbers",),
        "best = run = 0\nfor x in numbers:\n    run = run + 1 if x < <limit> else 0\n"
        "    best = max(best, run)\nreturn best",
        _each("limit", 3, 5, 8, 11),
    ),
    Family(
        "chunks_of_<k>",
        "cuts the list `numbers` into pieces of <k> items and returns the list of these pieces; the last "
        "piece may be shorter.",
        "numbers",
        ("numbers",),
        "return [numbers[i : i + <k>] for i in range(0, len(numbers), <k>)]",
        _each("k", 2, 3, 4, 5),
    ),
    Family(
        "row_sums_times_<k>",
        "takes a table as a list of rows, each a list of numbers, and returns a list with the sum of each "
        "row multiplied by <k>.",
        "rows",
        ("table",),
        "return [sum(row) * <k> for row in rows]",
        _each("k", 2, 3, 4, 5),
    ),
    Family(
        "add_<amount>_to_column_<k>",
        "takes a table as a list of rows with at least three numbers each, and returns a new table in which "
        "<amount> is added to the number at position <k> of each row, positions counted from 0.",
        "rows",
        ("table",),
        "return [row[:<k>] + [row[<k>] + <amount>] + row[<k> + 1 :] for row in rows]",
        ({"k": 0, "amount": 5}, {"k": 1, "amount": 3}, {"k": 2, "amount": 10}, {"k": 1, "amount": 7}),
    ),
    # texts
    Family(
        "count_letters_<letters>",
        'returns how many characters of the text `text` are one of the letters in "<letters>". Capital '
        "letters count, too.",
        "text",
        ("text",),
        "return sum(1 for c in text.lower() if c in '<letters>')",
        _each("letters", "ae", "ou", "rst", "lmn", "aeiou"),
    ),
    Family(
        "shift_letters_<k>",
        "returns the text `text` with every lower-case letter moved <k> places on in the alphabet, beginning "
        "again with a after z, and all other characters as they are.",
        "text",
        ("text",),
        "moved = ''\nfor c in text:\n"
        "    moved += chr((ord(c) - 97 + <k>) % 26 + 97) if 'a' <= c <= 'z' else c\nreturn moved",
        _each("k", 1, 3, 5, 13, 20),
    ),
    Family(
        "drop_every_<word>_character",
        "returns the text `text` without every <word> character: those whose position, counted from 1, is "
        "divisible by <k>, are left out.",
        "text",
        ("text",),
        "return ''.join(c for i, c in enumerate(text, 1) if i % <k>)",
        (
            {"k": 2, "word": "second"},
            {"k": 3, "word": "third"},
            {"k": 4, "word": "fourth"},
            {"k": 5, "word": "fifth"},
        ),
    ),
    Family(
        "words_longer_than_<k>",
        "returns the list of the words of the text `text`, divided at spaces, that have more than <k> "
        "characters, in their order.",
        "text",
        ("text",),
        "return [word for word in text.split() if len(word) > <k>]",
        _each("k", 2, 3, 4, 5),
    ),
    Family(
        "join_words_with_<name>",
        'returns the words of the text `text`, divided at spaces, in reverse order and joined by "<sign>".',
        "text",
        ("text",),
        "return '<sign>'.join(reversed(text.split()))",
        (
            {"name": "dash", "sign": "-"},
            {"name": "plus", "sign": "+"},
            {"name": "comma", "sign": ","},
            {"name": "slash", "sign": "/"},
        ),
    ),
    Family(
        "reverse_words_from_<k>",
        "returns the text `text`, which is words with single spaces between them, with every word of <k> or "
        "more characters written backwards.",
        "text",
        ("text",),
        "return ' '.join(w[::-1] if len(w) >= <k> else w for w in text.split())",
        _each("k", 3, 4, 5, 6),
    ),
    Family(
        "repeat_each_character_<k>",
        "returns the text `text` with each character written <k> times in a row, and spaces left single.",
        "text",
        ("text",),
        "return ''.join(c if c == ' ' else c * <k> for c in text)",
        _each("k", 2, 3, 4, 5),
    ),
    Family(
        "clock_plus_<k>",
        'takes a time of day as "hh:mm" and returns the time <k> minutes later in the same form; after 23:59 '
        "comes 00:00.",
        "time",
        ("time",),
        "hours, minutes = map(int, time.split(':'))\ntotal = (hours * 60 + minutes + <k>) % 1440\n"
        "return f'{total // 60:02d}:{total % 60:02d}'",
        _each("k", 15, 50, 75, 90, 200),
    ),
    # texts and numbers together
    Family(
        "words_by_length_<k>",
        "returns a dictionary from each length of a word in the list `words`, as a text, to how many words "
        "have that length. Words of fewer than <k> characters are left out.",
        "words",
        ("words",),
        "counts = {}\nfor word in words:\n    if len(word) >= <k>:\n"
        "        counts[str(len(word))] = counts.get(str(len(word)), 0) + 1\nreturn counts",
        _each("k", 2, 3, 4, 5),
    ),
    Family(
        "nth_word_or_<default>",
        'returns the word at position `n` of the list `words`, counted from 1, or "<default>" if there is no '
        "such position.",
        "words, n",
        ("words", "natural_small"),
        "return words[n - 1] if 1 <= n <= len(words) else '<default>'",
        _each("default", "none", "missing", "end", "nothing"),
    ),
    Family(
        "pad_number_<width>",
        'returns the non-negative whole number `n` as a text of at least <width> characters: "<sign>" is put '
        "in front as often as needed.",
        "n",
        ("natural",),
        "return str(n).rjust(<width>, '<sign>')",
        (
            {"width": 3, "sign": "0"},
            {"width": 4, "sign": "*"},
            {"width": 5, "sign": "0"},
            {"width": 6, "sign": "."},
        ),
    ),
)
