"""The points of a sweep: which settings differ from one to the next, from what the command line says."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from pipeline.settings.names import slug
from pipeline.settings.overrides import set_override
from pipeline.settings.reading import parse_settings
from pipeline.settings.schema import Settings
from workflows.errors import UsageError, did_you_mean

REGIMES: Final = ("full", "separate", "adapters", "groups")
_GROUPS_FORM: Final = "groups:front=decomposer:back=reader+answerer"


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of settings. A label is for people, its slug is part of run names."""

    label: str
    sharing: Mapping[str, Any] | None = None  # the [sharing] section; None: as the settings say
    overrides: tuple[str, ...] = ()  # KEY=VALUE
    named: Mapping[str, str] = field(default_factory=dict)  # what the point varies, where it is not each key

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the sweep's file."""
        return {"sharing": self.sharing, "overrides": list(self.overrides)}

    @property
    def values(self) -> dict[str, str]:
        """By name, the settings that the sweep varies, as they are at this point."""
        if self.named:
            return dict(self.named)
        pairs = [override.partition("=") for override in self.overrides]
        settings = {key.strip(): value for key, _, value in pairs}
        return ({"regime": self.label.partition(", ")[0]} if self.sharing is not None else {}) | settings

    @property
    def slug(self) -> str:
        """As part of a run's name: of a regime its word, of a setting its last key and its value."""
        parts = [_short(part) for part in self.label.split(", ")]
        return slug("-".join(parts)) or "point"


def points_of(
    regimes: str | None, grid: Sequence[str], set_for: Sequence[str], groups: Mapping[str, Any]
) -> list[Point]:
    """Every regime with every combination of the grid, in the order of the command line.

    Args:
        regimes: comma-separated: `full,separate,adapters,groups` or `groups:NAME=ROLE+ROLE:NAME=ROLE`;
            None sweeps no regimes.
        grid: `KEY=VALUE,VALUE,…` each.
        set_for: `REGIME:KEY=VALUE`: overrides for one regime alone.
        groups: [sharing] groups of the settings, for a bare `groups`.

    Raises:
        UsageError: a regime, a key or a list of values that can't be read, or the same point twice.
    """
    shared = [_regime(word, groups) for word in _words(regimes, "--regimes")] if regimes else [Point("")]
    shared = _with_own(shared, set_for)
    axes = [_axis(text) for text in grid]
    if not axes and not regimes:
        raise UsageError(
            "there is nothing to sweep over; give `sharing --regimes full,separate` or "
            "--grid KEY=VALUE,VALUE (or both)"
        )
    keys = [key for key, _ in axes]
    if doubled := next((k for k in keys if keys.count(k) > 1), None):
        raise UsageError(f"--grid names {doubled!r} twice; put all of its values into one --grid")
    complete = []
    combinations = list(product(*([f"{key}={v}" for v in values] for key, values in axes)))
    for point, settings in product(shared, combinations):
        label = ", ".join([*([point.label] if point.label else []), *settings])
        complete.append(Point(label, point.sharing, (*point.overrides, *settings)))
    for what in ("label", "slug"):
        names = [getattr(p, what) for p in complete]
        if doubled := next((n for n in names if names.count(n) > 1), None):
            raise UsageError(
                f"two points of the sweep are called {doubled!r}; name each regime and value once"
            )
    return complete


def seeds_of(text: str | None, default: int) -> list[int]:
    """`0,1,2` as numbers; without seeds, the one of the settings.

    Raises:
        UsageError: not whole numbers, or one of them twice.
    """
    if text is None:
        return [default]
    words = _words(text, "--seeds")
    if bad := next((w for w in words if not w.lstrip("-").isdigit()), None):
        raise UsageError(
            f"--seeds {text!r}: {bad!r} is not a whole number; write, for example, --seeds 0,1,2"
        )
    seeds = [int(w) for w in words]
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"--seeds {text!r} has a seed twice, which would be the same run twice")
    return seeds


