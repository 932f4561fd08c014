"""Builds the task set that ships: one-hop and two-hop questions over a small corpus.

    python -m workflows.data.makers.build_facts            write facts_tasks.jsonl and facts_corpus.jsonl
    python -m workflows.data.makers.build_facts --check    compare them with what would be written

What holds for the result (tests/workflows/test_facts.py):

- A fact is a (subject, relation). Every fact belongs to an *anchor*, a country or an element, and
  every anchor to one split, so no fact of any hop is in two splits, not even seen from its other end
  ("the country whose currency is the lek" is the fact (Albania, currency)).
- The two facts of a two-hop question stand in two passages.
- Every question has one answer: what identifies a thing (a city's name, a currency) is checked to
  identify one thing only, and no answer is spelled out in its question.
- All choices are keyed hashes: the same packages give the same bytes.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from workflows.data import FOLDER
from workflows.data.makers import facts_wording as wording
from workflows.data.makers.facts_source import (
    City,
    Country,
    Element,
    aliases_of,
    read_cities,
    read_countries,
    read_elements,
    require_packages,
)
from workflows.data.makers.facts_wording import Page, say
from workflows.data.makers.shipping import write_or_check
from workflows.errors import UsageError
from workflows.trajectory import seed_for, to_json

SEED: Final = 1

_WORD: Final = re.compile(r"[\w+]+")

# questions by (split, hops)
SIZES: Final = {
    ("train", 1): 360,
    ("train", 2): 360,
    ("dev", 1): 80,
    ("dev", 2): 80,
    ("test", 1): 80,
    ("test", 2): 80,
}
HELD_OUT_SHARE: Final = 0.17  # of the anchors, for dev and for test each


@dataclass(frozen=True, slots=True)
class Fact:
    subject: str
    relation: str
    answers: tuple[str, ...]
    page: str  # id of the passage that tells it


@dataclass(frozen=True, slots=True)
class Candidate:
    """A question that could be asked. `facts` in the order in which they are needed."""

    anchor: str
    kind: str  # for an even mix
    question: str
    answers: tuple[str, ...]
    facts: tuple[Fact, ...]


def build() -> tuple[list[Page], list[dict[str, Any]]]:
    """The passages and the tasks, in the order of the files.

    Raises:
        UsageError: a data package is missing or of another version.
    """
    require_packages()
    countries, elements = read_countries(), read_elements()
    cities = read_cities(countries)
    pages = wording.all_pages(countries, cities, elements)
    candidates = [*_about_countries(countries, cities), *_about_elements(elements)]
    split_of = _split_anchors({c.anchor for c in candidates})
    chosen = _choose(_plain(candidates), split_of)
    tasks = [_task(split, candidate) for split, candidate in chosen]
    order = list(dict.fromkeys(split for split, _ in SIZES))
    return pages, sorted(tasks, key=lambda task: (order.index(task["split"]), task["task_id"]))


def files() -> dict[Path, bytes]:
    """What the two files hold, without writing them."""
    pages, tasks = build()
    corpus = [{"id": page.id, "title": page.title, "text": page.text} for page in pages]
    return {
        FOLDER / name: "".join(to_json(row) + "\n" for row in rows).encode()
        for name, rows in (("facts_corpus.jsonl", corpus), ("facts_tasks.jsonl", tasks))
    }


def _about_countries(countries: list[Country], cities: list[City]) -> Iterator[Candidate]:
    for country in countries:
        facts = _country_facts(country)
        anchor = f"country {country.code}"
        for fact in facts:
            yield _one_hop(anchor, fact, country.in_text)
        if country.capital and country.capital_is_unique:
            name = (country.name, *country.aliases)
            capital = next(f for f in facts if f.relation == "capital")
            yield _one_hop(anchor, replace(capital, answers=name), country.capital, "capital of")
        for city in (c for c in cities if c.country == country.code):
            home = Fact(city.name, "country", (country.name, *country.aliases), wording.city_id(city))
            yield _one_hop(anchor, home, city.name)
            yield from _two_hops(anchor, home, "by city", city.name, facts)
        money = country.currency
        if money and money.only_in:
            page = wording.currency_id(country)
            pays = Fact(country.name, "currency", (), page)
            yield _one_hop(anchor, Fact(money.name, "currency code", (money.code,), page), money.name)
            yield from _two_hops(anchor, pays, "by currency", money.name, facts)


def _country_facts(country: Country) -> list[Fact]:
    page = wording.country_id(country)
    told: list[tuple[str, str | None, tuple[str, ...], str]] = [
        ("capital", country.capital, aliases_of(country.capital or ""), page),
        ("continent", country.continent if country.continent_is_clear else None, (), page),
        ("official language", country.language, aliases_of(country.language or ""), page),
        ("calling code", country.calling_code, ((country.calling_code or "").lstrip("+"),), page),
        ("internet domain", country.domain, (country.domain.lstrip("."),), page),
    ]
    if money := country.currency:
        short = tuple(dict.fromkeys(x for x in (money.short, money.code) if x != money.name))
        told.append(("currency", money.name, short, wording.currency_id(country)))
    return [Fact(country.name, relation, (v, *more), where) for relation, v, more, where in told if v]


def _about_elements(elements: list[Element]) -> Iterator[Candidate]:
    for element in elements:
        anchor = f"element {element.symbol}"
        page = wording.element_id(element)
        name = (element.name, *aliases_of(element.name))
        symbol = Fact(element.name, "chemical symbol", (element.symbol,), wording.symbol_id(element))
        number = Fact(element.name, "atomic number", (str(element.number),), page)
        others = [
            Fact(element.name, relation, (str(value), *more), page)
            for relation, value, more in (
                ("period", element.period, (f"period {element.period}",)),
                ("group", element.group, (f"group {element.group}",)),
                ("block", f"{element.block}-block", (element.block,)),
                ("element family", element.family, _singular(element.family)),
            )
            if value
        ]
        for fact in (symbol, number, *others):
            yield _one_hop(anchor, fact, element.name)
        yield _one_hop(anchor, replace(number, answers=name), str(element.number), "number of")
        yield from _two_hops(anchor, number, "by number", str(element.number), [symbol])
        if not wording.is_english_word(element.symbol):  # "the element with the symbol As"
            yield _one_hop(anchor, replace(symbol, answers=name), element.symbol, "symbol of")
            yield from _two_hops(anchor, symbol, "by symbol", element.symbol, [number, *others])


def _singular(family: str | None) -> tuple[str, ...]:
    if family is None:
        return ()
    return ("noble gas",) if family == "noble gases" else (family.removesuffix("s"),)


def _one_hop(anchor: str, fact: Fact, name: str, phrasing: str | None = None) -> Candidate:
    phrasing = phrasing or fact.relation
    question = say(phrasing, name, fact.subject)
    return Candidate(anchor, phrasing, question, fact.answers, (fact,))


def _two_hops(anchor: str, first: Fact, how: str, name: str, then: Iterable[Fact]) -> Iterator[Candidate]:
    """`first` leads from `name` to the thing that the facts of `then` are about."""
    for second in then:
        if second.page != first.page:
            described = say(how, name, second.relation)
            question = say(second.relation, described, name)
            yield Candidate(anchor, f"{how} {second.relation}", question, second.answers, (first, second))


def _plain(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Without questions that spell out their answer or, with two hops, the thing in between.

    Such are the language where one pays with the Danish krone, and whatever pays with the Vanuatu vatu.
    """

    def words(text: str) -> str:
        return f" {' '.join(_WORD.findall(unicodedata.normalize('NFC', text).casefold()))} "

    def gives_away(candidate: Candidate) -> bool:
        hidden = [*candidate.answers, *(fact.subject for fact in candidate.facts[1:])]
        return any(words(text) in words(candidate.question) for text in hidden)

    return [candidate for candidate in candidates if not gives_away(candidate)]


