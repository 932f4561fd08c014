"""Rollout against the same vLLM engine fed directly.

Ours is the whole stage: Ray Data, player, rendering, parsing, retrieval, the actor calls to the engine,
and both tables written. The peer is a coroutine inside the engine's own process that gives AsyncLLM the
same requests, read from the turns table: the same prompt ids and sampling, the same number of tokens
decoded, each request after those it depended on, as many episodes at a time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from pipeline.plan.assemble import Plan, assemble
from pipeline.run.runner import Runner
from pipeline.run.session import session
from pipeline.settings.reading import parse_settings
from stages.base import Context, Quiet
from stages.tables.parquet import TableRef
from tests.benchmarks.measure import Figure, Options, column, interleave, noise_of, told

TASKS, GROUP_SIZE, IN_FLIGHT = 5, 4, 16
REQUEST_COLUMNS = (
    "episode_id",
    "turn_index",
    "event",
    "parents",
    "prompt_token_ids",
    "response_token_ids",
    "sampling",
)

Say = Callable[[str], None]
Episode = list[dict[str, Any]]  # the turns of one episode, by turn_index


def run(options: Options, say: Say) -> list[Figure]:
    settings = {
        "run": {"name": "rollout", "root": f"{options.folder}/runs"},
        "data": {"path": "facts", "tasks_per_iteration": TASKS},
        "workflow": {"use": "qa_decompose", "options": {"top_k": 2}},
        "models": {"team": {"checkpoint": options.checkpoint, "engine": "vllm", "max_model_len": 1024}},
        "rollout": {"group_size": GROUP_SIZE, "max_in_flight": IN_FLIGHT},
        "tracking": {"uri": "none"},
    }
    plan = assemble(parse_settings(settings))
    with session(plan, Quiet(), signals=False) as runner:
        runner.fleet.players()  # engines and players up: what is measured is warm
        bench = _Bench(plan, runner)
        mine, theirs = interleave(bench.ours, bench.theirs, options.pairs, say)
    return [
        Figure(
            "rollout",
            "tokens/s",
            column(mine, "tokens_per_second"),
            column(theirs, "tokens_per_second"),
            goal=0.85,
            at="least",
            against="engine fed directly",
            notes=(
                f"{TASKS} tasks × {GROUP_SIZE} episodes of qa_decompose, {IN_FLIGHT} in flight; "
                f"llm turns {told(theirs, 'requests', 0)}, response tokens {told(mine, 'tokens', 0)}",
                f"share of prompt tokens found in the prefix cache: ours {told(mine, 'cached', 2)}, "
                f"peer {told(theirs, 'cached', 2)}",
                f"seconds: ours {told(mine, 'seconds', 2)}, in {told(mine, 'engine_busy', 2)} of them the "
                f"engine had a request; peer {told(theirs, 'seconds', 2)}",
                noise_of(mine, theirs),
            ),
            settings=settings,
        )
    ]


class _Bench:
    """Both sides of a pair: the stage plays an iteration, then its requests are fed to the engine."""

    def __init__(self, plan: Plan, runner: Runner) -> None:
        self.plan, self.runner = plan, runner
        (self.engine,) = runner.fleet._engines.values()
        self.episodes: list[Episode] = []

    def ours(self, pair: int) -> dict[str, float]:
        import ray

        sample, rollout = self.plan.stages[:2]
        store = self.runner.run.iteration(pair)
        context = Context(pair, Quiet(), self.runner.fleet)
        tasks = store.sinks(sample)["tasks"].ref(sample.run({}, store.sinks(sample), context).parts["tasks"])
        _in_engine(self.engine, _forget_prefixes)
        before = ray.get(self.engine.stats.remote())
        started = time.monotonic()
        sinks = store.sinks(rollout)
        result = rollout.run({"tasks": tasks}, sinks, context)
        seconds = time.monotonic() - started
        after = ray.get(self.engine.stats.remote())
        if result.metrics["episodes_failed"]:
            raise RuntimeError(f"{result.metrics['episodes_failed']:.0f} episodes failed: {result.notes}")
        self.episodes = requests_of(sinks["turns"].ref(result.parts["turns"]))
        tokens = result.metrics["response_tokens"]
        return {
            "tokens_per_second": tokens / seconds,
            "tokens": tokens,
            "seconds": seconds,
            "engine_busy": after["seconds_busy"] - before["seconds_busy"],
            "cached": (after["cached_tokens"] - before["cached_tokens"]) / result.metrics["prompt_tokens"],
        }

    def theirs(self, pair: int) -> dict[str, float]:
        answer = _in_engine(self.engine, _feed, self.episodes, IN_FLIGHT)
        return {
            "tokens_per_second": answer["tokens"] / answer["seconds"],
            "tokens": answer["tokens"],
            "seconds": answer["seconds"],
            "requests": answer["requests"],
            "cached": answer["cached_tokens"] / answer["prompt_tokens"],
        }


def requests_of(turns: TableRef) -> list[Episode]:
    """What the engine was asked, by episode; tool turns stay, for their place in the order."""
    episodes: dict[str, Episode] = {}
    for row in turns.read(REQUEST_COLUMNS).to_pylist():
        row["sampling"] = json.loads(row["sampling"]) if row["sampling"] else None
        episodes.setdefault(row["episode_id"], []).append(row)
    return [sorted(rows, key=lambda row: row["turn_index"]) for _, rows in sorted(episodes.items())]


def _in_engine(engine: Any, work: Callable[..., Any], *arguments: Any) -> Any:
    """Run the coroutine function `work(server, *arguments)` on the event loop of the engine's actor."""
    import ray

    return ray.get(engine.__ray_call__.remote(_on_its_loop, work, arguments))


