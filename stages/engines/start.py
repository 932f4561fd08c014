"""Starting engines: one Ray actor around an engine server of any kind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

from stages.engines.base import EngineGone, EngineServer, EngineSpec, Weights
from stages.engines.client import EngineClient, failed_call
from stages.engines.kinds import check_spec, engine_class, renderer_of
from stages.process.memory import peak_resident_bytes
from stages.process.openmp import openmp_environment
from stages.process.output import kept_output, last_words
from stages.waiting import LIMITS, answers
from workflows.engine import Completion, Sampling, Weighed
from workflows.errors import CadreError, RunFailed

CLOSE_SECONDS: Final = 10.0  # for an engine to end by itself, with its child processes


class EngineActor:
    """The inside of the Ray actor. An error while starting is kept and told to whoever waits for `ready`."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self._server: EngineServer | None = None
        self._starting: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._last_words = ""

    async def ready(self) -> dict[str, Any]:
        """Start the engine, once, and describe it.

        Raises:
            UsageError: the spec can't work.
            RunFailed: the engine failed to start, with its own last lines.
        """
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        await self._starting
        return {**self._ready_server().describe(), "process": os.getpid()}

    async def _start(self) -> None:
        spec = self.spec
        threads = spec.num_threads or len(os.sched_getaffinity(0))
        openmp_environment(threads)  # before torch is imported here
        os.environ.update(
            VLLM_NO_USAGE_STATS="1",
            VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
            TOKENIZERS_PARALLELISM="false",
            HF_HUB_DISABLE_PROGRESS_BARS="1",
        )
        if os.path.isdir(spec.checkpoint):
            os.environ["HF_HUB_OFFLINE"] = "1"  # all there is to load lies in the folder
        with kept_output() as output:
            try:
                self._server = cast(Any, engine_class(spec.kind))(spec)
            except CadreError:
                raise
            except BaseException as error:  # some libraries leave by SystemExit
                raise _failed_start(spec, error, output.read()) from None

    def _ready_server(self) -> EngineServer:
        if self._server is None:
            raise RunFailed(f"the engine of {self.spec.base_id!r} is asked before it is ready")
        return self._server

    async def until_end(self) -> str:
        """Why the engine answers nothing any more, once that is so while this process lives on."""
        await self._ended.wait()
        return self._last_words

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except EngineGone as error:
            self._last_words = str(error)
            self._ended.set()
            raise

    async def generate(self, model_id: str, prompt_token_ids: list[int], sampling: Sampling) -> Completion:
        with self._watched():
            return await self._ready_server().generate(model_id, prompt_token_ids, sampling)

    async def weigh(
        self, model_id: str, prompt_token_ids: list[int], options: list[list[int]], temperature: float
    ) -> Weighed:
        with self._watched():
            return await self._ready_server().weigh(model_id, prompt_token_ids, options, temperature)

    async def reload(self, weights: Weights) -> None:
        await self._ready_server().reload(weights)

    async def sleep(self) -> None:
        await self._ready_server().sleep()

    async def wake(self) -> None:
        await self._ready_server().wake()

    async def stats(self) -> dict[str, float]:
        return await self._ready_server().stats()

    async def peak_memory(self) -> int:
        """The most bytes of main memory that this engine's processes have had resident."""
        return peak_resident_bytes()

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()


def _failed_start(spec: EngineSpec, error: BaseException, output: str) -> RunFailed:
    """Why an engine did not start: its error, and what it or a process of it wrote last."""
    words = last_words(output, besides=str(error).strip().splitlines()[0] if str(error).strip() else "")
    return RunFailed(
        f"the {spec.kind} engine of {spec.base_id!r} ({spec.checkpoint}) does not start: "
        f"{type(error).__name__}: {error}" + (f"; it wrote last: {words}" if words else "") + "\n"
        f"{''.join(traceback.format_exception(error, limit=-3))}"
    )


def start_engine(
    spec: EngineSpec,
    name: str | None = None,
    *,
    wait: bool = True,
    timeout_seconds: float = LIMITS.engine_start_seconds,
) -> Any:
    """Start an engine in a Ray actor of its own and return the handle.

    With `wait=False` it comes up in the background; `wait_ready` then waits for several at once.

    Raises:
        UsageError, RunFailed: as `wait_ready`.
    """
    import ray

    check_spec(spec)  # said here at once, not by a worker
    actor = ray.remote(EngineActor).options(
        name=name,
        num_cpus=0,
        num_gpus=spec.num_gpus,
        # Ray packs, which leaves devices whole for larger processes; what needs none goes to other nodes.
        scheduling_strategy="SPREAD" if spec.replicas > 1 and not spec.num_gpus else "DEFAULT",
        # Waiting calls cost nothing, and calls beyond this number would wait outside the batch.
        max_concurrency=10_000,
        max_restarts=0,
        max_task_retries=0,
    )
    handle = actor.remote(spec)
    handle.ready.remote()
    if wait:
        wait_ready([handle], timeout_seconds)
    return handle


def wait_ready(
    handles: Sequence[Any],
    timeout_seconds: float = LIMITS.engine_start_seconds,
    names: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Wait until all engines are up; their descriptions, in order. When the wait fails or is stopped, all
    are ended.

    Args:
        handles: from `start_engine`.
        timeout_seconds: for all of them together.
        names: of the engines, for messages.

    Raises:
        UsageError: an engine's spec can't work.
        RunFailed: an engine failed to start or was not up in time.
    """
    from ray.exceptions import RayError

    what = (
        f"the start of {'engine' if len(handles) == 1 else 'engines'} {', '.join(map(repr, names))}".strip()
    )
    try:
        starting = [handle.ready.remote() for handle in handles]
        return answers(starting, what, timeout_seconds, setting="cluster.engine_start_seconds")
    except RayError as error:
        end_by_force(handles)
        raise failed_call(error, "an engine that was starting") from None
    except BaseException:
        end_by_force(handles)
        raise


def end_by_force(handles: Sequence[Any]) -> None:
    """Kill engine actors. One that Ray does not know any more is dead."""
    import ray

    for handle in handles:
        with contextlib.suppress(ValueError):
            ray.kill(handle)


def stop_engine(handle: Any, timeout_seconds: float = CLOSE_SECONDS) -> None:
    """End one engine: see `stop_engines`."""
    stop_engines([handle], timeout_seconds)


def stop_engines(handles: Sequence[Any], timeout_seconds: float = CLOSE_SECONDS) -> None:
    """End engines: all are asked at once, so that their own child processes end too, then by force.

    Does nothing where Ray is down already.
    """
    import ray
    from ray.exceptions import RayError

    if not handles or not ray.is_initialized():
        return
    try:
        with contextlib.suppress(RayError):  # dead: Ray says so, and the end by force changes nothing
            ray.wait([h.close.remote() for h in handles], num_returns=len(handles), timeout=timeout_seconds)
    finally:
        end_by_force(handles)


def connect(
    handle: Any,
    spec: EngineSpec,
    *,
    model_id: str,
    description: dict[str, Any] | None = None,
    trainable: bool = True,
) -> EngineClient:
    """A client for one model of a running engine; `description` is what `wait_ready` returned for it."""
    if description is None:
        (description,) = wait_ready([handle])
    return EngineClient(
        handle,
        model_id=model_id,
        base_id=spec.base_id,
        description=description,
        renderer=renderer_of(spec),
        trainable=trainable,
    )
