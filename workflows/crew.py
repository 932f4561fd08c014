"""A team that spawns: plays of roles that begin while another play goes on.

    async def lead(team: Crew, task: Mapping[str, Any]) -> None:
        plan = await team.call("lead", {"question": task["question"]})
        for brief in plan.best[: team.room]:
            team.spawn("helper", brief, help_with, by=plan, budget=Budget(turns=3))
        answers = await team.join()                                 # or want=1: the first that ends
        await team.call("answer", {"question": task["question"], "notes": [a.output for a in answers]})

    async def help_with(team: Crew, brief: Output) -> Output:
        return await team.call("helper", {"brief": brief})          # what it returns is the result

    ScriptWorkflow("orchestra", roles, lead, spawning=Spawning(max_depth=2, max_width=4))

A spawned play has a team of its own in a branch of its own, and rows like any other. What it returns is the
value of its result; an output that can't be read makes the result `malformed`. It may spawn in turn.

**Limits.** `room` says how many plays may still be spawned here; a spawn beyond it is a mistake of the
function, which decides what a reply that asks for more is worth.

**Order.** `workflows.pace` says what is first and when a message arrives; `workflows.timeline` keeps to it. A
play makes one call at a time: what runs at the same time is spawned, or goes through `each`.

**Ends.** What a play spawned and did not join ends with it, as if it were cancelled. A turn that waits for
its reply when its play is cancelled has status `called_off` and no reply; earlier turns stay and are trained
on.

**Failure.** A failure that is not the policy's doing ends the play that has it, and is raised where that play
is joined, after all that is waited for has ended. The episode is then not trained on, as everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from types import MappingProxyType
from typing import Any, Self, TypeVar

from workflows.acts import JOIN, RECEIVE, TRUNK, instance_of
from workflows.coroutines import awaited, stop
from workflows.errors import WorkflowError, describe, did_you_mean
from workflows.ledger import Ledger
from workflows.pace import Budget
from workflows.state import Output, TurnKey
from workflows.team import Result, on_record
from workflows.timed_team import OutOfBudget, Spent, TimedTeam
from workflows.timeline import Lane
from workflows.vocabulary import Act, Ending

Item = TypeVar("Item")
Work = Callable[["Crew", Output], Awaitable[Any]]
"""What a spawned play does: `await work(team, brief)` gives its result, JSON or an output."""


@dataclass(frozen=True, slots=True)
class Came:
    """What came of a spawned play. `output` can be an input of a call; it is not valid without a result."""

    instance: str
    ending: Ending
    output: Output
    reason: str = ""


@dataclass(eq=False, slots=True)
class Member:
    """A spawned play, in the hands of the play that spawned it."""

    instance: str
    team: Crew
    spawner: Crew
    task: asyncio.Task[None] | None = None
    came: Came | None = None
    error: Exception | None = None  # why it failed, and nobody was told yet


class Crew(TimedTeam):
    """A team of a workflow that declares `spawning`."""

    def __init__(self, ledger: Ledger, branch: str, after: frozenset[TurnKey]):
        super().__init__(ledger, branch, after)
        self.depth = 0
        self._members: list[Member] = []  # neither joined nor cancelled

    # --- plays ------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many plays may be spawned here now."""
        if self.depth >= self._spawning.max_depth:
            return 0
        return self._spawning.max_width - len(self._members)

    def spawn(
        self,
        role: str,
        brief: Any,
        work: Work,
        *,
        by: Output | None = None,
        reads: Iterable[Output] = (),
        budget: Budget | None = None,
        detail: Mapping[str, Any] = MappingProxyType({}),
    ) -> Member:
        """Begin a play of `role`, at once: `await work(team, brief)` in a branch of its own.

        Args:
            brief: what it is for (JSON); the play gets it as an output, to pass on to what it calls.
            by: the reply that decided it; None where the function did.

        Raises:
            WorkflowError: no such role, or no room.
            TurnLimit: the episode has its number of turns.
        """
        self._check_idle(f"a play of {role!r} is spawned")
        if role not in self._ledger.roles:
            known = self._ledger.roles
            raise WorkflowError(f"there is no role {role!r} to spawn{did_you_mean(role, known)}")
        if self.room < 1:
            raise WorkflowError(
                f"a play of {role!r} is spawned by {self.instance or TRUNK!r}, which has no room: depth "
                f"{self.depth} of at most {self._spawning.max_depth}, {len(self._members)} under way of "
                f"at most {self._spawning.max_width}. Ask team.room first"
            )
        budget = budget or Budget()
        number = next(n for n in count() if self._path(n) not in self._ledger.teams)
        instance = instance_of(role, self._path(number))
        told = {"instance": instance, "branch": self._path(number), "depth": self.depth + 1, "role": role}
        told |= {"budget": budget.as_dict()} | dict(detail)
        output = self.act(Act.SPAWN, brief, by=by, reads=reads, to=[instance], detail=told)
        team = self.branch(number)
        team.role, team.instance, team.depth = role, instance, self.depth + 1
        team._lane = self._timeline.begin(self._lane, (0, number, ""))
        team._budget, team._begin, team._spent = budget, team._lane.time, Spent()
        member = Member(instance, team, self)
        member.task = asyncio.create_task(team._play(member, work, output))
        team._lane.on_cut = lambda lane: self._cut(team, lane, member.task)
        self._members.append(member)
        self._ledger.members.append(member)
        return member

    async def join(self, members: Sequence[Member] | None = None, *, want: int | None = None) -> list[Came]:
        """Wait for plays that were spawned here: for all of them, or for the first `want` that end.

        Args:
            members: by default all that are under way.

        Returns:
            What came of them: of all, in their order; of the first, in the order in which they ended. The
            others go on and may be joined later.

        Raises:
            WorkflowError: a play that was spawned elsewhere, or joined already.
            TurnFailed: one of those that ended failed; any other exception of its code is raised as it is.
        """
        self._check_idle("plays are joined")
        waited = list(self._members if members is None else members)
        for member in waited:
            if member not in self._members:
                raise WorkflowError(f"{member.instance} was joined or cancelled before, or spawned elsewhere")
        want = len(waited) if want is None else min(want, len(waited))
        if want < 0:
            raise WorkflowError(f"want is how many plays to wait for, got {want}")
        lanes = {member.team._lane: member for member in waited}
        first = await self._timeline.join(self._lane, list(lanes), want, self._due(JOIN))
        ended = [lanes[lane] for lane in first]
        for member in ended:
            self._members.remove(member)
            self._spent.turns += member.team._spent.turns
            self._spent.tokens += member.team._spent.tokens
        self._last = self._last.union(*(member.team._last for member in ended))
        came = [member.came for member in ended if member.came is not None]
        said = {"want": want, "of": [m.instance for m in waited], "first": [m.instance for m in ended]}
        said["order"] = self._spawning.pace.order
        self._control(JOIN, said, [each.output for each in came])
        errors = [member.error for member in ended if member.error is not None]
        for member in ended:
            member.error = None
        for error in sorted(errors, key=on_record):  # stable; a mistake of the code goes before a failed turn
            raise error
        return came if want < len(waited) else [m.came for m in waited if m.came is not None]

    async def cancel(
        self, members: Sequence[Member] | None = None, why: Any = None, *, by: Output | None = None
    ) -> list[str]:
        """End plays that were spawned here, and what those spawned: by default all that are under way.

        Returns:
            The ids of the plays that were not over by then; where there are none, nothing is recorded.
        """
        self._check_idle("plays are cancelled")
        chosen = [m for m in (self._members if members is None else members) if m in self._members]
        lanes = [member.team._lane for member in chosen]
        cut = await self._timeline.cancel(self._lane, lanes, self._due(Act.CANCEL.value)) if chosen else []
        gone = [member for member in self._ledger.members if member.team._lane in cut]
        gone.sort(key=lambda member: member.team._lane.rank)
        self._members = [member for member in self._members if member not in chosen]
        self._last = self._last.union(*(m.team._last for m in [*chosen, *gone]))
        if gone or (
            chosen and self._spawning.pace.order == "clock"
        ):  # a replay of the clock wants to know when
            self.act(Act.CANCEL, why, by=by, to=[member.instance for member in gone])
            await stop([m.task for m in gone if m.task is not None], self._ledger.grace_seconds)
        return [member.instance for member in gone]

    # --- messages ---------------------------------------------------------------------------------

    def message(
        self,
        to: Iterable[str],
        value: Any,
        *,
        by: Output | None = None,
        reads: Iterable[Output] = (),
        detail: Mapping[str, Any] = MappingProxyType({}),
    ) -> Output:
        """Say something to one or several plays, by their ids; `TRUNK` is the play that nobody spawned.

        A play reads it by `inbox` or `receive`, if it still does when the message arrives.

        Raises:
            WorkflowError: there is no such play.
        """
        return self._send(Act.MESSAGE, list(to), value, by, reads, detail)

    def delegate(
        self, member: Member, piece: Any, *, by: Output | None = None, reads: Iterable[Output] = ()
    ) -> Output:
        """Hand a further piece of work to a play that is under way; it reads it like a message.

        Raises:
            WorkflowError: it was joined or cancelled.
        """
        if member not in self._members:
            raise WorkflowError(f"{member.instance} is not under way here, so nothing can be delegated to it")
        return self._send(Act.DELEGATE, [member.instance], piece, by, reads, {})

    async def inbox(self) -> list[Output]:
        """The messages that have arrived since this was last asked, in the order of their arrival."""
        self._check_idle("messages are read")
        outputs = await self._timeline.read(self._lane, self._due(RECEIVE))
        if outputs or self._spawning.pace.order == "clock":  # a replay of the clock wants to know when
            self._control(RECEIVE, {"messages": len(outputs)}, outputs)
        return outputs

    async def receive(self) -> Output | None:
        """The next message, waited for; None where nobody is left who could send one."""
        self._check_idle("a message is waited for")
        output = await self._timeline.receive(self._lane, self._due(RECEIVE))
        read = [output] if output is not None else []
        self._control(RECEIVE, {"messages": len(read)}, read)
        return output

    # --- results ----------------------------------------------------------------------------------

    def aggregate(self, value: Any, of: Iterable[Came], *, by: Output | None = None, how: str = "") -> Output:
        """Record the one result that was made of several; `by` is the reply that made it, if one did."""
        made = list(of)
        detail = {"of": [each.instance for each in made], "how": how}
        return self.act(Act.AGGREGATE, value, by=by, reads=[each.output for each in made], detail=detail)

    def compact(self, role: str, summary: Output) -> Output | None:
        """Put a summary in the place of what `role` said here: its next turn begins a new lineage.

        That turn is called with the variables of the role's `prompt`; the summary is in them where the
        function puts it. None where the role has said nothing yet.
        """
        begun = self._ledger.episode.compact(role, self.path)
        if begun is None:
            return None
        detail = dict(zip(("conversation", "lineage", "lineage_parent"), begun, strict=True))
        return self.act(Act.COMPACT, summary, by=summary, detail=detail)

    async def each(
        self, items: Iterable[Item], work: Callable[[Self, Item], Awaitable[Result]]
    ) -> list[Result]:
        """As of a team that spawns nothing: see `Team.each`."""
        self._check_idle("branches begin")
        given = list(items)
        lanes = [self._timeline.begin(self._lane, (1, index, "")) for index in range(len(given))]

        async def alone(team: Self, numbered: tuple[int, Item]) -> Result:
            team._lane, team._call = lanes[numbered[0]], None
            team._lane.on_cut = lambda lane: self._cut(team, lane)
            try:
                return await work(team, numbered[1])
            finally:
                if not team._lane.over:
                    await team.finish()
                    self._timeline.end(team._lane)

        joined = asyncio.ensure_future(
            self._timeline.join(self._lane, lanes, len(lanes), 0.0, is_event=False)
        )
        try:
            return await super().each(list(enumerate(given)), alone)
        finally:
            for lane in lanes:
                if not lane.over:  # no task was made for it
                    self._timeline.end(lane)
            if self._lane.over:
                joined.cancel()
            else:
                await joined

    async def finish(self) -> None:
        """End what this play spawned and did not join: called when the play's function is over."""
        if self._members:
            await self.cancel(why="the play that spawned it is over")

    async def finish_trunk(self) -> None:
        """End the play that nobody spawned, with the time that it took."""
        await self._idle()
        await self.finish()
        self._ledger.episode.took(None if self._timeline.live else self._lane.time)

    # --- how it is done ---------------------------------------------------------------------------

    async def _play(self, member: Member, work: Work, brief: Output) -> None:
        value, ending, reason = None, Ending.FAILED, ""
        try:
            value = await awaited(work, self, brief)
            readable = not isinstance(value, Output) or value.valid
            ending = Ending.DONE if readable else Ending.MALFORMED
        except OutOfBudget as error:
            ending, reason = Ending.BUDGET, str(error)
        except asyncio.CancelledError:
            if self._lane.over or self._ledger.over:
                raise
            member.error = WorkflowError(f"the play {member.instance} was cancelled from within")
        except Exception as error:
            member.error, reason = error, describe(error)
        try:
            await self._idle()
            await self.finish()
            self._give_back(member, value, ending, reason)
        except Exception as error:
            member.error = member.error or error
        self._timeline.end(self._lane)

    def _give_back(self, member: Member, value: Any, ending: Ending, reason: str) -> None:
        made = value if isinstance(value, Output) else None
        detail = {"ending": ending, "turns": self._spent.turns, "tokens": self._spent.tokens}
        told = self.act(
            Act.RETURN,
            value if made is None else made.best,
            by=made,
            to=[member.spawner.instance or TRUNK],
            detail=detail | ({"reason": reason} if reason else {}),
        )
        valid = ending is Ending.DONE
        given = told.value if valid else None
        output = Output(given, "" if made is None else made.text, valid, told.key, told.value)
        member.came = Came(member.instance, ending, output, reason)

    def _cut(self, team: Crew, lane: Lane, task: asyncio.Task[None] | None = None) -> None:
        """A play, or a branch of one, is ended: its call says nothing, and its code goes no further."""
        if lane.call is not None:
            self._ledger.episode.call_off(lane.call, lane.time)
        for under_way in (team._call, task):
            if under_way is not None:
                under_way.cancel()

    def _send(
        self,
        act: Act,
        to: list[str],
        value: Any,
        by: Output | None,
        reads: Iterable[Output],
        detail: Mapping[str, Any],
    ) -> Output:
        self._check_idle("a message is sent")
        lanes = {member.instance: member.team._lane for member in self._ledger.members}
        lanes[TRUNK] = self._timeline.trunk
        for name in to:
            if name not in lanes:
                raise WorkflowError(f"there is no play {name!r} to write to{did_you_mean(name, lanes)}")
        output = self.act(act, value, by=by, reads=reads, to=to, detail=detail)
        self._timeline.send(self._lane, [lanes[name] for name in to], output)
        return output

    def _control(self, step: str, value: Any, read: list[Output]) -> Output:
        columns = {"modelled_at": self._lane.time, "role": self.role}
        return self._turn(step, read, lambda place: self._ledger.episode.control(value, place, columns))

    def _names(self, number: int) -> Iterable[int]:
        """Names for so many branches, beside those of spawned plays."""
        taken = self._ledger.teams
        own = (
            n for n in count() if getattr(taken.get(self._path(n), self), "instance", None) == self.instance
        )
        return list(islice(own, number))

    def _child(self, path: str, after: frozenset[TurnKey]) -> Self:
        before = self._ledger.teams.get(path)
        if before is not None and before.instance is not None and before.instance != self.instance:
            raise WorkflowError(f"branch {path!r} is that of {before.instance}; give it another name")
        child = super()._child(path, after)
        child.role, child.instance, child.depth = self.role, self.instance, self.depth
        child._lane, child._budget, child._begin = self._lane, self._budget, self._begin
        child._spent = self._spent
        return child

    def _path(self, number: int) -> str:
        return f"{self.path}.{number}" if self.path else str(number)
