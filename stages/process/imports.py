"""Importing large libraries without the parts that a process of ours never uses.

A trainer's start is imports, one core's work: 19 s without this on a slow processor, 10 s with it.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_NO_COMPILER: Final = "TORCHDYNAMO_DISABLE"


def import_transformers() -> None:
    """Transformers' causal models, but not scikit-learn and SciPy, which it wants for assisted generation and
    for losses of object detection."""
    with without("sklearn", "scipy"):
        from transformers import AutoModelForCausalLM  # noqa: F401


def import_trainer_libraries() -> None:
    """Transformers and DeepSpeed, once in a process: without DeepSpeed's auto-tuner's MLflow, and without
    the compiler that it loads for an optimizer which is never made (Muon).

    What was imported lives as long as the process, so garbage collection is told to pass it over:
    DeepSpeed collects four times while it starts, half a second each otherwise. When the process ends,
    the pass is taken back: Triton prints a page of what it calls leaks about objects that stay to the end.
    """
    if "deepspeed" in sys.modules:
        return
    import_transformers()
    with without("mlflow"), _without_compiler():
        import deepspeed.runtime.zero.muon.original_muon  # noqa: F401
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Imports of these packages fail inside, as where they are not installed. Those already there stay."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: a documented veto
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


@contextmanager
def _without_compiler() -> Iterator[None]:
    before = os.environ.get(_NO_COMPILER)
    os.environ[_NO_COMPILER] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NO_COMPILER]
        else:
            os.environ[_NO_COMPILER] = before
