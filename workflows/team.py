"""What a workflow's async function works with: its team.

    query = await team.call("writer", {"question": task["question"]})        # a turn of a role
    found = await team.tool("search", {"query": query})                      # a turn of a tool
    notes = await team.each(["who", "when"], read)                           # branches, at the same time
    team.note("context", {"found": found, "notes": notes})                   # a value of the function's own

**Names.** A turn is a step, a round and a branch. The step is named; the round counts the calls of that
step in that branch; the branch is that of the team that is called. So the function itself decides what a
turn is called, its seed and its place among the rows, and no delay of a reply changes them. For that,
one team is called from one asyncio task: calls may run at the same time (`asyncio.gather` of
`team.call`s), but coroutines that run at the same time need teams of their own, which `each` and
`branch` give. Other use is refused.

**Order.** The turns of one team stand in the order of its calls. A branch stands after what its team had
called when it was made; what follows `each` stands after all its branches.

**Parents** of a turn are the outputs that it was given: those among its inputs, and those in `reads`. An
output among the inputs stands for its `best` value; one that has none is refused, so that no role is
called with blanks. What the function made of a value is not known, so name in `reads` what you took apart.

**Failure.** What is not the policy's doing is raised as `TurnFailed`. It may be caught, to finish what can
be finished, but the episode is marked and not trained on. Where it ends the function, calls that are
under way are finished and kept, and no other is begun. Any other exception ends the episode as
`workflow_error`. A reply that breaks its format is an output, as everywhere: see `Output.best`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Self, TypeVar

from workflows.coroutines import awaited, stop
from workflows.errors import TurnFailed, TurnLimit, WorkflowError, did_you_mean
from workflows.ledger import Ledger
from workflows.roles import Role
from workflows.state import Output, Place, TurnKey
from workflows.trajectory import to_json
from workflows.vocabulary import Act

Item = TypeVar("Item")
Result = TypeVar("Result")


class Team:
    """The roles and tools of one play, in one branch of it."""

    role: str | None = None  # of the spawned play that this belongs to; None where nobody spawned it

    def __init__(self, ledger: Ledger, branch: str, after: frozenset[TurnKey]):
        self.path = branch  # "" for the trunk, "1" for a branch, "1.0" for a branch of that
        self._ledger = ledger
        self._last = after  # the turns that the next one comes after
        self._owner: asyncio.Task[Any] | None = None

    def call(
        self, step: str, inputs: Mapping[str, Any], *, reads: Iterable[Output] = ()
    ) -> asyncio.Task[Output]:
        """Ask the role of `step`. The call begins at once; await it for its output.

        Args:
            inputs: each variable of the role's prompt, by name. A role with a `follow_up` takes the
                variables of its prompt, of its follow-up, or of both: those of the one that is rendered.
            reads: outputs that the inputs were made from, beside those among the inputs.

        Raises:
            WorkflowError: at once: no such step, other variables, or an output without a value as an input.
            TurnLimit: at once: the episode has its number of turns.
            TurnFailed: when awaited.
        """
        role = self._actor(step, self._ledger.roles, "role")
        _check_inputs(step, self._ledger.roles[role], inputs)
        read = [*reads]
        values = {n: _values(v, read, f"input {n!r} of step {step!r}") for n, v in inputs.items()}
        return self._begun(step, read, partial(self._ledger.episode.call, role, values))

    def tool(self, step: str, request: Any, *, reads: Iterable[Output] = ()) -> asyncio.Task[Output]:
        """Ask the tool of `step` with a JSON value; like `call`. A refusal is an output that is not valid."""
        name = self._actor(step, self._ledger.tools, "tool")
        read = [*reads]
        request = _values(request, read, f"the request of step {step!r}")
        return self._begun(step, read, partial(self._ledger.episode.tool, name, request), is_tool=True)

    def note(self, step: str, value: Any, *, reads: Iterable[Output] = ()) -> Output:
        """Record a value (JSON) that the function computed by itself, as a turn of its own."""
        if (actor := self._known(step)) is not None:
            raise WorkflowError(
                f"step {step!r} belongs to {actor!r}; declare a step for notes, as in {{'notes': None}}"
            )
        read = [*reads]
        value = _values(value, read, f"the value of step {step!r}")
        columns = {"modelled_at": self._stamp(step)}
        return self._turn(step, read, lambda place: self._ledger.episode.control(value, place, columns))

    def act(
        self,
        act: Act,
        value: Any,
        *,
        by: Output | None = None,
        reads: Iterable[Output] = (),
        to: Iterable[str] = (),
        options: Mapping[str, float] = MappingProxyType({}),
        detail: Mapping[str, Any] = MappingProxyType({}),
    ) -> Output:
        """Record what a decision led to, as a row of its own: see `workflows.acts`.

        Args:
            value: what was handed over (JSON); outputs in it become parents.
            by: the reply that decided it; None where the workflow's code did.
            to: the plays that it is for.
            options: log-probability of each option of the choice, where it was measured.
            detail: what `act_detail` says of it (JSON).
        """
        read = [*reads] if by is None else [by, *reads]
        value = _values(value, read, f"what act {act} hands over")
        decided_by = None if by is None else by.key
        number = self._ledger.acts[self.path, decided_by]
        self._ledger.acts[self.path, decided_by] += 1
        characters = detail.get("characters")
        if decided_by is not None and characters and "tokens" not in detail:
            tokens = self._ledger.episode.span(decided_by, tuple(characters))
            detail = {**detail, **({"tokens": list(tokens)} if tokens is not None else {})}
        columns = {
            "act": act,
            "modelled_at": self._stamp(act.value),
            "role": self.role if by is None else self._ledger.steps.get(by.step),
            "recipients": list(to) or None,
            "act_detail": to_json({**detail, "number": number}),
            "option_logprobs": [{"name": name, "value": chance} for name, chance in options.items()] or None,
        }
        control = self._ledger.episode.control
        return self._turn(act.value, read, lambda place: control(value, place, columns), decided_by)

    def branch(self, name: str | int) -> Self:
        """A team for a coroutine that runs at the same time as others.

        A second branch of one name takes the place of the first, which may then be called no more.

        Raises:
            WorkflowError: the name is neither a number nor an identifier.
        """
        self._check_caller(f"branch {name!r}")
        part = str(name)
        if not (part.isdecimal() or part.isidentifier()):
            raise WorkflowError(f"a branch is named by a number or an identifier, got {name!r}")
        path = f"{self.path}.{part}" if self.path else part
        before = self._ledger.teams.get(path)
        after = self._last | (before._last if before is not None else frozenset())
        team = self._ledger.teams[path] = self._child(path, after)
        return team

    def _names(self, number: int) -> Iterable[int]:
        """Names for so many branches."""
        return range(number)

    def _child(self, path: str, after: frozenset[TurnKey]) -> Self:
        return type(self)(self._ledger, path, after)

    async def each(
        self, items: Iterable[Item], work: Callable[[Self, Item], Awaitable[Result]]
    ) -> list[Result]:
        """`work(branch, item)` for all items at the same time, in branches 0, 1, …; their results, in order.

        All branches are finished before a failure of one is raised: nothing that was finished is lost.

        Raises:
            Exception: the first of the branches' exceptions, in the order of branches; a mistake in the
                function's code goes before a turn that failed.
        """
        items = list(items)
        teams = [self.branch(name) for name in self._names(len(items))]
        tasks = [asyncio.create_task(awaited(work, t, item)) for t, item in zip(teams, items, strict=True)]
        try:
            if tasks:
                await asyncio.wait(tasks)
        except asyncio.CancelledError:
            await stop(tasks, self._ledger.grace_seconds)
            raise
        self._last = self._last.union(*(team._last for team in teams))
        failures = [e for task in tasks if not task.cancelled() and (e := task.exception()) is not None]
        for failure in sorted(failures, key=on_record):  # stable: the order of branches
            raise failure
        return [task.result() for task in tasks]  # raises CancelledError where an engine cancelled a call

    def seed(self, *parts: object) -> int:
        """A seed for chance of the function's own, for example `random.Random(team.seed("order"))`."""
        return self._ledger.episode.seed("script", self.path, *parts)

    def _begun(
        self,
        step: str,
        read: Iterable[Output],
        begin: Callable[[Place], Coroutine[Any, Any, Output]],
        is_tool: bool = False,
    ) -> asyncio.Task[Output]:
        """The call of a role or tool, under way."""
        return self._ledger.begin(self._turn(step, read, begin))

    def _stamp(self, step: str) -> float | None:
        """The modelled time of something that the function does now, where time is modelled."""
        return None

    def _next(self, step: str) -> TurnKey:
        """What the next turn of a step is called."""
        return TurnKey(step, self._ledger.rounds.get((step, self.path), 0), self.path)

    def _place(self, key: TurnKey, parents: set[TurnKey], decided_by: TurnKey | None) -> Place:
        return Place(key, parents, self._last, decided_by=decided_by)

    def _turn(
        self,
        step: str,
        read: Iterable[Output],
        begin: Callable[[Place], Result],
        decided_by: TurnKey | None = None,
    ) -> Result:
        """What `begin` gives for the place of the next turn: its name, parents and predecessors."""
        ledger = self._ledger
        self._check_caller(f"step {step!r}")
        if ledger.over:
            raise TurnFailed(f"step {step!r} is called after the workflow's function is over")
        ledger.full |= ledger.episode.full  # `begin` then raises TurnLimit
        key = self._next(step)
        begun = begin(self._place(key, {output.key for output in read}, decided_by))
        ledger.rounds[step, self.path] = key.round + 1
        self._last = frozenset({key})
        return begun

    def _check_caller(self, what: str) -> None:
        """One task for each team, or names and order would depend on which reply came first."""
        task = asyncio.current_task()
        if self._owner is None and task is not None:
            self._owner = task
            self._ledger.owners.add(task)
        name = f"branch {self.path!r}" if self.path else "the team"
        if self._owner is not task:
            raise WorkflowError(
                f"{what} is called on {name} from a second asyncio task; coroutines that run at the same "
                "time need a team each: use team.each(items, work), or pass team.branch(i)"
            )
        if self._ledger.teams.get(self.path) is not self:
            raise WorkflowError(f"{what} is called on {name}, which was handed out again since")

    def _known(self, step: str) -> str | None:
        steps = self._ledger.steps
        if step not in steps:
            raise WorkflowError(
                f"there is no step {step!r}{did_you_mean(step, steps)}; declared: {', '.join(steps)}"
            )
        return steps[step]

    def _actor(self, step: str, actors: Mapping[str, Any], what: str) -> str:
        actor = self._known(step)
        if actor is None or actor not in actors:
            raise WorkflowError(f"step {step!r} is not a {what}'s: {actor or 'a note'!r} acts in it")
        return actor


