"""When things happen among plays that run side by side, whatever the order in which replies come back.

Each play has a lane with a time of its own. It moves on when a call is over, when plays that it waits for
have ended, or when a message arrives, and only if nothing that could still happen elsewhere comes before
that. What could still happen is bounded from below: a call takes at least so long, and who waits for others
can't be earlier than they are. At equal times those that were spawned come before their spawner.

This is the conservative simulation of discrete events (Chandy and Misra, 1979) with calls of models in the
place of simulated work. By the clock (`live`) nothing waits, and each event takes the next number.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from workflows.pace import Pace
from workflows.state import Output, TurnKey


class Doing(Enum):
    """What a lane is at."""

    RUNNING = auto()  # the function's own code
    CALLING = auto()  # a model or tool was asked; it is over at `until` or later
    LANDING = auto()  # the reply has come and is over at `until`
    JOINING = auto()  # waits for `want` of the lanes `of`
    READING = auto()  # looks at what has arrived by now
    RECEIVING = auto()  # waits for a message
    CANCELLING = auto()  # ends the lanes `of`
    OVER = auto()


@dataclass(frozen=True, slots=True)
class Mail:
    """A message under way."""

    arrives: float
    sender: tuple[Any, ...]
    number: int
    output: Output


@dataclass(eq=False, slots=True)
class Lane:
    """One play's time. `rank` orders lanes at equal times: a lane's children come before it."""

    rank: tuple[Any, ...]
    parent: Lane | None
    time: float
    doing: Doing = Doing.RUNNING
    until: float = 0.0
    of: tuple[Lane, ...] = ()
    want: int = 0
    floor: float = 0.0  # a replay of the clock: what it waits for came no earlier
    is_event: bool = True  # whether what it waits for has a row, which keeps its number by the clock
    waiter: asyncio.Future[Any] | None = None
    call: TurnKey | None = None  # under way
    ended: float = math.inf
    children: list[Lane] = field(default_factory=list)
    mail: list[Mail] = field(default_factory=list)
    on_cut: Callable[[Lane], None] | None = None

    @property
    def over(self) -> bool:
        return self.doing is Doing.OVER

    @property
    def ancestors(self) -> Iterator[Lane]:
        lane = self.parent
        while lane is not None:
            yield lane
            lane = lane.parent

    def subtree(self) -> Iterator[Lane]:
        """This lane and those below it, the deepest first."""
        for child in self.children:
            yield from child.subtree()
        yield self


class Timeline:
    """The lanes of one episode.

    Args:
        pace: how long calls take.
        live: events happen when they happen; else the order is that of the lanes' times.
    """

    def __init__(self, pace: Pace, live: bool):
        self.pace = pace
        self.live = live
        self.trunk = Lane((), None, 0.0)
        self._lanes = [self.trunk]
        self._ticks = 0
        self._mails = 0
        self._settling = False

    # --- what a play does at once -----------------------------------------------------------------

    def stamp(self, lane: Lane, floor: float, is_event: bool) -> float:
        """The time of something that a lane does now; by the clock, an event has a number of its own."""
        lane.time = self._tick() if self.live and is_event else max(lane.time, floor)
        return lane.time

    def begin(self, parent: Lane, part: tuple[Any, ...]) -> Lane:
        """A lane of a play that begins now."""
        lane = Lane((*parent.rank, part), parent, parent.time)
        parent.children.append(lane)
        self._lanes.append(lane)
        return lane

    def end(self, lane: Lane) -> None:
        """The play of a lane is over now."""
        lane.doing, lane.ended = Doing.OVER, lane.time
        self._settle()

    def asked(self, lane: Lane, until: float | None) -> None:
        """A call has begun; it is over at `until` where that is known before."""
        if lane.over:
            return
        lane.doing = Doing.CALLING
        lane.until = lane.time + self.pace.least if until is None else until
        self._settle()

    def send(self, lane: Lane, to: Iterable[Lane], output: Output) -> None:
        """A message is under way to these lanes."""
        self._mails += 1
        for receiver in to:
            receiver.mail.append(Mail(lane.time + self.pace.latency, lane.rank, self._mails, output))
            receiver.mail.sort(key=lambda mail: (mail.arrives, mail.sender, mail.number))
        self._settle()

    # --- what a play waits for --------------------------------------------------------------------

    async def land(self, lane: Lane, until: float) -> None:
        """The call of a lane is over at `until`, if nothing ends the play before."""
        await self._wait(lane, Doing.LANDING, until=max(until, lane.time))
        lane.call = None

    async def join(
        self, lane: Lane, of: Sequence[Lane], want: int, floor: float, *, is_event: bool = True
    ) -> list[Lane]:
        """The first `want` of the lanes `of` that are over, in the order in which they ended.

        Args:
            is_event: whether a row says so. Without one no number of the clock is taken, for a replay would
                not find it again: the lane is then as late as the last of those that it waited for.
        """
        waits = {"of": tuple(of), "want": want, "floor": floor, "is_event": is_event}
        first: list[Lane] = await self._wait(lane, Doing.JOINING, **waits)
        return first

    async def read(self, lane: Lane, floor: float) -> list[Output]:
        """The messages that have arrived by now."""
        lane.time = max(lane.time, floor)
        outputs: list[Output] = await self._wait(lane, Doing.READING)
        return outputs

    async def receive(self, lane: Lane, floor: float) -> Output | None:
        """The next message; None where nobody is left who could send one."""
        output: Output | None = await self._wait(lane, Doing.RECEIVING, floor=floor)
        return output

    async def cancel(self, lane: Lane, of: Sequence[Lane], floor: float) -> list[Lane]:
        """End the lanes `of` and all below them now; those that were not over yet."""
        lane.time = max(lane.time, floor)
        cut: list[Lane] = await self._wait(lane, Doing.CANCELLING, of=tuple(of))
        return cut

    async def _wait(self, lane: Lane, doing: Doing, **more: Any) -> Any:
        if lane.over:
            raise asyncio.CancelledError  # it was ended, and is about to hear of it
        lane.doing = doing
        for name, value in more.items():
            setattr(lane, name, value)
        lane.waiter = waiter = asyncio.get_running_loop().create_future()
        self._settle()
        return await waiter

    # --- what may happen next ---------------------------------------------------------------------

    def _settle(self) -> None:
        """Let everything happen that nothing can come before any more."""
        if self._settling:
            return
        self._settling = True
        try:
            while self._next() or self._nobody_writes():
                pass
        finally:
            self._settling = False

    def _next(self) -> bool:
        lows = {} if self.live else self._lows()
        ready = [lane for lane in self._lanes if lane.waiter is not None and self._may(lane, lows)]
        if ready:  # those that were spawned come before their spawner
            self._let(max(ready, key=lambda lane: len(lane.rank)))
        return bool(ready)

    def _nobody_writes(self) -> bool:
        """Where all wait for messages or for each other, the first receiver gets none."""
        if any(lane.doing in (Doing.RUNNING, Doing.CALLING) for lane in self._lanes):
            return False
        waiting = [lane for lane in self._lanes if lane.doing is Doing.RECEIVING]
        if not waiting:
            return False
        self._resume(min(waiting, key=lambda lane: (lane.time, lane.rank)), None)
        return True

    def _may(self, lane: Lane, lows: Mapping[Lane, float]) -> bool:
        """Whether what a lane waits for has come, and nothing else can come before it."""
        if lane.doing is Doing.CANCELLING:
            below = [inner for each in lane.of for inner in each.subtree() if not inner.over]
            if self.live:  # each of them waits for something, so that a replay finds the same turns begun
                return all(inner.doing is not Doing.RUNNING for inner in below)
            return all(lows[inner] > lane.time for inner in below)
        if lane.doing is Doing.READING:
            return self.live or self._no_mail_before(lane, lane.time, lows)
        if lane.doing is Doing.RECEIVING and not lane.mail:
            return False
        if lane.doing is Doing.JOINING:
            first = self._first(lane)
            if len(first) < lane.want:
                return False
            last = max((each.ended for each in first), default=-math.inf)
            if not self.live and any(lows[each] <= last for each in lane.of if not each.over):
                return False
        if self.live:
            return True
        then = self._then(lane)
        if lane.doing is Doing.RECEIVING and not self._no_mail_before(lane, then, lows):
            return False
        return all(lows[above] >= then for above in lane.ancestors)

    def _then(self, lane: Lane) -> float:
        """The time at which what a lane waits for happens."""
        if lane.doing is Doing.LANDING:
            return lane.until
        if lane.doing is Doing.RECEIVING:
            return max(lane.time, lane.mail[0].arrives, lane.floor)
        return max([lane.time, lane.floor, *(each.ended for each in self._first(lane))])

    def _let(self, lane: Lane) -> None:
        """Let what a lane waits for happen."""
        doing = lane.doing
        if doing in (Doing.LANDING, Doing.JOINING, Doing.RECEIVING):
            first = self._first(lane) if doing is Doing.JOINING else None
            lane.time = self._tick() if self.live and lane.is_event else self._then(lane)
            self._resume(lane, lane.mail.pop(0).output if doing is Doing.RECEIVING else first)
        elif doing is Doing.READING:
            lane.time = self._tick() if self.live else lane.time
            come = [mail for mail in lane.mail if self.live or mail.arrives <= lane.time]
            lane.mail = lane.mail[len(come) :]
            self._resume(lane, [mail.output for mail in come])
        else:
            lane.time = self._tick() if self.live else lane.time
            cut = [inner for each in lane.of for inner in each.subtree() if not inner.over]
            for inner in cut:
                self._cut(inner, lane.time)
            self._resume(lane, cut)

    def _cut(self, lane: Lane, at: float) -> None:
        lane.doing, lane.time, lane.ended, lane.waiter = Doing.OVER, at, at, None
        if lane.on_cut is not None:
            lane.on_cut(lane)

    def _resume(self, lane: Lane, result: Any) -> None:
        waiter, lane.waiter, lane.doing, lane.floor = lane.waiter, None, Doing.RUNNING, 0.0
        lane.is_event = True
        if waiter is not None and not waiter.done():
            waiter.set_result(result)

    def _first(self, lane: Lane) -> list[Lane]:
        over = sorted((each for each in lane.of if each.over), key=lambda each: (each.ended, each.rank))
        return over[: lane.want]

    def _no_mail_before(self, lane: Lane, then: float, lows: Mapping[Lane, float]) -> bool:
        others = (other for other in self._lanes if other is not lane and not other.over)
        return all(lows[other] + self.pace.latency > then for other in others)

    def _lows(self) -> dict[Lane, float]:
        """For each lane that is not over: no sooner does it do anything that others notice."""
        unwoken = self._bounds(math.inf)
        wake = min(unwoken.values(), default=math.inf) + self.pace.latency
        return self._bounds(wake)

    def _bounds(self, wake: float) -> dict[Lane, float]:
        """Lower bounds, where who waits for a message is woken at `wake` at the earliest."""
        lows: dict[Lane, float] = {}

        def low(lane: Lane) -> float:
            if lane not in lows:
                lows[lane] = bound(lane)
            return lows[lane]

        def bound(lane: Lane) -> float:
            if lane.doing in (Doing.CALLING, Doing.LANDING):
                return lane.until
            if lane.doing is Doing.RECEIVING:
                first = lane.mail[0].arrives if lane.mail else math.inf
                return max(lane.time, lane.floor, min(wake, first))
            if lane.doing is Doing.JOINING:
                ends = sorted(each.ended if each.over else low(each) for each in lane.of)
                return max([lane.time, lane.floor, *ends[lane.want - 1 : lane.want]])
            return lane.time

        for lane in self._lanes:
            if not lane.over:
                low(lane)
        return lows

    def _tick(self) -> float:
        self._ticks += 1
        return float(self._ticks)
