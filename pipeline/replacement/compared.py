"""A team against the one of before, by what the steps of a replacement have kept, and lines that say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.replacement.asked import Asked
from pipeline.replacement.gate import Paired, paired
from pipeline.replacement.state import State

Scores = Mapping[str, float]  # by task


def against_before(asked: Asked, state: State, scores: Scores) -> Paired:
    """These scores in pairs with those of the old team."""
    step = state.step("old")
    assert step is not None, "the snapshot is the first step"
    section, evaluate = asked.section, asked.settings.evaluate
    return paired(step["scores"], scores, confidence=section.confidence, solved_at=evaluate.solved_at)


def plays_line(asked: Asked, state: State, what: str, scores: Scores) -> str:
    """A line that says how a team does against the old one."""
    found = against_before(asked, state, scores)
    return (
        f"{what}: {found.after:.3f}, {found.gain:+.3f} (at least {found.lower:+.3f}); {found.lost} tasks "
        f"lost, {found.won} won, p {found.mcnemar_p:.3g}"
    )


def shock_line(what: str, found: Mapping[str, Any]) -> str:
    """A line about the distance of a newcomer from its predecessor."""
    reaches = [f"{r['model']} {min(r['prefix'], r['suffix']):.0%}" for r in found["teammates"]]
    usable = f"; stored plays that stay usable: {', '.join(reaches)}" if reaches else ""
    apart = f"{found['per_message']:.3g} ± {found['error']:.2g} nats per message from its predecessor"
    return f"{what}: {apart}{usable}"


def played_steps(state: State) -> list[tuple[str, Scores]]:
    """The steps after which the team has played, in order, each with its scores."""
    named = [("swap", "swap_plays"), ("distill", "taught_plays")]
    found = [(name, step["scores"]) for name, key in named if (step := state.step(key)) is not None]
    if rounds := (state.step("align") or {}).get("rounds", []):
        found.append(("align", rounds[-1]["scores"]))
    if (step := state.step("settle")) is not None:
        found.append(("settle", step["scores"]))
    return found


def newest_shock(state: State) -> dict[str, Any] | None:
    """The newest measure of the newcomer on stored turns; None where no step measured it."""
    measures: list[dict[str, Any] | None] = [
        (state.step("align") or {}).get("shock"),
        state.step("taught"),
        state.step("swap"),
    ]
    return next((measure for measure in measures if measure), None)
