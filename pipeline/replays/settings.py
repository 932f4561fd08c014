"""The settings of a replay: those of the run with some set anew, and which of them may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from pipeline.settings.keys import dotted
from pipeline.settings.overrides import set_override, set_value
from pipeline.settings.program import hint
from pipeline.settings.reading import parse_settings, read_toml
from pipeline.settings.schema import Settings
from pipeline.store.differences import different, plain
from pipeline.store.run import Run
from workflows.errors import UsageError

Change = tuple[str, Any, Any]  # a setting, before and now

ELSEWHERE: Final = ("run.*", "tracking.*", "cluster.*", "sandbox.*", "checkpoints.*")
"""Settings that no result of a replay depends on."""

_HARMLESS: Final = ("tracking.*", "cluster.*", "sandbox.*")
_EVALUATES: Final = (
    "rewards*",
    "roles.*.format_weight",
    "evaluate.rewards*",
    "evaluate.best",
    "evaluate.best_by",
    "evaluate.solved_at",
)
_LAYOUT: Final = ("mini_batches", "micro_batch_tokens")
_TOKENS: Final = ("kl_*", "importance*", "loss")
_CREDITS: Final = (
    "rewards*",
    "roles.*.format_weight",
    "roles.*.frozen",
    "credit.*",
    "advantage.*",
    *(f"{of}ppo.{key}" for of in ("", "models.*.", "roles.*.") for key in (*_LAYOUT, *_TOKENS)),
    "models.*.trainer.ranks",
    "models.*.trainer.shared_prefix",
)
_UPDATES: Final = (
    "ppo.*",
    "models.*.ppo.*",
    "roles.*.ppo.*",
    "models.*.trainer.*",
)
_FORWARD: Final = ("critic", "critic.*", "models.*.critic*", "models.*.reference")
_TRAINS: Final = (*_UPDATES, *_FORWARD, "checkpoints.*", "run.max_iterations_without_signal")


def stored_settings(run: Run) -> dict[str, Any]:
    """The settings of a run as it keeps them, before any is changed.

    Raises:
        UsageError: the run has no settings file, or not one of TOML.
    """
    text = run.folder.read_text("settings.toml")
    where = f"{run.folder.url}/settings.toml"
    if text is None:
        raise UsageError(f"{where} is missing, so what the run was made with is not known; restore the file")
    return read_toml(text.encode(), where)


def overridden(run: Run, overrides: Sequence[str]) -> Settings:
    """The run's settings with `--set` overrides."""
    raw = stored_settings(run)
    for override in overrides:
        set_override(raw, override)
    return parse_settings(raw, f"settings of run {run.name!r}", overrides)


def with_values(run: Run, values: Mapping[str, Any], where: str) -> Settings:
    """The run's settings with `values`: nested tables, or dotted keys, which replace what they name."""
    raw = stored_settings(run)
    for key, value in _leaves(values):
        set_value(raw, key, value, where)
    return parse_settings(raw, where)


def changes_of(
    run: Run, settings: Settings, *, split: str | None = None, update: bool = False
) -> list[Change]:
    """The settings that differ from the run's own, refused where stored turns can't follow them.

    Args:
        split: of a replay of evaluations.
        update: the replay trains, so what updates depend on may change too.

    Raises:
        UsageError: naming the setting, both values and what to do instead.
    """
    stored = parse_settings(stored_settings(run), f"settings of run {run.name!r}")
    changes = list(different(*(plain(s.model_dump(mode="json")) for s in (stored, settings))))
    allowed = (*_HARMLESS, *(_EVALUATES if split is not None else _CREDITS), *(_TRAINS if update else ()))
    for key, before, now in changes:
        if not _is_of(key, allowed):
            raise UsageError(f"{key}: {before!r} → {now!r}: {_why_not(key, split)}")
    return changes


def depends_on(values: Mapping[str, Any]) -> dict[str, Any]:
    """The sections that a replay's results may depend on, of all settings as plain values."""
    sections = {pattern.partition(".")[0] for pattern in ELSEWHERE}
    return {name: section for name, section in plain(dict(values)).items() if name not in sections}


def _why_not(key: str, split: str | None) -> str:
    if key == "run.name":
        return "a replay is named by --label"
    if key == "run.root":
        return "a replay lies in the run's folder; name the run by its path, or pass --root"
    if split is not None and _is_of(key, (*_CREDITS, *_UPDATES)):
        return "an evaluation has rewards only, no credit and no update, so it would have no effect"
    if _is_of(key, _UPDATES):
        return (
            "only an update depends on it, and this replay makes none; pass --update to train on the result"
        )
    if _is_of(key, _FORWARD):
        return (
            "values and reference logprobs come from a model's forward pass and are read as they are stored; "
            "for others pass --update, which loads the model, or start a run of its own "
            f"(`{hint('run iteration')}`)"
        )
    if key.startswith("evaluate."):
        return "only evaluations depend on it; pass --split to replay one, or leave it as it is"
    return (
        "what was sampled depends on it, so stored turns can't be replayed with it; start a run of its own "
        f"(`{hint('run iteration')}`)"
    )


def _is_of(key: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values. A quoted key with dots names its whole value, a table that is written as
    one (`[variants.x.credit]`, `credit.use = …`) only what is in it."""
    for name, value in values.items():
        is_table = isinstance(value, Mapping) and value and bool(path or "." not in name)
        part = dotted([name]) if is_table else name  # the id of a model may have a dot of its own
        key = f"{path}.{part}" if path else part
        if is_table:
            yield from _leaves(value, key)
        else:
            yield key, value
