"""Names of replays: what people would call one, from what it changed, unless `--label` says otherwise."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pipeline.replays.settings import Change
from pipeline.store.differences import differences, plain
from pipeline.store.folder import Folder
from workflows.errors import UsageError

LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LENGTH: Final = 40  # characters of a label that is made, at most; a hash may follow


def checked_label(label: str) -> str:
    """`label`, if it can be a folder's name.

    Raises:
        UsageError: other characters, or more than 64.
    """
    if not LABEL.fullmatch(label):
        raise UsageError(
            f"--label {label!r}: use up to 64 letters, digits, '.', '_' and '-', the first a letter or digit"
        )
    return label


def check_held(held: str | None, identity: Any, how: str, folder: Folder) -> None:
    """Refuse a label whose folder holds plays or a replay of another identity.

    Args:
        held: the text of the file that says what the folder holds; None where it holds nothing.
        how: what it was made with, as the beginning of the message.

    Raises:
        UsageError: with what is different.
    """
    if held is None:
        return
    before, now = json.loads(held)["identity"], plain(identity)
    if before != now:
        raise UsageError(f"{how}: {differences(before, now)}; use another --label, or remove {folder.url}")


def words_of(changes: Iterable[Change]) -> list[str]:
    """A word or two for each change: `credit.use = "rloo"` is rloo, `ppo.clip_high = 0.3` clip_high-0.3."""
    return [word for key, before, now in changes for word in _words(key.rpartition(".")[2], before, now)]


def default_label(words: Sequence[str], identity: Mapping[str, Any], replays: Folder) -> str:
    """The words as a folder's name; where another replay has that name, with a hash of the settings.

    Args:
        words: in the order in which they are read.
        identity: what may not change under one label (`ReplayPlan.identity`).
        replays: the folder of all replays of the run.
    """
    text = re.sub(r"[^A-Za-z0-9._]+", "-", "-".join(words) or "unchanged")[:LENGTH].strip("-._") or "replay"
    if _is_free(replays.child(text), identity):
        return text
    digest = hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=4).hexdigest()
    return f"{text}-{digest}"


def _is_free(folder: Folder, identity: Mapping[str, Any]) -> bool:
    """Whether the folder holds nothing, or a replay of these very settings, which then goes on."""
    held = folder.read_text("replay.json")
    if held is None:
        return set(folder.names()) <= {"lock"}
    return bool(json.loads(held)["identity"] == plain(dict(identity)))


def _words(key: str, before: Any, now: Any) -> list[str]:
    if key == "use":
        return [str(now).rpartition(":")[2]]  # of a path the name: acme.credit:Mine is Mine
    if isinstance(now, bool) or now is None:
        return [key if now else f"no-{key}"]
    if isinstance(now, str | int | float):
        return [f"{key}-{now}"]
    if not isinstance(now, list) or not all(isinstance(item, Mapping) and "use" in item for item in now):
        return [key]
    # a list of plug-ins: what differs in those that stay, else what they are now
    if isinstance(before, list) and [b.get("use") for b in before] == [n["use"] for n in now]:
        pairs = [(n["use"], _of_plugin(b, n)) for b, n in zip(before, now, strict=True)]
        return [w for use, words in pairs if words for w in (*_words("use", None, use), *words)] or [key]
    return [word for item in now for word in _words("use", None, item["use"])]


def _of_plugin(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    pairs = [(key, before.get(key), value) for key, value in now.items() if before.get(key) != value]
    return [
        word
        for key, was, value in pairs
        for word in (
            _of_plugin(was or {}, value) if isinstance(value, Mapping) and value else _words(key, was, value)
        )
    ]
