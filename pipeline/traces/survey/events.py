"""An episode's turns as events and edges of the survey's schema, without what they have no key for.

A reply is a `message` to whoever reads it (one event for each, with a common `msg_id`), an `aggregate` where
it reads several others, a `return` to the user where nobody reads it, and else an `orchestrator_decision`:
what only a tool or its own agent reads. A call of a tool is two events. A row with an act is what that says.
Each event comes no earlier than what it came of: the clock of a row is in the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pipeline.traces.episode import USER, WORKFLOW, Episode, Row, agents_of, sources_of
from pipeline.traces.survey import words
from workflows.acts import TRUNK
from workflows.vocabulary import NOT_THE_POLICYS_DOING, Act, Event

START: Final = "start"
_OF_ACT: Final[Mapping[str, str]] = {
    Act.SPAWN: "spawn",
    Act.DELEGATE: "message",
    Act.MESSAGE: "message",
    Act.AGGREGATE: "aggregate",
    Act.RETURN: "return",
    Act.STOP: "orchestrator_decision",
    Act.COMPACT: "orchestrator_decision",
    Act.CANCEL: "orchestrator_decision",  # its play is over when its last call has come back
}
_SUB_DECISIONS: Final = frozenset((Act.DELEGATE, Act.STOP, Act.COMPACT, Act.CANCEL))  # no types of their own
_EDGE_TO: Final = {"spawn": "spawn", "aggregate": "aggregate"}  # by the kind of the event that it leads to
_EDGE_FROM: Final = {"message": "message", "return": "return"}  # else by that of the event it comes from


@dataclass(slots=True)
class Drawn:
    """Events in order, edges, and which event is a turn's own: the one that has its row."""

    events: list[dict[str, Any]] = field(default_factory=list)
    edges: list[dict[str, str]] = field(default_factory=list)
    own: dict[int, dict[str, Any]] = field(default_factory=dict)  # by turn_index
    results: dict[int, dict[str, Any]] = field(default_factory=dict)  # of tools, by turn_index
    outputs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  # what readers of a turn read


def drawn(episode: Episode) -> Drawn:
    """The events and edges of an episode, the first of them its start."""
    return _Drawing(episode).drawn()