def _split_anchors(anchors: Iterable[str]) -> dict[str, str]:
    """Countries and elements are divided apart, in the same shares."""
    by_type: dict[str, list[str]] = defaultdict(list)
    for anchor in sorted(anchors, key=lambda a: (seed_for(SEED, "split", a), a)):
        by_type[anchor.split()[0]].append(anchor)
    split_of = {}
    for members in by_type.values():
        size = round(len(members) * HELD_OUT_SHARE)
        for i, anchor in enumerate(members):
            split_of[anchor] = "dev" if i < size else "test" if i < 2 * size else "train"
    return split_of


def _choose(candidates: list[Candidate], split_of: dict[str, str]) -> list[tuple[str, Candidate]]:
    """Per split and number of hops, in turn from every kind of question until the size is reached."""
    pools: dict[tuple[str, int], dict[str, list[Candidate]]] = defaultdict(lambda: defaultdict(list))
    for c in sorted(candidates, key=lambda c: (seed_for(SEED, "choose", c.question), c.question)):
        pools[split_of[c.anchor], len(c.facts)][c.kind].append(c)
    chosen = []
    for (split, hops), size in SIZES.items():
        kinds = pools[split, hops]
        turns = sorted(
            ((place, kind, c) for kind, members in kinds.items() for place, c in enumerate(members)),
            key=lambda turn: turn[:2],
        )
        if len(turns) < size:
            raise UsageError(f"{split}, {hops} hops: {size} questions asked, the facts give {len(turns)}")
        chosen += [(split, c) for _, _, c in turns[:size]]
    return chosen


def _task(split: str, candidate: Candidate) -> dict[str, Any]:
    return {
        "task_id": f"facts-{seed_for(SEED, 'id', candidate.question):016x}",
        "split": split,
        "source": "facts",
        "inputs": {"question": candidate.question},
        "gold": {
            "answers": list(candidate.answers),
            "passages": [fact.page for fact in candidate.facts],
            "hops": len(candidate.facts),
            "relations": [fact.relation for fact in candidate.facts],
            "subjects": [fact.subject for fact in candidate.facts],
        },
    }


def main(arguments: list[str]) -> int:
    try:
        return write_or_check(files, arguments, "python -m workflows.data.makers.build_facts")
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
