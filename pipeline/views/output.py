"""Printing to stdout: the pages of a command, or its values as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import RenderableType

from pipeline.views.render import echo, make_console, plain


def print_pages(pages: Sequence[RenderableType], data: Any, as_json: bool) -> None:
    """Print `data` as JSON, or else the pages."""
    if as_json:
        print_json(data)
    else:
        echo(make_console(), *pages)


def print_json(data: Any) -> None:
    """Print plain values as JSON; a number that is not finite becomes null.

    Characters outside ASCII are escaped, so that no control character of a model reaches the terminal.
    """
    print_lines([json.dumps(plain(data), indent=1)])


def print_lines(lines: Iterable[str]) -> None:
    """Print plain lines."""
    sys.stdout.writelines(f"{line}\n" for line in lines)
