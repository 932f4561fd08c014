"""The words of the shipped set: how a question is put, which passage tells which fact, and how.

    country-al    continent, capital, language, calling code, internet domain, neighbours
    currency-al   the currency and its code
    city-durres   the country of a city
    element-26    atomic number, place in the periodic table, family
    symbol-26     the chemical symbol

A page names neighbours of its subject (bordering countries, other cities, elements with a similar
symbol), so that a retriever has something to confuse.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

from workflows.data.makers.facts_source import City, Country, Element
from workflows.trajectory import seed_for

MAX_NAMED: Final = 3  # neighbours that a page names

_WORDS_LIKE_SYMBOLS: Final = frozenset(
    ["am", "as", "at", "be", "ca", "co", "he", "i", "in", "la", "no", "os", "pa", "re", "us"]
)

# {x} is a name ("Albania") or a description ("the country where Durrës lies").
PHRASINGS: Final[dict[str, tuple[str, ...]]] = {
    "capital": (
        "What is the capital of {x}?",
        "Which city is the capital of {x}?",
        "Name the capital city of {x}.",
    ),
    "capital of": (
        "{x} is the capital of which country?",
        "Which country has {x} as its capital?",
    ),
    "continent": (
        "On which continent is {x}?",
        "Which continent does {x} belong to?",
    ),
    "official language": (
        "What is the official language of {x}?",
        "Which language is the official one in {x}?",
    ),
    "calling code": (
        "What is the international calling code of {x}?",
        "Which calling code do you dial to reach {x}?",
    ),
    "internet domain": (
        "What is the internet domain of {x}?",
        "In which internet domain are the sites of {x} registered?",
    ),
    "currency": (
        "What is the currency of {x}?",
        "Which currency is used in {x}?",
        "With which currency do people pay in {x}?",
    ),
    "currency code": (
        "What is the three-letter code of the {x}?",
        "Which currency code stands for the {x}?",
    ),
    "country": (
        "In which country is the city of {x}?",
        "Which country does the city of {x} belong to?",
    ),
    "chemical symbol": (
        "What is the chemical symbol of {x}?",
        "Which chemical symbol stands for {x}?",
    ),
    "symbol of": (
        "Which element has the chemical symbol {x}?",
        "What element does the chemical symbol {x} stand for?",
    ),
    "atomic number": (
        "What is the atomic number of {x}?",
        "Which atomic number does {x} have?",
    ),
    "number of": (
        "Which element has the atomic number {x}?",
        "What is the name of the element with atomic number {x}?",
    ),
    "period": (
        "In which period of the periodic table is {x}?",
        "Which period of the periodic table does {x} belong to?",
    ),
    "group": (
        "In which group of the periodic table is {x}?",
        "Which group of the periodic table does {x} belong to?",
    ),
    "block": (
        "In which block of the periodic table is {x}?",
        "Which block of the periodic table does {x} belong to?",
    ),
    "element family": (
        "To which family of elements does {x} belong?",
        "Which family of elements includes {x}?",
    ),
    "by city": (
        "the country where the city of {x} lies",
        "the country to which the city of {x} belongs",
    ),
    "by currency": (
        "the country whose currency is the {x}",
        "the country that pays with the {x}",
    ),
    "by symbol": ("the element with the chemical symbol {x}",),
    "by number": ("the element with the atomic number {x}",),
}


@dataclass(frozen=True, slots=True)
class Page:
    id: str
    title: str
    text: str


def say(phrasing: str, x: str, key: str) -> str:
    """One of the phrasings with `x` put in; which one, depends on `x` and `key` only."""
    options = PHRASINGS[phrasing]
    return options[seed_for(0, "phrasing", phrasing, x, key) % len(options)].format(x=x)


def country_id(country: Country) -> str:
    return f"country-{country.code.lower()}"


def currency_id(country: Country) -> str:
    return f"currency-{country.code.lower()}"


def city_id(city: City) -> str:
    ascii_name = unicodedata.normalize("NFKD", city.name).encode("ascii", "ignore").decode().lower()
    return f"city-{city.country.lower()}-{re.sub('[^a-z]+', '-', ascii_name)}"


def element_id(element: Element) -> str:
    return f"element-{element.number}"


def symbol_id(element: Element) -> str:
    return f"symbol-{element.number}"


def is_english_word(symbol: str) -> bool:
    """Whether a question with this chemical symbol could be misread."""
    return symbol.lower() in _WORDS_LIKE_SYMBOLS


def all_pages(countries: list[Country], cities: list[City], elements: list[Element]) -> list[Page]:
    """Every passage, by kind and then in the order of the lists."""
    return [
        *(_country(c) for c in countries),
        *(_currency(c, countries) for c in countries if c.currency),
        *(_city(c, cities, countries) for c in cities),
        *(_element(e, elements) for e in elements),
        *(_symbol(e, elements) for e in elements),
    ]


def _country(country: Country) -> Page:
    name, the_name = country.name, country.in_text
    sentences = [f"{_capitalised(the_name)} is a country on the continent of {country.continent}."]
    if country.capital and country.language:
        sentences.append(f"Its capital is {country.capital} and its official language is {country.language}.")
    elif country.capital:
        sentences.append(f"Its capital is the city of {country.capital}.")
    elif country.language:
        sentences.append(f"Its official language is {country.language}.")
    sentences.append(f"The territory covers {country.area_km2:,} square kilometres{_borders(country)}.")
    if country.calling_code:
        sentences.append(
            f"The international calling code is {country.calling_code}, "
            f"and sites of {the_name} are registered in the internet domain {country.domain}."
        )
    else:
        sentences.append(f"Sites of {the_name} are registered in the internet domain {country.domain}.")
    return Page(country_id(country), name, " ".join(sentences))


def _borders(country: Country) -> str:
    if not country.neighbours:
        return ""
    named = _some(country.neighbours, country.code)
    among = "among others " if len(named) < len(country.neighbours) else ""
    return f" and borders {among}{_listed(named)}"


def _currency(country: Country, countries: list[Country]) -> Page:
    money = country.currency
    assert money is not None
    here = f"The {money.name} is the currency of {country.in_text}."
    code = f"Banks and exchange offices write it with the currency code {money.code}."
    shared = [c.in_text for c in countries if c.currency == money and c.code != country.code]
    word = money.name.split()[-1]
    alike = [c.currency.name for c in countries if c.currency and c.currency.name.split()[-1] == word]
    alike = sorted({n for n in alike if n != money.name})
    if shared:
        rest = f"The same money is legal tender in {_listed(_some(tuple(shared), country.code))} as well."
    elif not money.only_in:
        rest = "Territories overseas use it too, or a neighbour accepts it beside money of its own."
    elif alike:
        others = _listed(tuple(f"the {n}" for n in _some(tuple(alike), country.code)))
        rest = f"It is used nowhere else as the only legal tender, and is not to be confused with {others}."
    else:
        rest = f"No other currency in this collection is called {word}, and no other country shares it."
    title = _capitalised(money.name) if money.only_in else f"Currency of {country.in_text}"
    return Page(currency_id(country), title, f"{here} {code} {rest}")


def _city(city: City, cities: list[City], countries: list[Country]) -> Page:
    home = next(c for c in countries if c.code == city.country)
    north, east = ("north" if city.latitude >= 0 else "south"), ("east" if city.longitude >= 0 else "west")
    sister = [c.name for c in cities if c.country == city.country and c.name != city.name]
    sentences = [
        f"{city.name} is a large city in {home.in_text}.",
        f"It lies at {abs(city.latitude):.1f} degrees {north} and {abs(city.longitude):.1f} degrees {east}.",
        f"The gazetteer GeoNames counts about {_rounded(city.population)} inhabitants.",
    ]
    if sister:
        sentences.append(f"Another large city of the same country is {sister[0]}.")
    else:
        sentences.append("This collection describes no other large city of the same country.")
    return Page(city_id(city), city.name, " ".join(sentences))


def _element(element: Element, elements: list[Element]) -> Page:
    name = _capitalised(element.name)
    group = f"group {element.group} and " if element.group else ""
    family = f" and belongs to the {element.family}" if element.family else ""
    before, after = (
        next((e.name for e in elements if e.number == element.number + step), None) for step in (-1, 1)
    )
    between = f"between {before} and {after}" if before and after else f"next to {before or after}"
    text = (
        f"{name} is the chemical element with the atomic number {element.number}. In the periodic table it "
        f"stands in {group}period {element.period}, {between}. The element is in the {element.block}-block"
        f"{family}."
    )
    return Page(element_id(element), name, text)


def _symbol(element: Element, elements: list[Element]) -> Page:
    alike = [e for e in elements if e.symbol[0] == element.symbol[0] and e is not element]
    named = _some(tuple(f"{e.symbol} for {e.name}" for e in alike), element.symbol)
    text = (
        f"{element.symbol} is the chemical symbol of {element.name}. Chemists write {element.symbol} in "
        f"formulas and equations wherever {element.name} takes part in a reaction."
    )
    if named:
        text += f" Symbols with the same first letter include {_listed(named)}."
    return Page(symbol_id(element), f"Chemical symbol {element.symbol}", text)


def _some(names: tuple[str, ...], key: str) -> tuple[str, ...]:
    """At most MAX_NAMED of the names, chosen by a keyed hash and in their old order."""
    kept = set(sorted(names, key=lambda n: (seed_for(0, "named", key, n), n))[:MAX_NAMED])
    return tuple(n for n in names if n in kept)


def _listed(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _rounded(population: int) -> str:
    if population >= 1_000_000:
        return f"{population / 1_000_000:.1f} million"
    return f"{round(population, -4):,}"


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]
