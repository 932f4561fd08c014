"""A test of the data set inside a sandbox: it runs in the keeper (`box.py`), the program elsewhere."""

from __future__ import annotations

from workflows.tools.code.codec import decode
from workflows.tools.code.lines import Lines, ProgramGone, TooLong, message_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Seen:
    """Calls made, and the program's exceptions that were raised in the test."""

    def __init__(self) -> None:
        self.calls = 0
        self.relayed: list[BaseException] = []
        self.last_word: BaseException | None = None  # after which nothing counts, whatever the test catches


def run_test(test: dict[str, Any], lines: Lines) -> tuple[str, str, str]:
    """How a test ends, and the name and text of the exception that ended it.

    "passed"; "wrong"; "error", where the exception is the program's; "broken", where no call was made.
    """
    seen = Seen()
    space: dict[str, Any] = {"__name__": "test"}
    kind, name, text = "passed", "", ""
    try:
        exec(test["prelude"], space)
        space.update({name: stand_in(target, lines, seen) for name, target in test["names"].items()})
        exec(compile(test["setup"], "setup.py", "exec", dont_inherit=True), space)
        space.update({name: stand_in(target, lines, seen) for name, target in test["always"].items()})
        exec(compile(test["test"], "test.py", "exec", dont_inherit=True), space)
    except BaseException as error:
        kind = "error" if any(error is other for other in seen.relayed) else "wrong"
        name, text = type(error).__name__, message_of(error)
    if seen.last_word is not None:
        raise seen.last_word
    if not seen.calls:
        return "broken", name, text or "the test never calls the program"
    return kind, name, text


def stand_in(name: str, lines: Lines, seen: Seen) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        seen.calls += 1
        try:
            if seen.last_word is not None:
                raise seen.last_word
            lines.write(name, list(args), kwargs, "exact")
            line = lines.read()
            if line is None:
                raise ProgramGone()
        except (ProgramGone, TooLong) as last_word:
            seen.last_word = last_word
            raise
        try:
            kind, *content = decode(line)
            if kind == "value":
                return content[0]
            raised = exception_of(*content) if kind == "error" else None
        except (ValueError, TypeError, IndexError):
            raised = None
        if raised is None:
            raise TypeError("what the program returned is not a plain value: it can't cross to the test")
        seen.relayed.append(raised)
        raise raised

    function.__name__ = name
    return function


def exception_of(name: str, text: str) -> Exception:
    """What the program raised, as the same built-in exception where there is one."""
    import builtins

    found = getattr(builtins, str(name), None)
    if isinstance(found, type) and issubclass(found, Exception):
        try:
            return found(text)
        except TypeError:  # one that wants other arguments
            pass
    return RuntimeError(f"{name}: {text}")
