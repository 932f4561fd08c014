"""A role that chooses among given replies: how likely each is, and which one it is.

Nothing is sampled token by token. The engine says how likely each option is as a continuation of the prompt;
the row keeps the log-probabilities of the options given that it is one of them, and one is drawn by these.
`behaviour_logprobs` are of the chosen option's tokens under the model's whole distribution, as in any row.

Of a role that decides on an act (`Role.decides`), `act_detail` has `decides`, the act's word, `options`, the
ids of both options, and `source`, "learned". A turn that chose the act has it in `act`.

A stop may be *held back*: the option that goes on is taken whatever is drawn, so that the trace shows what
would have come. Then `act_detail` has `held_back`, and nothing else of the episode knows.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from workflows import trajectory as t
from workflows.engine import Completion, Sampling, Weighed
from workflows.errors import InfraError, UsageError, WorkflowError
from workflows.playing.speaker import Speaker
from workflows.prompts import Prompt
from workflows.roles import Role
from workflows.state import Place, TurnKey
from workflows.vocabulary import Act

HELD_BACK: Final = "held_back"
DECIDES: Final = "decides"
OPTIONS: Final = "options"
"""Keys of `act_detail`."""


def check_options(speaker: Speaker) -> None:
    """Refuse a model that can't weigh options, or whose tokenizer can't tell them apart.

    Raises:
        UsageError: naming the role and what to do.
    """
    role, engine = speaker.role, speaker.engine
    if not (hasattr(engine, "weigh") and hasattr(engine, "encode")):
        raise UsageError(
            f"role {role.name!r} chooses among {', '.join(map(repr, role.options))} by how likely its model "
            f"finds each, and the engine of model {speaker.model.model_id!r} can't say: give the role a "
            'model with engine = "vllm" or "torch", or leave the decision to a rule of the workflow'
        )
    ids = [tuple(one) for one in encoded(speaker)]
    if len(set(ids)) < len(ids) or not all(ids):
        raise UsageError(
            f"role {role.name!r}: the tokenizer of model {speaker.model.model_id!r} writes its options "
            f"{', '.join(map(repr, role.options))} as the ids {', '.join(map(str, ids))}, which must differ; "
            "use other words"
        )


def encoded(speaker: Speaker) -> list[list[int]]:
    """The ids of each option."""
    engine: Any = speaker.engine
    return [list(engine.encode(option)) for option in speaker.role.options]


class StopsSaid:
    """The turns of an episode that know of a stop decision: those that decided, and what was made of them."""

    def __init__(self) -> None:
        self._turns: set[TurnKey] = set()

    def asked(self, role: Role, place: Place) -> None:
        """A role is asked at a place.

        A stop may decide the course of an episode and not stand in a prompt: what comes after a stop that was
        held back must be what would have come without the question.

        Raises:
            WorkflowError: it is asked with what a stop decision said.
        """
        if known := sorted(self._turns & set(place.parents)):
            step = known[0].step
            raise WorkflowError(
                f"step {place.key.step!r} gives role {role.name!r} what step {step!r} decided; a stop may "
                "decide which steps come next, and may not stand in a prompt: leave it out of the inputs"
            )
        if role.decides == Act.STOP:
            self._turns.add(place.key)

    def pass_on(self, place: Place) -> None:
        """A value is made at a place; made of a stop, it says as much as the stop."""
        if self._turns & set(place.parents):
            self._turns.add(place.key)


async def decide(
    speaker: Speaker, prompt: Prompt, sampling: Sampling, *, hold_back: bool
) -> tuple[Completion, dict[str, Any]]:
    """One attempt: the chosen option as a completion, and the columns of a row that say how it was chosen.

    Raises:
        InfraError: the engine failed, or said something that can't be recorded.
    """
    engine: Any = speaker.engine
    options = encoded(speaker)
    assert prompt.token_ids is not None
    weighed: Weighed = await engine.weigh(prompt.token_ids, options, sampling.temperature)
    if fault := weighed_fault(weighed, options):
        raise InfraError(fault)
    logprobs = weighed.renormalised
    held = hold_back and speaker.role.decides == Act.STOP
    chosen = 1 if held else drawn(logprobs, sampling)
    completion = Completion(
        token_ids=options[chosen],
        logprobs=weighed.logprobs[chosen],
        text=speaker.role.options[chosen],
        finish_reason="stop",
        policy_version=weighed.policy_version,
        logprobs_mode=weighed.logprobs_mode,
        num_cached_tokens=weighed.num_cached_tokens,
        started_after=weighed.started_after,
    )
    named = [{"name": n, "value": v} for n, v in zip(speaker.role.options, logprobs, strict=True)]
    return completion, {"option_logprobs": named, **_act_columns(speaker.role, chosen, options, held)}


def _act_columns(role: Role, chosen: int, options: list[list[int]], held: bool) -> dict[str, Any]:
    if role.decides is None:
        return {}
    detail = {DECIDES: role.decides, "source": "learned", "number": 0, OPTIONS: options}
    return {
        "act": role.decides if chosen == 0 else None,
        "act_detail": t.to_json(detail | ({HELD_BACK: True} if held else {})),
    }


def is_stop_decision(row: Mapping[str, Any]) -> bool:
    """Whether a row of `turns` decided on a stop, either way."""
    return row["option_logprobs"] is not None and detail_of(row).get(DECIDES) == Act.STOP


def detail_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The `act_detail` of a row, read."""
    detail: dict[str, Any] = json.loads(row["act_detail"] or "{}")
    return detail


def drawn(logprobs: Sequence[float], sampling: Sampling) -> int:
    """The number of an option: the likeliest at temperature 0, else one drawn by the seed alone."""
    if sampling.temperature == 0:
        return max(range(len(logprobs)), key=lambda one: logprobs[one])
    left = random.Random(sampling.seed).random()
    for number, logprob in enumerate(logprobs):
        left -= math.exp(logprob)
        if left < 0:
            return number
    return max(range(len(logprobs)), key=lambda one: logprobs[one])  # the rounding of a sum that is 1


def weighed_fault(weighed: Weighed, options: Sequence[Sequence[int]]) -> str | None:
    """What makes log-probabilities of options unfit to be recorded, or None."""
    if [len(one) for one in weighed.logprobs] != [len(one) for one in options]:
        return "the engine returned other numbers of logprobs than the options have tokens"
    if not all(math.isfinite(logprob) for one in weighed.logprobs for logprob in one):
        return "the engine returned a logprob of an option that is not finite"
    return None


def kept_columns(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a stored decision that a copy of its row has too."""
    return {name: stored.get(name) for name in ("option_logprobs", "act", "act_detail")}
