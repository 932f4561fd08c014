"""One episode as a conversation that reads from top to bottom, with what each turn earned.

Turns come in the order in which they ran; parallel branches are shown one after the other and
indented.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pipeline.store.episodes import Played, Row
from pipeline.views.course import course_lines
from pipeline.views.render import number, plain, visible
from workflows.trajectory import OK, TURN_KEYS
from workflows.vocabulary import Op, Origin

MAX_CHARACTERS: Final = 600  # of one text, unless --full shows all of it
_INDENT: Final = 4
JSON_COLUMNS: Final = frozenset(
    {"inputs", "gold", "messages", "parsed", "sampling", "cut", "tool_request", "tool_result", "team_version"}
)


def transcript(
    played: Played, *, full: bool = False, effects: Mapping[int, Sequence[Row]] | None = None
) -> RenderableType:
    """One episode. `full` shows whole prompts and texts of any length.

    Args:
        effects: by turn_index, what counterfactual plays changed of its reply (`store.effects.effects_of`).
    """
    blocks: list[RenderableType] = [_head(played.episode, played.evaluation), _task(played.task, full)]
    if (drawn := course_lines(played.turns)) is not None:
        blocks.append(Padding(drawn, (1, 0, 0, 2)))
    rewards_of, credit_of = _by_turn(played.rewards), _by_turn(played.credit)
    for turn in in_branches(played.turns):
        key = turn["turn_index"]
        body: RenderableType = _turn_body(turn, rewards_of.get(key), credit_of.get(key), full)
        if changes := (effects or {}).get(key):
            body = Group(body, *(Padding(Text(_change(c), "magenta"), (0, 0, 0, _INDENT)) for c in changes))
        blocks.append(Padding(Group(Text(), _turn_head(turn), body), (0, 0, 0, _INDENT * _depth(turn))))
    return Group(*blocks)


def transcript_dict(played: Played) -> dict[str, Any]:
    """One episode as plain values, for `--json`: JSON columns decoded, reward and credit beside each turn."""
    rewards_of, credit_of = _by_turn(played.rewards), _by_turn(played.credit)
    turns = []
    for turn in sorted(played.turns, key=lambda t: t["turn_index"]):
        key = turn["turn_index"]
        turns.append(decoded_row({**turn, **_beside(rewards_of.get(key)), **_beside(credit_of.get(key))}))
    task = None if played.task is None else decoded_row(played.task)
    scores = {} if played.evaluation is None else {"evaluation": played.evaluation}
    result: dict[str, Any] = plain({"episode": played.episode, "task": task, "turns": turns, **scores})
    return result


def turn_page(turn: Row) -> RenderableType:
    """One turn whole, from a row that also has the columns of its reward and credit."""
    return Group(_turn_head(turn), _turn_body(turn, turn, turn, full=True))


def in_branches(turns: Iterable[Row]) -> list[Row]:
    """Turns by `turn_index`, but between two turns of the trunk branch by branch, in order of appearance."""
    ordered: list[Row] = []
    branches: dict[str, list[Row]] = {}
    for turn in sorted(turns, key=lambda t: t["turn_index"]):
        if _depth(turn):
            branches.setdefault(turn["branch"], []).append(turn)
            continue
        ordered += [t for branch in branches.values() for t in branch]
        branches = {}
        ordered.append(turn)
    return ordered + [t for branch in branches.values() for t in branch]


def _head(episode: Row, evaluation: Row | None) -> Text:
    text = Text.assemble((f"episode {visible(episode['episode_id'])}", "bold"), "  ")
    text.append(visible(str(episode.get("status"))), _style(episode.get("status")))
    text.append(
        f"  {number(episode.get('num_turns'))} turns, {number(episode.get('num_prompt_tokens'))} prompt"
    )
    text.append(f" + {number(episode.get('num_response_tokens'))} response tokens")
    if episode.get("base_episode_id"):
        copied = number(episode.get("num_copied_tokens"))
        text.append(f", {copied} more copied from {visible(episode['base_episode_id'])}")
    if episode.get("seconds") is not None:
        text.append(f", {episode['seconds']:.1f} s")
    for score in (evaluation or {}).get("values") or ():
        text.append(f"  {visible(score['name'])} {number(score['value'])}", "green")
    if evaluation is not None and evaluation["failed"] is not None:
        text.append(f"\ncounts as 0: {visible(evaluation['failed'])}", "yellow")
    if episode.get("error"):
        text.append(f"\n{visible(episode['error'])}", "red")
    return text


def _task(task: Row | None, full: bool) -> RenderableType:
    if task is None:
        return Text("the table of tasks is not here, so the task is not shown", "dim")
    fields = _Fields(full)
    for name, value in (_decoded("inputs", task["inputs"]) or {}).items():
        fields.add(name, value)
    fields.add("gold", _decoded("gold", task["gold"]), "green")
    return Padding(fields.table, (0, 0, 0, 2))


def _turn_head(turn: Row) -> Text:
    text = Text(f"[{turn['turn_index']}] ", "dim").append(visible(turn["step"] or "?"), "not dim bold")
    speaker = [f"role {turn['role']}"] if turn.get("role") else []
    if turn.get("model_id"):
        speaker.append(f"{turn['model_id']}@{turn['policy_version']}")
    if turn.get("tool"):
        speaker.append(f"tool {turn['tool']}")
    if turn.get("instance"):
        speaker.append(f"play {turn['instance']}")
    if turn.get("recipients"):
        speaker.append(f"to {', '.join(turn['recipients'])}")
    if turn.get("branch"):
        speaker.append(f"branch {turn['branch']}")
    if turn.get("round"):
        speaker.append(f"round {turn['round']}")
    text.append(visible("".join(f"  {s}" for s in speaker)), "not dim")
    text.append(f"  {visible(str(turn['status']))}", f"not dim {_style(turn['status'])}")
    if turn.get("num_response_tokens") is not None:
        tokens = f"{number(turn.get('num_prompt_tokens'))} → {number(turn['num_response_tokens'])} tokens"
        text.append(f"  {tokens}")
    if turn.get("origin") not in (None, Origin.SAMPLED):
        text.append(f"  {visible(turn['origin'])}", "not dim yellow")
    return text


def _turn_body(turn: Row, reward: Row | None, credit: Row | None, full: bool) -> RenderableType:
    fields = _Fields(full)
    messages = _decoded("messages", turn.get("messages")) or []
    shown = messages if full else [m for m in messages if m.get("role") == "user"][-1:]
    for message in shown:
        fields.add(message.get("role", "?"), message.get("content"), "dim")
    fields.add("says", turn.get("response_text"))
    fields.add("parsed", _decoded("parsed", turn.get("parsed")), "cyan")
    fields.add("asks", _decoded("tool_request", turn.get("tool_request")))
    fields.add("gets", _decoded("tool_result", turn.get("tool_result")), "dim")
    fields.add("why", turn.get("status_detail"), "yellow")
    fields.add("cut", _decoded("cut", turn.get("cut")), "yellow")
    fields.add("reward", _reward(reward), "green")
    fields.add("credit", _credit(credit), "green")
    return Padding(fields.table, (0, 0, 0, _INDENT))


def _change(effect: Row) -> str:
    """What one counterfactual play of a reply says."""
    alone = "" if effect["recipient"] is None else f" for turn {effect['recipient']} alone"
    what = f"{effect['op']}{alone}"
    if effect["skipped"] is not None:
        return f"if {what}: not played, {visible(effect['skipped'])}"
    if effect["op"] == Op.SHAPLEY and effect["effect"] is not None:
        share = f"the Shapley value of this reply in what turn {effect['recipient']} makes of all it reads"
        return f"{share}: {effect['effect']:+.4g}"
    if effect["return"] is None:
        return f"if {what}: its play has no return"
    changed = f"return {number(effect['return'])} instead of {number(effect['base_return'])}"
    return f"if {what}: {changed}, so it was worth {effect['effect']:+.4g}"


def _reward(row: Row | None) -> str | None:
    if row is None:
        return None
    parts = ", ".join(f"{p['name']} {number(p['value'])}" for p in row.get("reward_parts") or ())
    if row["reward"] is None:
        return f"none: {row['no_reward_reason']}" if row.get("no_reward_reason") else None
    return number(row["reward"]) + (f"  ({parts})" if parts else "")


def _credit(row: Row | None) -> str | None:
    if row is None:
        return None
    if row["excluded"] is not None:
        return f"not trained on: {row['excluded']}"
    advantage = f"{row['advantage']:+.4g}" if row["advantage"] is not None else number(None)
    channels = ", ".join(f"{c['name']} {number(c['value'])}" for c in row.get("channels") or ())
    return f"return {number(row['return'])}, advantage {advantage}" + (f"  ({channels})" if channels else "")


class _Fields:
    """Lines of `name  text`, the text wrapped beside its name; what is empty has no line."""

    def __init__(self, full: bool) -> None:
        self.full = full
        self.table = Table.grid(padding=(0, 2, 0, 0))
        self.table.add_column(no_wrap=True, style="dim")
        self.table.add_column(overflow="fold")

    def add(self, name: str, value: Any, style: str = "") -> None:
        if value is None or value in ("", [], {}):
            return
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if not self.full and len(text) > MAX_CHARACTERS:
            text = f"{text[:MAX_CHARACTERS]} … ({number(len(text) - MAX_CHARACTERS)} more characters; --full)"
        self.table.add_row(Text(visible(name)), Text(visible(text), style))


def _by_turn(rows: Iterable[Row]) -> dict[int, Row]:
    return {row["turn_index"]: row for row in rows}


def _beside(row: Row | None) -> dict[str, Any]:
    return {} if row is None else {k: v for k, v in row.items() if k not in TURN_KEYS}


def decoded_row(row: Row) -> dict[str, Any]:
    """A row with its JSON columns as values."""
    return {name: _decoded(name, value) for name, value in row.items()}


def _decoded(column: str, value: Any) -> Any:
    """A JSON column as a value; text that is not JSON (of another writer) stays text."""
    if column not in JSON_COLUMNS or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _depth(turn: Row) -> int:
    """How many branches lie around each other here: "1.0" is branch 0 within branch 1."""
    branch = turn.get("branch") or ""
    return len(branch.split(".")) if branch else 0


def _style(status: object) -> str:
    return "green" if status == OK else "yellow"
