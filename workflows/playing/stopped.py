"""A stored episode that ends, or goes on, at one of its stop decisions.

The workflow is played again from its start. Everything before the decision is served from the stored turns;
there the other option is delivered, whatever was chosen then, and what the workflow asks after it is asked.
So a probe answers as the team itself would after a real stop, and nothing of it is in the stored episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from workflows.engine import ChatReply, Completion, Sampling
from workflows.errors import UsageError
from workflows.playing.base_episode import BaseEpisode, Row
from workflows.playing.decision import is_stop_decision
from workflows.playing.speaker import Speaker
from workflows.roles import Role
from workflows.state import Output, TurnKey


@dataclass(frozen=True, slots=True)
class Stopped(BaseEpisode):
    """A stored episode with another outcome of the stop decision at `at`.

    The row of the decision stays as it is stored; the option is what the workflow gets.
    """

    at: TurnKey = field(kw_only=True)
    before: frozenset[TurnKey] = frozenset()  # turns that were over when the decision was taken, and it
    stops: bool = True  # False: the episode goes on there

    @classmethod
    def after(cls, rows: Iterable[Row], at: TurnKey, *, sample: int = 0, stops: bool = True) -> Self:
        """The base that all turns of one episode make, with `turn_index` beside `BASE_COLUMNS`.

        Sample 0 has the seeds of the stored episode; others are sampled anew from the decision on, also where
        they are asked what is stored.

        Raises:
            UsageError: at that place no role decided on a stop.
        """
        rows = list(rows)
        base = BaseEpisode.of(rows, alternative=sample)
        row = base.turns.get(at)
        if row is None or not is_stop_decision(row):
            raise UsageError(
                f"step {at.step!r} (round {at.round}, branch {at.branch!r}) of episode {base.episode_id} is "
                "not a stop decision; name one"
            )
        before = frozenset(k for k, turn in base.turns.items() if turn["turn_index"] <= row["turn_index"])
        return cls(base.episode_id, base.seeds, base.turns, sample, at=at, before=before, stops=stops)

    def reply(
        self, key: TurnKey, speaker: Speaker, context_hash: str, sampling: Sampling
    ) -> tuple[Completion | ChatReply, dict[str, Any]] | None:
        if self.alternative and key not in self.before:
            return None
        return BaseEpisode.reply(self, key, speaker, context_hash, sampling)

    def delivered(self, output: Output, role: Role, variables: Mapping[str, Any]) -> Output:
        if output.key != self.at:
            return output
        word = role.options[0 if self.stops else 1]
        return Output(word, word, True, output.key)
