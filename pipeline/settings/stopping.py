"""The section [stopping]: how a team learns when to stop, for workflows with a role that decides it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.settings.section import Amount, Positive, Section


class StoppingSection(Section):
    """How the role that decides on a stop learns, and what its stops are held against. Only for workflows
    that have such a role (option learned_stop of mask, code, evaluate_optimise and debate)."""

    use: Literal["off", "measure", "hazard", "all_action"] = "off"
    """off trains the decision as any other turn; measure lets every episode go on to its end and compares
    stops on it; hazard does so and learns from the exact value of stopping on these traces; all_action learns
    from episodes that stop where the role says."""
    probes: Positive = 1
    """Probes of each decision that went on: answers of a stop there, sampled from the same context and scored
    by the run's rewards; one is enough, and played, where a stop needs no further answer."""
    cost: Literal["tokens", "turns", "decisions"] = "tokens"
    """What going on costs: response tokens of the team, its turns, or decisions, those of probes never
    among them."""
    price: Amount = 0.0
    """Reward that a unit of cost takes; with a budget, where the price begins."""
    budget: Annotated[float, Field(gt=0)] | None = None
    """Mean cost of an episode that the price is steered to; without it, the price stays."""
    price_step: Annotated[float, Field(gt=0, le=1)] = 0.1
    """How fast the price follows a budget: its logarithm moves by this where cost is twice the budget."""
    epsilon: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Share of the stops that are played on by all_action, to see what going on comes to; each counts 1 /
    epsilon times."""
    coefficient: Amount = 1.0
    """Weight of the loss of decisions, a mean over episodes, beside the loss of the model's other tokens."""
