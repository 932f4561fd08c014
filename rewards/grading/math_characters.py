r"""Unicode's mathematics as LaTeX and ASCII, one character at a time.

Nothing here is a list of the characters that somebody met: minus signs, digits, fractions, superscripts and
currencies are told by what Unicode says of them. The table holds the operators, which have LaTeX names.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from fractions import Fraction
from functools import lru_cache
from typing import Final

OPEN, CLOSE = "\ue000", "\ue001"  # around what was \text{…}; private use, so no answer has them
MONEY: Final = "money "  # begins the text of a currency's mark, which may stand before its number

_TABLE: Final = {
    **dict.fromkeys("−˗", "-"),
    **dict.fromkeys("·⋅∙", r"\cdot "),
    **dict.fromkeys("’′‘ʼ", "'"),
    **dict.fromkeys("×✕✖⨯", r"\times "),
    **dict.fromkeys("÷⁄∕", "/"),
    **dict.fromkeys("≤≦⩽", r"\le "),
    **dict.fromkeys("≥≧⩾", r"\ge "),
    **dict.fromkeys("°º˚", r"^\circ "),
    "∗": "*",
    "∶": ":",
    "≠": r"\ne ",
    "≈": r"\approx ",
    "∞": r"\infty ",
    "√": r"\sqrt ",
    "∪": r"\cup ",
    "∈": r"\in ",
    "∅": r"\emptyset ",
    "±": r"\pm ",
    "∓": r"\mp ",
    "≡": r"\equiv ",
    "⟨": r"\langle ",
    "⟩": r"\rangle ",
    "π": r"\pi ",
    "θ": r"\theta ",
    "α": r"\alpha ",
    "β": r"\beta ",
    "λ": r"\lambda ",
    "⅟": "1/",
}
_BUILT_FRACTION: Final = re.compile(r"\^\{(\d+)\}\s*/\s*_\{(\d+)\}")  # ¹⁄₂


def plain_characters(text: str) -> str:
    """The text in ASCII and LaTeX as far as Unicode says how; other characters stay."""
    if text.isascii():
        return text
    parts = []
    for script, run in itertools.groupby(text, _script):
        plain = "".join(map(_plain, run))
        parts.append(f"{script}{{{plain}}}" if script else plain)
    return _BUILT_FRACTION.sub(r"\\frac{\1}{\2}", "".join(parts))


@lru_cache(maxsize=1 << 10)
def _script(character: str) -> str:
    """`^` for a superscript, `_` for a subscript, else nothing."""
    if character < "\x80" or character in _TABLE:
        return ""
    kind, _, code = unicodedata.decomposition(character).partition(" ")
    if kind not in ("<super>", "<sub>") or " " in code:
        return ""
    return "^" if kind == "<super>" else "_"


@lru_cache(maxsize=1 << 10)
def _plain(character: str) -> str:
    if character < "\x80":
        return character
    if character in _TABLE:
        return _TABLE[character]
    category = unicodedata.category(character)
    if category == "Pd":  # hyphens and dashes of every width
        return "-"
    if category == "Nd":
        return str(unicodedata.decimal(character))
    kind = unicodedata.decomposition(character).partition(" ")[0]
    if kind in ("<super>", "<sub>", "<font>", "<wide>", "<narrow>"):
        folded = unicodedata.normalize("NFKC", character)
        return _TABLE.get(folded, folded)
    if category in ("No", "Nl"):
        value = Fraction(unicodedata.numeric(character)).limit_denominator(1000)
        whole = value.denominator == 1
        return str(value.numerator) if whole else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    return character


# --- money ----------------------------------------------------------------------------------------------

_MONEY: Final = re.compile(r"(?:(?<![A-Za-z])(?:US|CA|AU|NZ|HK|A|C|S)\s*)?\\\$|[^\x00-\x7f]")
_CODES: Final = re.compile(
    r"\A(\s*[-+]?\s*)(USD|EUR|GBP|INR|JPY|CNY|RMB|CAD|AUD|CHF|Rs\.?)\s*(?=[-+]?[\d.])", re.IGNORECASE
)
_CODE_NAMES: Final = {
    **{"eur": "euro", "gbp": "pound", "inr": "rupee", "rs": "rupee"},
    **{"jpy": "yen", "cny": "yuan", "rmb": "yuan", "chf": "franc"},
}


def with_money_marked(text: str) -> str:
    r"""The text with each sign of a currency (Unicode's category Sc, `\$`) as a mark with its name."""
    text = _CODES.sub(lambda m: f"{m[1]}{_mark(_code_name(m[2]))}", text)
    return _MONEY.sub(lambda m: _money(m[0]), text) if "$" in text or not text.isascii() else text


def _code_name(code: str) -> str:
    return _CODE_NAMES.get(code.lower().rstrip("."), "dollar")


def _money(sign: str) -> str:
    if sign.endswith("$"):
        return _mark("dollar")
    if unicodedata.category(sign) != "Sc":
        return sign
    words = unicodedata.name(sign, "money sign").lower().replace("-", " ").split()
    return _mark([word for word in words if word != "sign"][-1])


def _mark(name: str) -> str:
    return f" {OPEN}{MONEY}{name}{CLOSE} "
