"""What earlier steps wrote, as the callables of a workflow see it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from workflows.errors import WorkflowError
from workflows.prompts import lookup


class TurnKey(NamedTuple):
    """Which run of which step: unique within an episode, and known before any timing is."""

    step: str
    round: int
    branch: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a turn stands in its episode.

    `parents` are the turns whose output it reads, `after` further turns that were over before it was asked.
    `instance` is the spawned play that it belongs to, `decided_by` the turn that decided the act that it is.
    A reply has at most `max_tokens` where its play's budget says so; `begun` is called when its model or tool
    is about to be asked.
    """

    key: TurnKey
    parents: Collection[TurnKey] = ()
    after: Collection[TurnKey] = ()
    instance: str | None = None
    decided_by: TurnKey | None = None
    max_tokens: int | None = None
    begun: Callable[[], None] | None = None

    @classmethod
    def at(cls, step: str, round: int = 0, branch: str = "", *, parents: Collection[TurnKey] = ()) -> Place:
        """The place of a step in a round and a branch."""
        return cls(TurnKey(step, round, branch), parents)


@dataclass(frozen=True, slots=True)
class Output:
    """What one run of a step wrote.

    `value` is the parsed reply (None where `valid` is false), the tool's result or what a control step
    computed. `text` is the raw reply, empty for the others.
    `valid` is false for a reply that breaks its format and for a call that the tool refused; `lenient`
    is then what the parser's fallback reads of the reply, of the type of a value, or None.
    """

    value: Any
    text: str
    valid: bool
    key: TurnKey
    lenient: Any = None

    @property
    def best(self) -> Any:
        """The value of a valid output, else the lenient reading: None where there is neither."""
        return self.value if self.valid else self.lenient

    @property
    def step(self) -> str:
        return self.key.step

    @property
    def round(self) -> int:
        return self.key.round

    @property
    def branch(self) -> str:
        return self.key.branch


class State:
    """A read-only view for one callable: conditions, inputs, `for_each`, tool requests, control steps.

    It shows only steps that are certain to be over (those before this one, and earlier rounds of its
    loop), so that nothing depends on which call came back first. Every output that is handed out is
    noted in `reads`: the turn that is built from it names it as a parent.
    """

    def __init__(
        self,
        task: Mapping[str, Any],
        round: int,
        branch: str,
        look: Callable[[str], tuple[bool, tuple[Output, ...]]],
        item: tuple[Any, frozenset[TurnKey]] | None = None,
    ):
        self.task: Mapping[str, Any] = MappingProxyType(dict(task))
        self.round = round
        self.branch = branch
        self.reads: set[TurnKey] = set()
        self._look = look
        self._item = item

    @property
    def item(self) -> Any:
        """The item of this branch.

        Raises:
            WorkflowError: not inside a branch.
        """
        if self._item is None:
            raise WorkflowError("item is known only inside the branches of a for_each step")
        value, reads = self._item
        self.reads |= reads
        return value

    def __getitem__(self, step: str) -> Output:
        """The latest output of `step`, of the same branch where the step has branches.

        Raises:
            WorkflowError: the step is unknown, not before this one, has not run, or ran in branches.
        """
        branched, outputs = self._look(step)
        if branched:
            raise WorkflowError(f"step {step!r} runs once in each branch; use state.all({step!r})")
        if not outputs:
            raise WorkflowError(f"step {step!r} has not run; ask state.ran({step!r}) first")
        return self._read(outputs)[0]

    def all(self, step: str) -> list[Output]:
        """The latest output of each branch of `step`, in the order of branches; empty if none ran."""
        return list(self._read(self._look(step)[1]))

    def ran(self, step: str) -> bool:
        """Whether `step` has run, in any branch that is seen from here."""
        return bool(self._look(step)[1])

    def follow(self, path: str) -> Any:
        """A dotted path: `task.<field>…`, `item…`, or `<step>…` into that step's value.

        Raises:
            WorkflowError: it leads nowhere, or the step's output is invalid and so has no value.
        """
        head, *rest = path.split(".")
        if head == "task":
            return lookup({"task": self.task}, [head, *rest])
        value = self.item if head == "item" else self._value_of(head)
        return lookup({head: value}, [head, *rest])

    def _value_of(self, step: str) -> Any:
        output = self[step]
        if not output.valid and output.value is None:
            raise WorkflowError(
                f"step {step!r} has no value: its reply breaks its format, or its tool refused. A path would "
                f"put a blank into the prompt; use a function that says what to do then, for example "
                f"lambda state: state[{step!r}].best"
            )
        return output.value

    def _read(self, outputs: tuple[Output, ...]) -> tuple[Output, ...]:
        self.reads.update(output.key for output in outputs)
        return outputs