def settings_at(
    raw: Mapping[str, Any], point: Point, *, seed: int, name: str, tags: Mapping[str, str]
) -> Settings:
    """The settings of one run of a sweep.

    A sharing regime is about all weights, so [models.<id>] adapter stays for `adapters` only.

    Raises:
        UsageError: the point's settings are not valid.
    """
    changed = copy.deepcopy(dict(raw))
    if point.sharing is not None:
        changed["sharing"] = dict(point.sharing)
        if point.sharing.get("regime") != "adapters":
            for section in changed.get("models", {}).values():
                section.pop("adapter", None)
    for override in point.overrides:
        set_override(changed, override)
    changed["run"] = {**changed.get("run", {}), "name": name, "seed": seed}
    tracking = changed.get("tracking", {})
    changed["tracking"] = {**tracking, "tags": {**tracking.get("tags", {}), **tags}}
    return parse_settings(changed, f"point {point.label!r}", point.overrides)


def _regime(word: str, groups: Mapping[str, Any]) -> Point:
    name, _, rest = word.partition(":")
    if name not in REGIMES:
        raise UsageError(
            f"--regimes: {word!r} is not a sharing regime{did_you_mean(name, REGIMES)}; they are: full, "
            f"separate, adapters, groups (of [sharing] groups), or {_GROUPS_FORM}"
        )
    if name != "groups":
        if rest:
            raise UsageError(f"--regimes: {name!r} takes nothing after it, got {word!r}")
        return Point(name, {"regime": name})
    if not rest:
        if not groups:
            raise UsageError(
                f"--regimes groups: the settings have no [sharing] groups; add them, or write {_GROUPS_FORM}"
            )
        return Point("groups", {"groups": groups})
    written: dict[str, list[str]] = {}
    for part in rest.split(":"):
        group, _, roles = part.partition("=")
        if not group or not roles or group in written:
            raise UsageError(f"--regimes: {word!r}: expected a name and its roles, as in {_GROUPS_FORM}")
        written[group] = roles.split("+")
    return Point(word, {"groups": written})


def _with_own(points: list[Point], set_for: Sequence[str]) -> list[Point]:
    settings_of: dict[str, list[str]] = {p.label: [] for p in points}
    for text in set_for:
        # a groups point has colons of its own: the longest label that fits is meant
        label = max((p for p in settings_of if p and text.startswith(f"{p}:")), key=len, default=None)
        if label is None or "=" not in text[len(label) + 1 :]:
            raise UsageError(
                f"--set-for {text!r}: expected REGIME:KEY=VALUE with one of the regimes of this sweep: "
                f"{', '.join(p for p in settings_of if p) or 'it has none'}"
            )
        settings_of[label].append(text[len(label) + 1 :])
    return [Point(p.label, p.sharing, tuple(settings_of[p.label])) for p in points]


def _axis(text: str) -> tuple[str, list[str]]:
    key, separator, values = text.partition("=")
    settings_values = split_values(values)
    if not separator or not key.strip() or not all(settings_values):
        raise UsageError(
            f"--grid {text!r}: expected KEY=VALUE,VALUE, for example --grid ppo.learning_rate=1e-6,1e-5"
        )
    if key.strip() in ("run.seed", "run.name", "run.root"):
        raise UsageError(f"--grid {text!r}: the sweep sets {key.strip()} itself; seeds are --seeds 0,1,2")
    return key.strip(), settings_values


def split_values(text: str) -> list[str]:
    """`text` at its commas, but for those within brackets, braces and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        depth += 0 if quote else (character in "[{") - (character in "]}")
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return [value.strip() for value in parts]


def _words(text: str, option: str) -> list[str]:
    words = [w.strip() for w in text.split(",")]
    if not all(words):
        raise UsageError(f"{option} {text!r}: there is an empty entry between the commas")
    return words


def _short(part: str) -> str:
    """`ppo.learning_rate=1e-5` as `learning_rate-1e-5`; a regime as it is."""
    key, separator, value = part.partition("=")
    if not separator or key.startswith("groups:"):
        return part
    return f"{key.rsplit('.', 1)[-1]}-{value}"
