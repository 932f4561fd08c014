"""One part of a partition, with its scores, to the same part of the token advantages."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from rewards.credit.moments import Moments
from stages.token_advantages.gae import gae, summarise
from stages.token_advantages.importance import importance_ratios, importance_weights
from stages.token_advantages.kl import kl_per_token
from stages.token_advantages.ragged import Floats, kept_lengths, scatter, suffix_sums
from stages.token_advantages.rows import Rows, on_last_token, per_token
from stages.token_advantages.spans import beside_spans
from stages.token_advantages.spec import TokenSpec
from stages.token_advantages.whitening import together
from workflows.errors import SchemaError
from workflows.trajectory import TURN_KEYS

EMPTY: Final = "no response tokens"
NO_ADVANTAGE: Final = "no advantage"
NO_REWARD: Final = "no reward"
NO_WEIGHT: Final = "a teammate's turn before it has no ratio"
NOT_IMITATED: Final = "weight 0: nothing to imitate"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token advantages of some rows, (N,) each; None where the plan has no such thing."""

    advantages: Floats
    returns: Floats | None = None
    importance: Floats | None = None
    kl: Floats | None = None  # per token, before its coefficient: what is logged is the KL, not the reward
    ratios: Floats | None = None  # of old policy to sampler, before the cut that makes `importance` of them

    def columns(self) -> dict[str, Floats]:
        named = {
            "advantages": self.advantages,
            "returns": self.returns,
            "importance_weights": self.importance,
        }
        return {name: values for name, values in named.items() if values is not None}


def why_excluded(rows: Rows, spec: TokenSpec) -> list[str | None]:
    """For each row, why it can't be used, or None.

    Raises:
        SchemaError: a negative weight where turns are imitated.
    """
    empty = kept_lengths(rows.mask, rows.lengths) == 0
    needed, missing = ("reward", NO_REWARD) if spec.use == "gae" else ("advantage", NO_ADVANTAGE)
    reasons = [
        (pl.lit(pl.Series(empty, dtype=pl.Boolean)), EMPTY),
        (pl.col(needed).is_null(), missing),
    ]
    if spec.imitate:
        negative = rows.frame.filter(pl.col("advantage") < 0)
        if negative.height:
            raise SchemaError(
                f"model {spec.model_id!r} imitates, but {negative.height} turns have a negative advantage, "
                f"the first is {negative.select(TURN_KEYS).row(0)}; use a credit method that gives weights, "
                'such as "rejection", or another loss'
            )
        reasons.append((pl.col("advantage") == 0, NOT_IMITATED))
    first = pl.coalesce([pl.when(where).then(pl.lit(reason)) for where, reason in reasons])
    return rows.frame.select(reason=first)["reason"].to_list()


def summary_of(rows: Rows, spec: TokenSpec) -> pl.DataFrame:
    """The turns of a part for `gae.chain`. All rows must be usable."""
    rewards, _ = _token_rewards(rows, spec)
    keys = rows.frame.select(TURN_KEYS)
    return summarise(spec.gae, keys, rewards, rows.scores["values"], rows.mask, rows.lengths, rows.bootstrap)


def token_advantages(
    rows: Rows, spec: TokenSpec, carry: pl.DataFrame | None, spans: pl.DataFrame | None = None
) -> Tokens:
    """Advantages before whitening. All rows must be usable; `carry` has `gae.CARRY` for each of them, and
    `spans` the credit of some of them that counts on some of their tokens only."""
    mask, lengths = rows.mask, rows.lengths
    ratios = importance = None
    if spec.importance.correction != "none":
        ratios = importance_ratios(spec.importance, rows.scores["old"], rows.behaviour, mask, lengths)
        importance = importance_weights(spec.importance, ratios, mask)
    rewards, kl = _token_rewards(rows, spec)
    if spec.use == "gae":
        assert carry is not None
        after = rows.frame.select(TURN_KEYS).join(carry, on=TURN_KEYS, how="left", maintain_order="left")
        values = rows.scores["values"]
        advantages = gae(
            spec.gae,
            rewards,
            values,
            mask,
            lengths,
            after["next_value"].to_numpy(),
            after["next_advantage"].to_numpy(),
        )
        return Tokens(advantages, scatter((advantages + values)[mask], mask), importance, kl, ratios)
    advantages = np.where(mask, per_token(rows.frame["advantage"].to_numpy(), lengths), 0.0)
    if spans is not None and spans.height:
        advantages -= np.where(mask, beside_spans(rows, spans), 0.0)
    if spec.reward_kl.is_on:  # each token pays for itself and for what follows it in its turn
        kept = kept_lengths(mask, lengths)
        advantages += scatter(suffix_sums(rewards[mask], kept, spec.gae.gamma), mask)
    return Tokens(advantages, None, importance, kl, ratios)


def moments_of(tokens: Tokens, rows: Rows, spec: TokenSpec) -> dict[str, Moments]:
    """Moments of the advantages over trained tokens, by what is whitened together ("" for a model)."""
    return {key: Moments.of(tokens.advantages[where]) for key, where in together(rows, spec.whiten).items()}


def whitened(tokens: Tokens, rows: Rows, spec: TokenSpec, moments: dict[str, Moments]) -> Tokens:
    """The same with advantages whitened by `moments`."""
    advantages = tokens.advantages.copy()
    for key, where in together(rows, spec.whiten).items():
        advantages[where] = moments[key].whiten(advantages[where])
    return dataclasses.replace(tokens, advantages=advantages)


def clipped(tokens: Tokens, spec: TokenSpec) -> Tokens:
    """Advantages cut at ± `spec.clip`, where there is one."""
    if spec.clip is None:
        return tokens
    return dataclasses.replace(tokens, advantages=np.clip(tokens.advantages, -spec.clip, spec.clip))


def reweighted(tokens: Tokens, rows: Rows, weights: Floats | None) -> Tokens:
    """Advantages times the weights (M,) of their rows; None leaves them as they are."""
    if weights is None:
        return tokens
    return dataclasses.replace(tokens, advantages=tokens.advantages * per_token(weights, rows.lengths))


def weights_of(rows: Rows, weights: pa.Table) -> Floats:
    """The weight (M,) of each row's prefix, NaN where it has none."""
    known = pl.DataFrame(weights.select([*TURN_KEYS, "weight"]))
    joined = rows.frame.select(TURN_KEYS).join(known, on=TURN_KEYS, how="left", maintain_order="left")
    return joined["weight"].fill_null(float("nan")).to_numpy()


def _token_rewards(rows: Rows, spec: TokenSpec) -> tuple[Floats, Floats | None]:
    """Rewards per token, and the KL behind them: the turn's reward (GAE only), minus the price of the KL.

    The KL is also measured where it only steers a coefficient.
    """
    rewards, kl = np.zeros(len(rows.mask)), None
    if spec.use == "gae":
        rewards = on_last_token(rows.frame["reward"].to_numpy(), rows.mask, rows.lengths)
    if spec.reward_kl.is_on:
        old, reference = rows.scores["old"], rows.scores["reference"]
        kl = kl_per_token(old, reference, rows.mask, spec.reward_kl.estimator)
        prices = np.array([spec.reward_kl.of(role or "") for role in rows.frame["role"].to_list()])
        rewards = rewards - per_token(prices, rows.lengths) * kl
    elif spec.kl_control is not None:
        old, reference = rows.scores["old"], rows.scores["reference"]
        kl = kl_per_token(old, reference, rows.mask, spec.kl_control.estimator)
    return rewards, kl
