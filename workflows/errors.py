"""The errors that a user meets. Each is one message: what, where, got and expected, what to do."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from pathlib import PurePath
from typing import Final

_MAX_DETAIL: Final = 2000  # characters of a cause that a row keeps


class CadreError(Exception):
    """Base of every error that Cadre raises on purpose."""


class UsageError(CadreError):
    """Settings, data, a plug-in or a command line that can't work. Exit code 2, raised before Ray starts."""


class WorkflowError(UsageError):
    """A workflow graph, role, prompt or parser that is declared wrongly."""


class DataError(UsageError):
    """Task rows or a corpus that can't be read as declared."""


class SchemaError(CadreError):
    """A plug-in returned something of the wrong shape."""


class RunFailed(CadreError):
    """A run that can't go on: nothing to train on, a budget of failures spent, an engine lost. Exit 1."""


class NotDemonstrated(RunFailed):
    """A file of demonstrations has no answer to a prompt. Its episode is kept and not trained on."""


class InfraError(CadreError):
    """A failure that is not the policy's doing. Its episode is kept, labelled and not trained on."""


class ToolRefusal(CadreError):
    """A tool refuses what the policy asked for. The policy's own doing: status `tool_error`, trained on."""


class TurnFailed(CadreError):
    """A turn failed through no doing of the policy. Its row and its cause are on the record already."""


class TurnLimit(CadreError):
    """The episode has as many turns as it may have."""


def did_you_mean(got: str, known: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"` for a near miss, else an empty string: a message may go on behind either."""
    close = difflib.get_close_matches(got, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def describe(error: BaseException, limit: int = _MAX_DETAIL) -> str:
    """An exception in one line of at most about `limit` characters: type, message and place in the code.

    An error that Cadre raises on purpose is its message alone.
    """
    if isinstance(error, CadreError):
        return _line(str(error), limit)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({PurePath(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return _line(f"{type(error).__name__}: {error}", limit) + place


def _line(text: str, limit: int) -> str:
    return " ".join(text.split())[:limit]
