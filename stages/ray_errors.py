"""Failures that Ray reports as errors of ours: an actor's own error as itself, all else with its cause."""

from __future__ import annotations

from typing import Final

from workflows.errors import CadreError, InfraError, RunFailed, describe

_TELLING: Final = (
    "cause",
    "exit",
    "killed",
    "memory",
    "signal",
    "oom",
    "error",
)  # words of lines worth showing
_MAX_LINES: Final = 4
_MAX_CHARACTERS: Final = 600
LESS_MEMORY: Final = "fewer engines, a smaller kv_cache_gib"


def from_ray(error: BaseException, who: str, less_memory: str = LESS_MEMORY) -> CadreError:
    """What happened to an actor: our own kind of error as itself, all else as InfraError.

    Args:
        error: what `ray.get` or an awaited call raised.
        who: names the actor, as a sentence begins.
        less_memory: what would need less memory there, for an actor that the machine had none for.
    """
    cause = getattr(error, "cause", None)
    if isinstance(cause, CadreError):
        return cause
    if isinstance(error, CadreError):
        return error  # Ray makes a class that is both where it can
    if cause is not None:
        return InfraError(f"{who} failed: {describe(cause)}")
    return InfraError(f"{who} is gone: {last_words(error, less_memory)}")


def ends_the_run(error: BaseException, who: str, less_memory: str = LESS_MEMORY) -> CadreError:
    """As `from_ray`, for an actor that no run goes on without: what would be an InfraError is RunFailed."""
    failure = from_ray(error, who, less_memory)
    return RunFailed(str(failure)) if isinstance(failure, InfraError) else failure


def last_words(error: BaseException, less_memory: str = LESS_MEMORY) -> str:
    """The lines of Ray's report that say why a worker ended, out of memory above all."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    chosen = [line for line in lines if any(word in line.lower() for word in _TELLING)] or lines[:2]
    text = " ".join(chosen[:_MAX_LINES])[:_MAX_CHARACTERS]
    if "memory" in text.lower() or "oom" in text.lower():
        text += f" (most often the machine ran out of memory: {less_memory})"
    return text or type(error).__name__
