"""Who computes a reward model's scores: this process, or processes that keep its weights.

Each text has a forward pass of its own, so that a score's bits depend on its text alone.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from rewards.preferences.render import cut_middle
from stages.process.openmp import openmp_environment
from stages.reward_model.model import RewardModel, read_model
from stages.waiting import answer
from workflows.errors import CadreError, InfraError

START_SECONDS: Final = 600.0
CALL_SECONDS: Final = 3600.0  # of the plays of one part


class Reader:
    """A reward model's network, tokenizer and head in this process."""

    def __init__(self, folder: str, num_gpus: float = 0.0) -> None:
        import torch
        from transformers.utils import logging

        from stages.training.network.policy import Trunk, load_network
        from stages.weights.chat import ChatRenderer

        logging.disable_progress_bar()
        model = read_model(folder)
        weights = model.weights()
        self.device = torch.device("cuda" if num_gpus else "cpu")
        loaded = load_network(weights, precision=model.info["precision"], packed=False, head=False)
        self.trunk = Trunk(loaded.model.requires_grad_(False)).to(self.device)
        self.renderer = ChatRenderer(weights)
        self.context, self.scale = model.context, model.scale
        weight, bias = model.head
        self.weight = torch.tensor(weight, dtype=torch.float32, device=self.device)
        self.bias = bias

    def scores(self, texts: Sequence[str]) -> list[float]:
        """The score of each text, around 0 and in deviations."""
        mean, deviation = self.scale
        return [(raw - mean) / deviation for raw in map(self._raw, texts)]

    def _raw(self, text: str) -> float:
        import torch

        ids, _ = cut_middle(self.renderer.encode(text), self.context - 1)
        with torch.no_grad():
            states = self.trunk.model(
                input_ids=torch.tensor([ids], device=self.device), use_cache=False
            ).last_hidden_state
        return float(states[0, -1].float() @ self.weight) + self.bias


@lru_cache(maxsize=2)
def _reader(folder: str, _hash: str, num_gpus: float) -> Reader:
    return Reader(folder, num_gpus)


@dataclass(frozen=True)
class ModelScorer:
    """Scores texts by the reward model in a folder: in this process, and once `opened` in others."""

    model: RewardModel
    num_gpus: float = 0.0  # of each process
    workers: int = 1
    num_threads: int = 0  # of each of them; 0 shares the cores among them

    def check_ready(self) -> None:
        """See `rewards.base.RewardHooks`."""
        self.model.weights(whole=False)

    def __call__(self, texts: Sequence[str]) -> list[float]:
        if not texts:
            return []
        return _reader(self.model.folder, self.model.hash, self.num_gpus).scores(texts)

    def opened(self) -> AbstractContextManager[ActorScorer]:
        """Processes that have loaded the weights. They stay until Ray ends, for the next iteration."""
        return self._opened()

    @contextmanager
    def _opened(self) -> Iterator[ActorScorer]:
        yield ActorScorer(self.model.folder, tuple(_actors(self)))


@dataclass(frozen=True)
class ActorScorer:
    """Asks one of some processes; which one depends on the texts alone."""

    folder: str
    actors: tuple[Any, ...] = field(repr=False)

    def check_ready(self) -> None:
        """Its processes are up."""

    def opened(self) -> AbstractContextManager[ActorScorer]:
        """Itself."""
        from contextlib import nullcontext

        return nullcontext(self)

    def __call__(self, texts: Sequence[str]) -> list[float]:
        """
        Raises:
            InfraError: the process died, fell silent or failed.
        """
        if not texts:
            return []
        actor = self.actors[zlib.crc32(texts[0].encode("utf-8", "replace")) % len(self.actors)]
        try:
            what = f"a part's scores by reward model {self.folder}"
            scores: list[float] = answer(actor.scores.remote(list(texts)), what, CALL_SECONDS)
        except Exception as error:  # Ray's own, or what the process failed with
            words = str(getattr(error, "cause", None) or error).strip().splitlines()
            raise InfraError(
                f"reward model {self.folder} gave no scores: {words[-1] if words else ''}"
            ) from error
        return scores


_OPEN: Final[dict[tuple[Any, ...], list[Any]]] = {}  # of this driver, by what they hold and by its Ray job


def _actors(scorer: ModelScorer) -> list[Any]:
    """The processes of a scorer, which are started where they are not up."""
    import ray

    job = ray.get_runtime_context().get_job_id(), ray.get_runtime_context().get_node_id()
    key = (*job, scorer.model.hash, scorer.num_gpus, scorer.workers)
    if key not in _OPEN or not _alive(_OPEN[key]):
        threads = scorer.num_threads or max(1, len(os.sched_getaffinity(0)) // scorer.workers)
        options = {"num_cpus": 0, "num_gpus": scorer.num_gpus, "max_restarts": 0, "max_task_retries": 0}
        kind = ray.remote(**options)(_Process)
        actors = [kind.remote(scorer.model.folder, scorer.num_gpus, threads) for _ in range(scorer.workers)]
        what = f"the start of reward model {scorer.model.folder}"
        try:
            for actor in actors:
                answer(actor.ready.remote(), what, START_SECONDS)
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            raise cause if isinstance(cause, CadreError) else InfraError(f"{what} failed: {error}") from None
        _OPEN[key] = actors
    return _OPEN[key]


def _alive(actors: Sequence[Any]) -> bool:
    import ray

    try:
        ray.get([actor.ready.remote() for actor in actors], timeout=CALL_SECONDS)
    except ray.exceptions.RayError:
        return False
    return True


class _Process:
    """A reader as a Ray actor."""

    def __init__(self, folder: str, num_gpus: float, threads: int) -> None:
        openmp_environment(threads)
        import torch

        torch.set_num_threads(threads)
        self.reader = Reader(folder, num_gpus)

    def ready(self) -> bool:
        return True

    def scores(self, texts: list[str]) -> list[float]:
        return self.reader.scores(texts)