def _check_inputs(step: str, role: Role, inputs: Mapping[str, Any]) -> None:
    """Refuse other inputs than the variables of the role's prompt, of its follow-up, or of both.

    Raises:
        WorkflowError: naming the step, what it is called with, and what the prompt uses.
    """
    templates = [role.template.variables]
    if role.follow_up is not None:
        templates += [role.follow_up_template.variables, role.variables]
    if set(inputs) not in [set(variables) for variables in templates]:
        uses = " or ".join(", ".join(sorted(names)) or "nothing" for names in templates[:2])
        raise WorkflowError(
            f"step {step!r} is called with {', '.join(sorted(inputs)) or 'nothing'}; the prompt of role "
            f"{role.name!r} uses {uses}"
        )


def on_record(error: BaseException) -> bool:
    """Whether an exception is already recorded on the episode: a failed turn, or the limit of turns."""
    return isinstance(error, TurnFailed | TurnLimit)


def _values(value: Any, read: list[Output], what: str) -> Any:
    """The value with outputs replaced by what they hold; they are added to `read`.

    Raises:
        WorkflowError: an output without a value, as a refused call has it.
    """
    if isinstance(value, Output):
        if value.best is None and not value.valid:
            raise WorkflowError(
                f"{what} is the output of step {value.step!r}, which has no value; ask its `valid` first, or "
                "pass its text and name it in reads"
            )
        read.append(value)
        return value.best
    if isinstance(value, Mapping):
        return {key: _values(inner, read, what) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_values(inner, read, what) for inner in value]
    return value
