"""A stored episode that a play begins with: what is served from it, and what is asked anew.

The workflow is played again from its start. At each turn the player looks here first. A stored turn is served
where it stands at the same place (step, round, branch), was asked the same (the ids of the prompt, or a
tool's request), of the same model with the same version of its weights, and sampled in the same way.
Everything else is asked anew. Parents say which outputs a turn read and not which ones decided that it came,
so they play no part: the workflow's own code decides again.

    base = BaseEpisode.of(rows)                 # all turns of one episode, as they are stored
    played = await player.play(task, iteration=0, sample=0, base=base)

With no change of weights, nothing is asked and the rows are the stored ones. A turn whose weights have moved
is sampled anew, and so is all that its words lead to.

**Seeds.** A play from a base has the seeds of the base's episode, those of the workflow's own chance too, so
that both take the same course until something differs. Sampling takes the number of the alternative as well:
alternative 0 would sample what was sampled before, 1 and above something else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from workflows import trajectory as t
from workflows.engine import ChatEngine, ChatReply, Completion, Sampling
from workflows.playing.record import EpisodeId, Played
from workflows.playing.speaker import Speaker
from workflows.roles import Role
from workflows.state import Output, TurnKey
from workflows.vocabulary import WITH_A_REPLY, Event, Origin, Status

Row = Mapping[str, Any]

BASE_COLUMNS: Final = (
    *("iteration", "block", "split", "task_id", "sample", "episode_id", "base_episode_id"),
    *("step", "round", "branch", "event", "role", "model_id", "base_id", "policy_version", "team_version"),
    *("response_token_ids", "behaviour_logprobs", "logprobs_mode", "sampling", "context_hash"),
    *("num_prompt_tokens", "num_response_tokens", "num_cached_tokens", "response_text", "finish_reason"),
    *("parsed", "status", "status_detail", "tool", "tool_request", "tool_result", "attempts"),
    *("act", "act_detail", "option_logprobs", "modelled_at"),
)
"""The columns of `turns` that a base is made of."""

# What a served reply keeps of how it was asked and sampled: the stored words, not those of the replay.
AS_ASKED: Final = ("policy_version", "team_version", "sampling", "attempts", "num_cached_tokens")


@dataclass(frozen=True, slots=True)
class BaseEpisode:
    """The turns of a stored episode by place, and the number of the alternative that is played.

    `seeds` says whose seeds a play from it has: the stored episode's, or where that began with another one
    itself, those of that one.
    """

    by_place: ClassVar[bool] = False  # whether stored results count whatever is asked, and nobody is asked

    episode_id: str
    seeds: EpisodeId
    turns: Mapping[TurnKey, Row]
    alternative: int = 0

    @classmethod
    def of(cls, rows: Iterable[Row], alternative: int = 0) -> BaseEpisode:
        """The base that all turns of one episode make: rows of `turns` with at least `BASE_COLUMNS`.

        Raises:
            ValueError: there are no rows; an episode without turns has nothing to serve.
        """
        turns = {TurnKey(row["step"], row["round"], row["branch"]): row for row in rows}
        if not turns:
            raise ValueError("a base episode needs the rows of its turns, got none")
        first = next(iter(turns.values()))
        root = first["base_episode_id"] or first["episode_id"]
        seeds = EpisodeId(
            first["iteration"],
            first["split"],
            first["task_id"],
            first["sample"],
            _block_of(root),
        )
        return cls(first["episode_id"], seeds, turns, alternative)

    def reply(
        self, key: TurnKey, speaker: Speaker, context_hash: str, sampling: Sampling
    ) -> tuple[Completion | ChatReply, dict[str, Any]] | None:
        """The stored reply to a prompt, with the columns that say how it was asked; None where it differs."""
        row = self.turns.get(key)
        if row is None or not _is_replys(row, speaker, context_hash, sampling):
            return None
        return reply_of(row), {name: row[name] for name in AS_ASKED}

    def called_off_at(self, key: TurnKey, speaker: Speaker, context_hash: str, sampling: Sampling) -> float:
        """When the stored turn was called off that was asked the same; minus infinity where none was."""
        row = self.turns.get(key)
        if row is None or row["status"] != Status.CALLED_OFF:
            return -math.inf
        return _ended(row) if _is_asked(row, speaker, context_hash, sampling) else -math.inf

    def tool_called_off_at(self, key: TurnKey, request: str) -> float:
        """When the stored call of a tool with the same request was called off; as `called_off_at`."""
        row = self.turns.get(key)
        off = row is not None and row["status"] == Status.CALLED_OFF and row["tool_request"] == request
        return _ended(row) if row is not None and off else -math.inf

    def call(self, key: TurnKey, tool: str, request: str) -> Row | None:
        """The stored turn in which a tool was asked the same and answered, or refused; else None."""
        row = self.turns.get(key)
        if row is None or row["event"] != Event.TOOL or row["status"] not in (Status.OK, Status.TOOL_ERROR):
            return None
        return row if (row["tool"], row["tool_request"]) == (tool, request) else None

    def computed(self, key: TurnKey, value: str) -> bool:
        """Whether the workflow computed this value, as JSON text, at this place before."""
        row = self.turns.get(key)
        return row is not None and row["event"] == Event.CONTROL and row["parsed"] == value

    def mark(self, played: Played) -> Played:
        """The play with what it began with in its rows.

        `replay_from_turn` is the first turn that is not a copy, or the number of turns where all are.
        """
        copied = [row["origin"] == Origin.COPIED for row in played.turns]
        lineage = {
            "base_episode_id": self.episode_id,
            "replay_from_turn": copied.index(False) if False in copied else len(copied),
        }
        turns = [{**row, **lineage} for row in played.turns]
        tokens = sum(row["num_response_tokens"] or 0 for row in turns if row["origin"] == Origin.COPIED)
        return Played(turns, {**played.episode, **lineage, "num_copied_tokens": tokens})

    def number_at(self, key: TurnKey) -> int:
        """The number of the alternative that is sampled at a place."""
        return self.alternative

    def seed_of(self, key: TurnKey) -> int | None:
        """The seed that the stored turn of a place was sampled with; None where there is no such turn."""
        row = self.turns.get(key)
        seed: int | None = (
            None if row is None or row["sampling"] is None else json.loads(row["sampling"])["seed"]
        )
        return seed

    def inputs(self, key: TurnKey, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a role is asked with at a place: what the workflow says."""
        return variables

    def handed_over(self, output: Output) -> Output:
        """What others get of an act, or of a value that the workflow computed: that value."""
        return output

    def delivered(self, output: Output, role: Role, variables: Mapping[str, Any]) -> Output:
        """What the workflow gets for an output of a role: that output."""
        return output


