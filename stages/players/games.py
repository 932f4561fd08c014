"""Playing the sets of the inputs of one reply, for their Shapley values."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from stages.players.choices import Choice, Choosing, Row, inputs_of, key_of
from stages.players.coalitions import coalitions, is_exact
from stages.players.outcomes import Outcomes, came_of, intervention_row, named, share_of
from workflows.errors import WorkflowError
from workflows.interventions import PLAYED_COALITIONS
from workflows.playing.base_episode import BaseEpisode
from workflows.playing.counterfactual import Counterfactual
from workflows.playing.record import Played
from workflows.trajectory import seed_for
from workflows.vocabulary import Op, Status


async def play_game(
    play: Callable[[BaseEpisode], Awaitable[Played]],
    stored: Sequence[Row],
    choice: Choice,
    choosing: Choosing,
    skipped: str | None = None,
) -> Outcomes:
    """The plays of one reply without some of its inputs: a row for each set, and one for each input.

    Args:
        stored: the turns of the episode.
        choice: of op shapley.
        skipped: why nothing is played; None: it is.
    """
    inputs, reader = inputs_of(stored, choice.intervention), choice.turn
    rows = [intervention_row(turn, choice) for turn in inputs]
    if skipped is not None:
        return Outcomes([{**row, "skipped": skipped} for row in rows])
    seed = seed_for(choosing.seed, "coalitions", reader["episode_id"], reader["turn_index"])
    weights = coalitions(len(inputs), choosing.permutations, seed)

    async def play_set(present: tuple[int, ...]) -> tuple[dict[str, Any], Played | None]:
        got = [inputs[place]["turn_index"] for place in present]
        row = dict.fromkeys(PLAYED_COALITIONS.names)
        row.update({c: rows[0][c] for c in ("iteration", "block", "task_id", "group_id", "episode_id")})
        row.update({c: reader[c] for c in ("step", "round", "branch", "role", "model_id")})
        row.update(
            recipient=reader["turn_index"],
            inputs=[turn["turn_index"] for turn in inputs],
            present=got,
            weights=weights[present],
            exact=is_exact(len(inputs), choosing.permutations),
            select_probability=choice.probability,
        )
        if len(present) == len(inputs):  # the replay of the episode as it is
            plain = f"{row['episode_id']}#{Op.NONE}"
            return {**row, "play_id": plain, "status": str(Status.OK), "tokens": 0}, None
        first, *more = (key_of(turn) for place, turn in enumerate(inputs) if place not in present)
        replaced = replace(choice.intervention, key=first, more=tuple(more))
        name = "-".join(map(str, got)) or "nothing"
        try:
            played = await play(Counterfactual.at(stored, replaced))
        except WorkflowError as error:  # without these inputs, the reply is not asked for
            return {**row, "skipped": str(error)}, None
        named_play = named(played, f"{row['episode_id']}#{Op.SHAPLEY}.{row['recipient']}.{name}")
        return {**row, **came_of(named_play, stored)}, named_play

    sets = await asyncio.gather(*map(play_set, weights))
    tokens = sum(row["tokens"] or 0 for row, _ in sets)
    why = next((row["skipped"] for row, _ in sets if row["skipped"] is not None), None)
    ends = [row["status"] for row, _ in sets if row["status"] is not None]
    bad = next((status for status in ends if status != Status.OK), str(Status.OK))
    for place, row in enumerate(rows):
        row.update(tokens=share_of(tokens, place, len(rows)), skipped=why)
        row.update(status=None if why is not None else bad)
    return Outcomes(rows, [row for row, _ in sets], [play for _, play in sets if play is not None])
