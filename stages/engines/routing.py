"""Which replica of an engine a call goes to, and where it is asked again when that one dies. No processes.

A group of episodes keeps to one replica, whose prefix cache has its prompts and conversations:

- Each group has an order of all replicas, by a hash of the group's name and the replica's number (rendezvous
  hashing), so every process that routes finds the same home for a group, and the death of one replica moves
  only the groups that were there.
- A new group goes to the first replica of its order that holds at most `BALANCE` times the mean of tokens in
  flight (consistent hashing with bounded loads, arXiv:1608.01350).
- A group that has a place stays there. It moves when the replica is dead, or overloaded while no call of the
  group is in flight: every slot taken, and more than `OVERLOAD` times the mean of tokens in flight.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from stages.engines.base import EngineGone
from workflows.errors import InfraError

BALANCE: Final = 1.25
OVERLOAD: Final = 1.5
REMEMBERED: Final = 4096  # groups whose place is kept: far more than are played at the same time

T = TypeVar("T")


@dataclass(slots=True)
class Load:
    """What is in flight at one replica. Tokens are those of prompts and the most that replies may have."""

    calls: int = 0
    tokens: int = 0


@dataclass(slots=True)
class _Group:
    """Where a group is played now, and how many of its calls are in flight."""

    place: int
    calls: int = 0


class Router:
    """Chooses a replica for each call of one engine, by what is in flight from this process.

    Args:
        numbers: of the replicas; all serve at first.
        slots: calls that a replica decodes together.
    """

    def __init__(self, numbers: Iterable[int], slots: int) -> None:
        self.loads = {number: Load() for number in numbers}
        self.slots = slots
        self._serving = frozenset(self.loads)  # never changed in place: another thread may read it
        self._groups: OrderedDict[str, _Group] = OrderedDict()

    @property
    def serving(self) -> frozenset[int]:
        """The numbers of the replicas that take calls."""
        return self._serving

    def take(self, group: str, tokens: int, without: Collection[int] = ()) -> int | None:
        """The replica for a call of a group, which is in flight there until `done`.

        Args:
            group: name of the group that the call belongs to.
            tokens: of the prompt, and the most of the reply.
            without: replicas that this call must not go to.

        Returns:
            Its number; None where no replica may take the call.
        """
        open_ones = sorted(self._serving.difference(without))
        if not open_ones:
            return None
        known = self._groups.get(group)
        if known is None:
            known = self._groups[group] = _Group(self._first(group, open_ones))
        elif known.place not in self._serving or (not known.calls and self._is_overloaded(known.place)):
            known.place = self._first(group, open_ones)
        place = known.place if known.place not in without else self._first(group, open_ones)
        known.calls += 1
        self.loads[place].calls += 1
        self.loads[place].tokens += tokens
        self._groups.move_to_end(group)
        self._forget()
        return place

    def done(self, group: str, number: int, tokens: int) -> None:
        """End a call that `take` began, however it ended."""
        self.loads[number].calls -= 1
        self.loads[number].tokens -= tokens
        self._groups[group].calls -= 1

    def down(self, number: int) -> None:
        """Take a replica out: no call goes there from now on."""
        self._serving -= {number}

    def up(self, number: int) -> None:
        """Take a replica back in. Groups that have found another place stay there."""
        self._serving |= {number}

    def _first(self, group: str, numbers: Collection[int]) -> int:
        """The first of these replicas in the order of a group that is not busier than the others."""
        mean = self._mean(numbers)
        order = sorted(numbers, key=lambda number: _weight(group, number))
        return next(number for number in order if self.loads[number].tokens <= BALANCE * mean)

    def _is_overloaded(self, number: int) -> bool:
        load = self.loads[number]
        return load.calls >= self.slots and load.tokens > OVERLOAD * self._mean(self._serving)

    def _mean(self, numbers: Collection[int]) -> float:
        return sum(self.loads[number].tokens for number in numbers) / len(numbers)

    def _forget(self) -> None:
        """Forget the groups that were asked for longest ago; one with a call in flight stays."""
        while len(self._groups) > REMEMBERED:
            group, known = next(iter(self._groups.items()))
            if known.calls:
                return
            del self._groups[group]


def _weight(group: str, number: int) -> bytes:
    return hashlib.blake2b(f"{number}/{group}".encode("utf-8", "replace"), digest_size=8).digest()


async def ask_one(
    router: Router,
    group: str,
    tokens: int,
    ask: Callable[[int, bool], Awaitable[T]],
    gone: Callable[[int, str], None],
    engine: str,
) -> T:
    """The answer of one replica: where the one that was asked dies, another is asked the same.

    A call goes to each replica once at most, so that one that kills whatever computes it ends.

    Args:
        router: that chooses.
        group: as for `Router.take`, like `tokens`.
        ask: asks the replica of a number; its second argument says whether another was asked before.
        gone: called with the number of a replica that died under the call, and its last words.
        engine: name for the message.

    Raises:
        InfraError: no replica is left to ask; or as `ask` raises, but for `EngineGone`.
    """
    dead: dict[int, str] = {}
    while (number := router.take(group, tokens, dead)) is not None:
        try:
            return await ask(number, bool(dead))
        except EngineGone as error:
            dead[number] = str(error)
            gone(number, str(error))
        finally:
            router.done(group, number, tokens)
    if not dead:
        raise InfraError(f"the engine of {engine!r} has no replica that serves")
    last = list(dead.values())[-1]
    raise InfraError(f"the engine of {engine!r}: {len(dead)} of its replicas died under this call; {last}")
