"""One HTML file with everything in it, in which nothing that a model wrote can become markup or run.

- All data is one gzipped JSON text, and token chunks like it, in base64: no letter of it ends a tag.
- The page's scripts write texts with `textContent`, and nothing with `innerHTML`.
- The page's own policy (CSP) allows one style and one script, by their hashes, and no connection.

The same content gives the same bytes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Final

from pipeline.views.render import visible

# in this order: each may use those before it
SCRIPTS: Final = ("data.js", "dom.js", "search.js", "tokens.js", "chart.js", "turn.js")
SCRIPTS_AFTER: Final = ("course.js", "episode.js", "list.js", "shift.js", "overview.js", "main.js")


def page(title: str, data: Mapping[str, Any], chunks: Sequence[Mapping[str, Any]], graph: str) -> bytes:
    """The whole page.

    Args:
        title: of the window; any text.
        data: JSON values: `about`, `roles`, and the content without its chunks.
        chunks: JSON values, each unpacked when a turn of it is first looked at.
        graph: SVG that was made by `pipeline.report.drawing`.
    """
    style = _asset("page.css")
    script = "\n".join(["'use strict';", *(_asset(name) for name in (*SCRIPTS, *SCRIPTS_AFTER))])
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    packed = [f'<script type="text/plain" id="data">{_packed(data)}</script>']
    packed += [
        f'<script type="text/plain" id="chunk-{i}">{_packed(chunk)}</script>'
        for i, chunk in enumerate(chunks)
    ]
    filled = {
        "POLICY": policy,
        "TITLE": html.escape(visible(title)),
        "STYLE": style,
        "GRAPH": graph,
        "DATA": "\n".join(packed),
        "SCRIPT": script,
    }
    # in one pass, so that no value is searched for marks
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: filled[mark[1]], _asset("page.html")).encode("utf-8")


def _asset(name: str) -> str:
    return resources.files("pipeline.report").joinpath("assets", name).read_text("utf-8")


def _packed(value: Any) -> str:
    """Gzipped JSON in base64. ASCII only: JSON can have lone surrogates, which UTF-8 can not."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("ascii"), 6, mtime=0)).decode("ascii")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}"