class _Drawing:
    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.agents = agents_of(episode.turns)
        self.children = episode.children_of()
        self.by_index = {turn["turn_index"]: turn for turn in episode.turns}
        self.done = Drawn()
        self.outputs = self.done.outputs
        trunk = (t for t in episode.turns if t.get("role") and not t.get("instance"))
        first = next(trunk, None)
        self.trunk = WORKFLOW if first is None else self.agents[first["turn_index"]]
        self.spawned: dict[str, dict[str, Any]] = {}  # by instance
        self.last: dict[str, dict[str, Any]] = {}  # the last event of an agent

    def drawn(self) -> Drawn:
        start = {"id": START, "t": 0.0, "type": "orchestrator_decision", "agent": WORKFLOW, "trusted": True}
        self.done.events.append(start)
        for turn in self.episode.turns:
            self._turn(turn)
        for instance, spawn in reversed(self.spawned.items()):  # who spawned goes after those
            self._despawn(instance, spawn)
        return self.done

    def _turn(self, turn: Row) -> None:
        index, agent = turn["turn_index"], self.agents[turn["turn_index"]]
        sources = [self._output(s, agent) for s in sources_of(turn) if s in self.outputs]
        spawn = self.spawned.get(agent)
        sources += [spawn] if spawn is not None and agent not in self.last else []
        sources = list({e["id"]: e for e in sources}.values()) or [self.done.events[0]]
        kind, recipients = self._kind(turn, agent)
        begun = turn.get("started_at") if kind == "tool_call" else turn.get("ended_at")
        t = max([float(begun or 0.0), *(e["t"] for e in sources), spawn["t"] if spawn is not None else 0.0])
        events = []
        for n, to in enumerate(recipients or [None]):
            event: dict[str, Any] = {"id": f"t{index}.{n}" if n else f"t{index}", "t": t, "type": kind}
            event["agent"] = agent
            if turn.get("role"):
                event["role"] = turn["role"]
            if to is not None:
                event |= {"from": agent, "to": to}
            if kind == "tool_call":
                event["tool"] = turn.get("tool") or "tool"
            event["trusted"] = True
            if n:
                event[words.EXTENSION] = {"msg_id": f"t{index}"}
            events.append(event)
            self.done.events.append(event)
            for source in sources:
                self._edge(source, event)
        self._extend(turn, events[0], len(events) > 1)
        self.done.own[index] = events[0]
        self.outputs[index] = events
        self._acted(agent, events[-1])
        if kind == "tool_call":
            self._result(turn, events[0])
        elif kind == "spawn":
            self.spawned |= dict(zip(recipients, events, strict=True))

    def _extend(self, turn: Row, event: dict[str, Any], several: bool) -> None:
        said: dict[str, Any] = {"msg_id": event["id"]} if several else {}
        if turn.get("act") in _SUB_DECISIONS:
            said["sub_decision"] = str(turn["act"])
        event[words.EXTENSION] = said

    def _result(self, turn: Row, call: dict[str, Any]) -> None:
        ended = float(turn.get("ended_at") or 0.0)
        result = {
            "id": f"{call['id']}.result",
            "t": max(call["t"], ended),
            "type": "tool_result",
            "agent": call["tool"],
            "tool": call["tool"],
            "trusted": False,
        }
        self.done.events.append(result)
        self.done.edges.append({"src": call["id"], "dst": result["id"], "type": "tool_dependency"})
        self.done.results[turn["turn_index"]] = result
        self.outputs[turn["turn_index"]] = [result]

    def _despawn(self, instance: str, spawn: dict[str, Any]) -> None:
        """The end of a spawned play: with the last thing that it did, or at once where it did nothing."""
        last = self.last.get(instance, spawn)
        event = {"id": f"despawn.{instance}", "t": last["t"], "type": "despawn", "agent": spawn["agent"]}
        event |= {"from": spawn["agent"], "to": instance, "trusted": True}
        self.done.events.append(event)
        self.done.edges.append({"src": last["id"], "dst": event["id"], "type": "causal"})

        self._acted(spawn["agent"], event)

    def _acted(self, agent: str, event: dict[str, Any]) -> None:
        if agent not in self.last or event["t"] >= self.last[agent]["t"]:
            self.last[agent] = event

    def _output(self, index: int, agent: str) -> dict[str, Any]:
        """The event of a turn that this agent reads."""
        events = self.outputs[index]
        return next((event for event in events if event.get("to") == agent), events[0])

    def _edge(self, source: Mapping[str, Any], target: Mapping[str, Any]) -> None:
        kind = _EDGE_TO.get(target["type"]) or _EDGE_FROM.get(source["type"])
        if kind is None:
            kind = "temporal" if source["id"] == START else "causal"
        self.done.edges.append({"src": source["id"], "dst": target["id"], "type": kind})

    def _kind(self, turn: Row, agent: str) -> tuple[str, list[str]]:
        """The type of a turn's event and to whom it goes."""
        act = turn.get("act")
        if act is not None and act in _OF_ACT:
            return self._of_act(turn, _OF_ACT[act], agent)
        if turn["event"] == Event.TOOL:
            return "tool_call", []
        if turn["event"] != Event.LLM or turn.get("status") in NOT_THE_POLICYS_DOING:
            return "orchestrator_decision", []
        children = self.children[turn["turn_index"]]
        if any(child.get("decided_by") == turn["turn_index"] for child in children):
            return "orchestrator_decision", []
        if not children:
            return "return", [USER]
        spoken = {self.agents[p] for p in turn.get("parents") or () if self._speaks(p)} - {agent}
        if len(spoken) > 1:
            return "aggregate", []
        readers = (self.agents[child["turn_index"]] for child in children if child["event"] != Event.TOOL)
        others = [reader for reader in dict.fromkeys(readers) if reader != agent]
        return ("message", others) if others else ("orchestrator_decision", [])

    def _of_act(self, turn: Row, kind: str, agent: str) -> tuple[str, list[str]]:
        if kind in ("aggregate", "orchestrator_decision"):
            return kind, []
        recipients = [self._play(str(r), turn) for r in turn.get("recipients") or ()]
        if not recipients and turn.get("instance") and kind == "spawn":
            recipients = [str(turn["instance"])]
        if not recipients:
            readers = (self.agents[child["turn_index"]] for child in self.children[turn["turn_index"]])
            recipients = [reader for reader in dict.fromkeys(readers) if reader != agent]
        return kind, recipients or [USER]

    def _play(self, name: str, turn: Row) -> str:
        """The agent of a play by its id; the play that nobody spawned goes by whoever began it."""
        if name != TRUNK:
            return name
        spawn = self.spawned.get(str(turn.get("instance")))
        return spawn["agent"] if spawn is not None else self.trunk

    def _speaks(self, index: int) -> bool:
        return self.by_index.get(index, {}).get("event") == Event.LLM


def depth_of(edges: Sequence[Mapping[str, str]]) -> int:
    """Events on the longest path along the edges of a graph without circles."""
    followers: dict[str, list[str]] = {}
    waits: dict[str, int] = {}
    for edge in edges:
        followers.setdefault(edge["src"], []).append(edge["dst"])
        waits[edge["dst"]] = waits.get(edge["dst"], 0) + 1
        waits.setdefault(edge["src"], 0)
    depth = {name: 1 for name, count in waits.items() if not count}
    for name in _free(followers, waits):
        for target in followers.get(name, ()):
            depth[target] = max(depth.get(target, 1), depth[name] + 1)
    return max(depth.values(), default=1)


def _free(followers: Mapping[str, Sequence[str]], waits: dict[str, int]) -> Iterator[str]:
    free = [name for name, count in waits.items() if not count]
    for name in free:
        yield name
        for target in followers.get(name, ()):
            waits[target] -= 1
            if not waits[target]:
                free.append(target)