def _block_of(episode_id: str) -> int:
    """The block in the id of an episode: see `workflows.trajectory.group_id_of`."""
    return int(episode_id.partition("/")[0].partition(".")[2] or 0)


def _is_replys(row: Row, speaker: Speaker, context_hash: str, sampling: Sampling) -> bool:
    """Whether a stored turn is what this role would be asked now, of these weights, and has its reply."""
    engine = speaker.engine
    if row["status"] not in WITH_A_REPLY or row["policy_version"] != engine.policy_version:
        return False
    if not _is_asked(row, speaker, context_hash, sampling):
        return False
    if isinstance(engine, ChatEngine) != (row["response_token_ids"] is None):
        return False
    return isinstance(engine, ChatEngine) or row["logprobs_mode"] == engine.logprobs_mode


def _ended(row: Row) -> float:
    return -math.inf if row["modelled_at"] is None else float(row["modelled_at"])


def _is_asked(row: Row, speaker: Speaker, context_hash: str, sampling: Sampling) -> bool:
    """Whether a stored turn was asked of the same model what this role would be asked now."""
    now = (Event.LLM, speaker.role.name, speaker.model.model_id, speaker.model.base_id, context_hash)
    then = tuple(row[c] for c in ("event", "role", "model_id", "base_id", "context_hash"))
    return now == then and _without_seed(json.loads(row["sampling"])) == _without_seed(sampling.as_dict())


def _without_seed(sampling: Mapping[str, Any]) -> str:
    return t.to_json({name: value for name, value in sampling.items() if name != "seed"})


def reply_of(row: Row) -> Completion | ChatReply:
    """The stored reply as an engine would return it."""
    if row["response_token_ids"] is None:
        return ChatReply(
            row["response_text"],
            row["finish_reason"],
            row["policy_version"],
            row["num_prompt_tokens"],
            row["num_response_tokens"],
            row["num_cached_tokens"],
        )
    return Completion(
        row["response_token_ids"],
        row["behaviour_logprobs"],
        row["response_text"],
        row["finish_reason"],
        row["policy_version"],
        row["logprobs_mode"],
        row["num_cached_tokens"],
    )
