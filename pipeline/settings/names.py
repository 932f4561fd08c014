"""Names and addresses that are safe to show and to use as one part of a path or of a metric's name."""

from __future__ import annotations

import hashlib
import re


def slug(name: str) -> str:
    """`name` as one component of a metric name: word characters, `.` and `-`.

    A name that had to change also gets six digits of its hash, so two names never share a slug.
    """
    cleaned = re.sub(r"[^\w.\-]+", "_", name).strip("._")[:60]
    if cleaned == name and name:
        return cleaned
    return f"{cleaned}-{hashlib.blake2b(name.encode('utf-8', 'replace'), digest_size=3).hexdigest()}"


def without_password(text: str) -> str:
    """`text` with `***` for the password of every URL in it."""
    return re.sub(r"(://[^/:@\s]*:)[^/@\s]+@", r"\1***@", text)