def _on_its_loop(actor: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    # Ray calls this outside the loop, which is known from the task that started the engine.
    loop = actor._starting.get_loop()
    return asyncio.run_coroutine_threadsafe(work(actor._server, *arguments), loop).result()


async def _forget_prefixes(server: Any) -> None:
    await server.engine.reset_prefix_cache()


async def _feed(server: Any, episodes: list[Episode], in_flight: int) -> dict[str, float]:
    """Feed the requests of `episodes` to vLLM in dependency order, `in_flight` episodes at a time."""
    from vllm.inputs.engine import tokens_input

    slots = asyncio.Semaphore(in_flight)

    counts = dict.fromkeys(("requests", "prompt_tokens", "cached_tokens", "tokens"), 0)

    async def ask(name: str, turn: dict[str, Any]) -> None:
        prompt = tokens_input(turn["prompt_token_ids"])
        async for output in server.engine.generate(prompt, _parameters(turn), name):
            final = output
        counts["requests"] += 1
        counts["prompt_tokens"] += len(turn["prompt_token_ids"])
        counts["cached_tokens"] += final.num_cached_tokens or 0
        counts["tokens"] += len(final.outputs[0].token_ids)

    async def play(number: int, turns: Episode) -> None:
        async with slots:
            over: dict[int, asyncio.Task[None]] = {}

            async def one(turn: dict[str, Any]) -> None:
                await asyncio.gather(*(over[parent] for parent in turn["parents"]))
                if turn["event"] == "llm":
                    await ask(f"peer-{number}-{turn['turn_index']}", turn)

            for turn in turns:
                over[turn["turn_index"]] = asyncio.create_task(one(turn))
            await asyncio.gather(*over.values())

    await _forget_prefixes(server)
    started = time.monotonic()
    await asyncio.gather(*(play(i, turns) for i, turns in enumerate(episodes)))
    seconds = time.monotonic() - started
    expected = sum(len(turn["response_token_ids"] or ()) for turns in episodes for turn in turns)
    assert counts["tokens"] == expected, f"the peer decoded {counts['tokens']} tokens instead of {expected}"
    return {**counts, "seconds": seconds}


def _parameters(turn: dict[str, Any]) -> Any:
    """The request's own sampling, but for its length: exactly as many tokens as were sampled then."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = turn["sampling"]
    return SamplingParams(
        max_tokens=len(turn["response_token_ids"]),
        ignore_eos=True,
        temperature=sampling["temperature"],
        top_p=sampling["top_p"],
        top_k=sampling["top_k"],
        seed=sampling["seed"],
        detokenize=False,
        logprobs=0,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
