"""Calls over replicas: groups stay together, loads even out, deaths lose no call. No processes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.engines.base import EngineGone
from stages.engines.routing import BALANCE, OVERLOAD, REMEMBERED, Router, ask_one
from workflows.errors import InfraError

SEEDS = st.integers(0, 2**32)


def home(group: str, count: int) -> int:
    return Router(range(1, count + 1), 4).take(group, 1) or 0


def test_every_process_finds_the_same_home_and_a_death_moves_only_what_was_there() -> None:
    groups = [f"task-{n}" for n in range(300)]
    homes = {group: home(group, 3) for group in groups}
    counts = Counter(homes.values())
    assert set(counts) == {1, 2, 3}
    assert max(counts.values()) < 1.4 * 100
    router = Router((1, 2, 3), 4)
    router.down(2)
    for group in groups:
        place = router.take(group, 1)
        router.done(group, place or 0, 1)
        assert place == homes[group] if homes[group] != 2 else place in (1, 3)


def test_a_new_group_passes_a_replica_that_is_busier_than_the_others() -> None:
    one = next(name for name in map(str, range(99)) if home(name, 2) == 1)
    other = next(name for name in map(str, range(99)) if home(name, 2) == 1 and name != one)
    router = Router((1, 2), 64)
    assert [router.take(one, 100) for _ in range(4)] == [1] * 4  # a group is not split over replicas
    assert router.take(other, 100) == 2


def test_a_group_moves_only_from_a_full_and_overloaded_replica_and_as_a_whole() -> None:
    mine, others = (n for n in ("a", "b", "c", "d", "e") if home(n, 2) == 1), ["x", "y", "z"]
    group = next(iter(mine))
    router = Router((1, 2), 2)
    assert router.take(group, 10) == 1
    for name in others:  # pressed onto replica 1
        router.down(2)
        router.take(name, 1000)
    router.up(2)
    assert router.loads[1].calls == 4
    assert router.take(group, 10) == 1  # a call of it is in flight there: it stays
    router.done(group, 1, 10)
    router.done(group, 1, 10)
    assert router.take(group, 10) == 2
    router.done(group, 2, 10)
    assert router.take(group, 10) == 2  # and it does not go back and forth


def test_a_replica_that_returns_gets_new_groups_again() -> None:
    router = Router((1, 2), 4)
    router.down(2)
    assert {router.take(str(n), 1) for n in range(20)} == {1}
    for n in range(20):
        router.done(str(n), 1, 1)
    router.up(2)
    assert router.take("0", 1) == 1  # its prefixes are there
    assert 2 in {router.take(f"new {n}", 1) for n in range(9)}


def test_groups_that_were_asked_for_long_ago_are_forgotten() -> None:
    router = Router((1, 2), 4)
    for n in range(REMEMBERED + 50):
        place = router.take(str(n), 1)
        router.done(str(n), place or 0, 1)
    assert len(router._groups) == REMEMBERED


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, count=st.integers(2, 5), slots=st.integers(1, 6))
def test_without_deaths_a_groups_calls_are_never_at_two_replicas_at_once(
    seed: int, count: int, slots: int
) -> None:
    draw, router = random.Random(seed), Router(range(1, count + 1), slots)
    flying: list[tuple[str, int, int]] = []
    places: dict[str, int] = {}
    for _ in range(200):
        if flying and draw.random() < 0.45:
            router.done(*flying.pop(draw.randrange(len(flying))))
            continue
        group, tokens = f"g{draw.randrange(12)}", draw.choice((10, 100, 1000))
        before = places.get(group)
        was = None if before is None else (router.loads[before].calls, router.loads[before].tokens)
        mean = sum(load.tokens for load in router.loads.values()) / count
        place = router.take(group, tokens)
        assert place is not None
        if before is None:
            assert router.loads[place].tokens - tokens <= BALANCE * mean
        else:
            assert {p for g, p, _ in flying if g == group} <= {place}
            if place != before:  # it was full, and busier than the stated factor
                assert was is not None
                assert was[0] >= slots
                assert was[1] > OVERLOAD * mean
        places[group] = place
        flying.append((group, place, tokens))
    for call in flying:
        router.done(*call)
    assert all((load.calls, load.tokens) == (0, 0) for load in router.loads.values())


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, count=st.integers(2, 4))
def test_every_call_is_answered_once_or_fails_with_a_reason(seed: int, count: int) -> None:
    asyncio.run(_storm(random.Random(seed), count))


async def _storm(draw: random.Random, count: int) -> None:
    """Calls while replicas die and come back at random."""
    router = Router(range(1, count + 1), 3)
    alive = dict.fromkeys(range(1, count + 1), 0)  # by number: which life it is in
    dying: dict[int, asyncio.Event] = {number: asyncio.Event() for number in alive}
    answered: Counter[int] = Counter()
    tried: dict[int, list[int]] = {}

    async def call(number: int) -> str:
        tried[number] = []

        async def ask(replica: int, again: bool) -> str:
            assert again == bool(tried[number])
            tried[number].append(replica)
            death = dying[replica]
            for _ in range(draw.randrange(4)):
                await asyncio.sleep(0)
                if death.is_set():
                    raise EngineGone(f"replica {replica} was killed")
            if draw.random() < 0.05:
                raise InfraError("decoding failed")
            answered[number] += 1
            return f"answer {number}"

        def gone(replica: int, why: str) -> None:
            assert why == f"replica {replica} was killed"
            if dying[replica].is_set():  # its successor is not there yet
                router.down(replica)

        return await ask_one(router, f"g{number % 7}", 10, ask, gone, "team")

    async def deaths() -> None:
        for _ in range(30):
            await asyncio.sleep(0)
            replica = draw.randrange(count) + 1
            if dying[replica].is_set():
                dying[replica] = asyncio.Event()
                router.up(replica)
            elif draw.random() < 0.5:
                dying[replica].set()

    trouble = asyncio.create_task(deaths())
    calls = [asyncio.create_task(call(number)) for number in range(60)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    await trouble
    for number, result in enumerate(results):
        if isinstance(result, str):
            assert result == f"answer {number}"
            assert answered[number] == 1
        else:  # an infrastructure failure with its reason, never silence
            assert isinstance(result, InfraError)
            assert not isinstance(result, EngineGone)
            assert str(result)
            assert answered[number] == 0
        assert len(set(tried[number])) == len(tried[number])  # at each replica once at most
    assert all((load.calls, load.tokens) == (0, 0) for load in router.loads.values())


def test_a_call_that_kills_whatever_computes_it_ends_with_the_last_words() -> None:
    router = Router((1, 2, 3), 3)

    async def ask(replica: int, again: bool) -> None:
        raise EngineGone(f"replica {replica} is gone: signal 11")

    async def call() -> None:
        await ask_one(router, "g", 10, ask, lambda number, why: None, "team")

    with pytest.raises(InfraError, match=r"'team': 3 of its replicas died under this call; .* signal 11"):
        asyncio.run(call())
    for number in (1, 2, 3):
        router.down(number)
    with pytest.raises(InfraError, match="'team' has no replica that serves"):
        asyncio.run(call())


def test_a_call_that_is_cancelled_gives_its_load_back() -> None:
    router = Router((1, 2), 3)

    async def ask(replica: int, again: bool) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        call = asyncio.create_task(ask_one(router, "g", 10, ask, lambda number, why: None, "team"))
        await asyncio.sleep(0)
        assert sum(load.calls for load in router.loads.values()) == 1
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    asyncio.run(main())
    assert all((load.calls, load.tokens) == (0, 0) for load in router.loads.values())


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, count=st.integers(2, 4))
def test_prefix_caches_of_replicas_miss_only_the_instructions_that_each_reads_once(
    seed: int, count: int
) -> None:
    one, several = (_misses(random.Random(seed), number) for number in (1, count))
    assert one <= several <= one + (count - 1) * INSTRUCTIONS


INSTRUCTIONS = 40  # tokens that all prompts begin with


def _misses(draw: random.Random, count: int) -> int:
    """Prompt tokens that no cache has in a rollout of 8 tasks, 4 plays each, of 3 turns that grow."""
    router = Router(range(1, count + 1), 64)
    seen: dict[int, set[tuple[str, ...]]] = {number: set() for number in router.loads}
    plays = [[f"task {n // 4}", n % 4, 0] for n in range(32)]
    flying: list[tuple[str, int, int]] = []
    waiting = list(plays)
    misses = 0
    while waiting or flying:
        if waiting and (not flying or draw.random() < 0.6):
            play = waiting.pop(draw.randrange(len(waiting)))
            task, sample, turn = str(play[0]), play[1], int(play[2])
            words = ["instructions"] * INSTRUCTIONS + [task] * 20 + [f"{task}/{sample}"] * (15 * turn)
            place = router.take(task, len(words) + 16)
            assert place is not None
            prefixes = {tuple(words[:length]) for length in range(1, len(words) + 1)}
            misses += len(prefixes - seen[place])
            seen[place] |= prefixes
            flying.append((task, place, len(words) + 16))
            play[2] = turn + 1
            if turn < 2:
                waiting.append(play)
        else:
            router.done(*flying.pop(draw.randrange(len(flying))))
    return misses
