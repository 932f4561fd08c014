"""Credit of messages from some replays, without bias. Pure.

A candidate is one way to replace a message: an alternative, or a recipient. With p > 0 the known chance that
it was replayed, r the effect of its replay (return of the play less the replay's) and q what it was expected
to be without its own replay,

    credit = q + (r - q) / p   where it was replayed, else   q

is right on average whatever q is (doubly robust), and the better q, the less it varies. Candidates of one
message and op are averaged over alternatives and summed over recipients. A replay that was chosen and has no
return counts as not known: its candidate has q, and is counted.

q is one of

    zero    nothing
    team    the credit of the message's episode in its group
    fitted  a + b · team credit, by op, role and step, weighted by 1/p; from the replays of other tasks only,
            so that no replay is part of what it is compared with
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import polars as pl
import pyarrow as pa

from workflows.credit_tables import MESSAGE_CREDIT
from workflows.trajectory import conform
from workflows.vocabulary import Op

Cheap = Literal["fitted", "team", "zero"]
Fit = pl.DataFrame
"""Sums of a weighted line by stratum and fold: see `_SUMS`."""

FOLDS: Final = 4
HEARD: Final = ("episode_id", "turn_index", "step", "round", "branch", "response_text")
"""The columns of `turns` that `heard` reads."""
_STRATUM: Final = ("op", "role", "step")
_KEY: Final = ("episode_id", "turn_index", "op", "alternative", "recipient")
_SUMS: Final = ("w", "wx", "wy", "wxx", "wxy")
_RIDGE: Final = 1.0  # as if one more message of this weight had no slope: a line through two points is noise
_SURE: Final = 1.96


@dataclass(frozen=True, slots=True)
class MessageCredit:
    """`table` is `MESSAGE_CREDIT`; `candidates` are the messages with `effect`, `q`, `credit`, `changed`."""

    table: pa.Table
    candidates: pl.DataFrame


def fit_of(messages: pl.DataFrame, interventions: pl.DataFrame) -> Fit:
    """The sums of a part, by op, role, step and fold, over candidates that have an effect."""
    known = _joined(messages, interventions).drop_nulls("effect")
    x, y, w = pl.col("cheap"), pl.col("effect"), 1 / pl.col("select_probability")
    return (
        known.with_columns(fold=_fold())
        .sort(*_STRATUM, "fold", maintain_order=True)
        .group_by(*_STRATUM, "fold", maintain_order=True)
        .agg(
            w=w.sum(),
            wx=(w * x).sum(),
            wy=(w * y).sum(),
            wxx=(w * x * x).sum(),
            wxy=(w * x * y).sum(),
        )
    )


def merged_fits(fits: Sequence[Fit]) -> Fit:
    """The sums of all parts, in their order."""
    return (
        pl.concat(fits)
        .group_by(*_STRATUM, "fold", maintain_order=True)
        .agg(pl.col(name).sum() for name in _SUMS)
    )


def message_credit(
    messages: pl.DataFrame, interventions: pl.DataFrame, cheap: Cheap, fits: Fit | None
) -> MessageCredit:
    """The credit of every message of a part.

    Args:
        messages: rows of `MESSAGES`.
        interventions: rows of `INTERVENTIONS` of the same part.
        fits: of all parts; for `fitted`.
    """
    rows = _joined(messages, interventions)
    q: pl.Expr = pl.lit(0.0)
    if cheap == "team":
        q = pl.col("cheap")
    if cheap == "fitted":
        assert fits is not None, "the sums of all parts come first"
        rows = _with_lines(rows, fits)
        q = pl.col("_a") + pl.col("_b") * pl.col("cheap")
    rows = rows.with_columns(q=q)
    right = pl.col("q") + (pl.col("effect") - pl.col("q")) / pl.col("select_probability")
    rows = rows.with_columns(
        credit=pl.when(pl.col("effect").is_not_null()).then(right).otherwise(pl.col("q"))
    )
    of_message = ("episode_id", "turn_index", "op")
    # one recipient each is a part of the message; alternatives are samples of the same
    recipients = pl.col("recipient").is_not_null().sum().clip(lower_bound=1)
    table = (
        rows.sort(*of_message, "recipient", "alternative", maintain_order=True)
        .group_by(of_message, maintain_order=True)
        .agg(
            credit=pl.col("credit").mean() * recipients,
            cheap=pl.col("q").mean() * recipients,
            effect=pl.col("effect").mean(),
            replays=pl.col("effect").count(),
            candidates=pl.len(),
            first_token=pl.col("first_token").first(),
            end_token=pl.col("end_token").first(),
        )
    )
    plain = table.select(MESSAGE_CREDIT.names).to_arrow()
    return MessageCredit(conform(plain, MESSAGE_CREDIT), rows)


def _joined(messages: pl.DataFrame, interventions: pl.DataFrame) -> pl.DataFrame:
    """The messages with what came of their replays: `effect`, `play_id`, `changed`."""
    columns = ("play_id", "status", "effect", "return", "base_return", "first_difference")
    played = interventions.filter(pl.col("op") != str(Op.NONE)).select(*_KEY, *columns)
    played = played.with_columns(changed=pl.col("first_difference") > pl.col("turn_index"))
    return messages.join(played, on=_KEY, how="left", maintain_order="left", nulls_equal=True)


def _with_lines(rows: pl.DataFrame, fits: Fit) -> pl.DataFrame:
    """The rows with intercept `_a` and slope `_b` of their stratum, from the other folds."""
    rows = rows.with_columns(fold=_fold())
    whole = fits.group_by(_STRATUM, maintain_order=True).agg(pl.col(n).sum().alias(f"{n}_all") for n in _SUMS)
    rows = rows.join(whole, on=_STRATUM, how="left", maintain_order="left")
    rows = rows.join(fits, on=[*_STRATUM, "fold"], how="left", maintain_order="left")
    sums = {n: pl.col(f"{n}_all").fill_null(0.0) - pl.col(n).fill_null(0.0) for n in _SUMS}
    some = sums["w"] > 1e-9
    mean_x, mean_y = sums["wx"] / sums["w"], sums["wy"] / sums["w"]
    slope = (sums["wxy"] - sums["w"] * mean_x * mean_y) / (sums["wxx"] - sums["w"] * mean_x * mean_x + _RIDGE)
    rows = rows.with_columns(_b=pl.when(some).then(slope).otherwise(0.0), _x=mean_x, _y=mean_y)
    intercept = pl.when(some).then(pl.col("_y") - pl.col("_b") * pl.col("_x")).otherwise(0.0)
    return rows.with_columns(_a=intercept)


def _fold() -> pl.Expr:
    """Which fold a task's group is in: groups stay whole, for their returns are compared."""
    return pl.col("group_id").map_elements(
        lambda group: zlib.crc32(str(group).encode()) % FOLDS, return_dtype=pl.Int64
    )


def summary(credit: MessageCredit) -> dict[str, Any]:
    """By op, sums over a part that `diagnostics` adds up."""
    out: dict[str, Any] = {}
    for (op,), rows in credit.candidates.sort("op", maintain_order=True).group_by("op", maintain_order=True):
        known = rows.drop_nulls("effect").with_columns(w=1 / pl.col("select_probability"))
        q, r, w = (known[name].to_numpy() for name in ("q", "effect", "w"))
        by_message = known.group_by("episode_id", "turn_index", maintain_order=True).agg(
            n=pl.len(),
            mean=pl.col("effect").mean(),
            deviation=pl.col("effect").std(),
            w=pl.col("w").mean(),
        )
        several = by_message.filter(pl.col("n") > 1)
        error = _SURE * several["deviation"].to_numpy() / several["n"].to_numpy() ** 0.5
        out[str(op)] = {
            "messages": rows.select("episode_id", "turn_index").n_unique(),
            "chosen": int(rows["is_chosen"].sum()),
            "known": known.height,
            "sums": [float(w.sum()), *(float((w * v).sum()) for v in (q, r, q * q, r * r, q * r))],
            "w2": float((w * w).sum()),
            "changed": float((w * known["changed"].fill_null(False).to_numpy()).sum()),
            "harmful": float((several["w"].to_numpy() * (several["mean"].to_numpy() + error < 0)).sum()),
            "several": float(several["w"].sum()),
            "within": float((several["deviation"].to_numpy() ** 2 * several["w"].to_numpy()).sum()),
        }
    return out


def heard(
    messages: pl.DataFrame, interventions: pl.DataFrame, turns: pl.DataFrame, plays: pl.DataFrame
) -> dict[str, tuple[float, int]]:
    """By op, the sum over replaced messages of their influence, and the number of these messages.

    The influence of a message is the mutual information, in nats, of what is delivered (the message or one of
    its replacements, each as likely) and what its first reader then says, given the context and the seeds. As
    these decide the reader's reply, it is the entropy of the replies: 0 where nobody listens, ln 2 at most
    with one replacement.

    Args:
        turns: the iteration's, with `HEARD`.
        plays: those of the replays, with `HEARD`.
    """
    place = ("step", "round", "branch")
    key = ("episode_id", "turn_index", "op")
    done = _joined(messages, interventions).drop_nulls("play_id").filter(pl.col("recipient").is_null())
    base = turns.select("episode_id", *place, reader="turn_index", said="response_text")
    done = done.select(*key, "reader", "play_id").join(
        base, on=["episode_id", "reader"], maintain_order="left"
    )
    of_play = plays.select(*place, play_id="episode_id", then="response_text")
    done = done.join(of_play, on=["play_id", *place], how="left", maintain_order="left", nulls_equal=True)
    out: dict[str, list[float]] = {}
    for (_, _, op), rows in done.group_by(key, maintain_order=True):
        replies = Counter([rows["said"][0], *rows["then"]])
        total = replies.total()
        out.setdefault(str(op), []).append(-sum(n / total * math.log(n / total) for n in replies.values()))
    return {op: (math.fsum(values), len(values)) for op, values in out.items()}


def diagnostics(
    summaries: Sequence[dict[str, Any]], heard: Sequence[dict[str, tuple[float, int]]] = ()
) -> tuple[dict[str, float], list[str]]:
    """Metrics by op, and notes: what is not defined is absent.

    `fidelity` is the correlation of what was expected of messages with what their replays say, weighted by
    1/p.
    """
    metrics: dict[str, float] = {}
    notes = []
    for op in dict.fromkeys(op for each in summaries for op in each):
        parts = [each[op] for each in summaries if op in each]
        total = {
            name: sum(part[name] for part in parts)
            for name in ("messages", "chosen", "known", "w2", "changed", "harmful", "several", "within")
        }
        w, q, r, qq, rr, qr = (sum(column) for column in zip(*(part["sums"] for part in parts), strict=True))
        metrics[f"{op}/messages"] = float(total["messages"])
        metrics[f"{op}/replays"] = float(total["known"])
        metrics[f"{op}/unknown"] = float(total["chosen"] - total["known"])
        listened = [of_part[op] for of_part in heard if op in of_part]
        if count := sum(n for _, n in listened):
            metrics[f"{op}/influence"] = math.fsum(nats for nats, _ in listened) / count
        if not w:
            continue
        mean, variance = r / w, max(0.0, rr / w - (r / w) ** 2)
        metrics[f"{op}/effect_mean"] = mean
        metrics[f"{op}/changed_rate"] = total["changed"] / w
        if total["known"] > 1:
            error = (variance * total["w2"] / w**2) ** 0.5
            metrics[f"{op}/effect_error"] = error
            if op == str(Op.PARAPHRASE) and abs(mean) > _SURE * error:
                notes.append(
                    "paraphrases of messages, which should change nothing, change the return by "
                    f"{-mean:+.3f} (± {_SURE * error:.3f}): effects of that size say nothing of what a "
                    "message means"
                )
            spread = max(0.0, qq / w - (q / w) ** 2)
            if spread > 1e-18 and variance > 1e-18:
                metrics[f"{op}/fidelity"] = (qr / w - q * r / w**2) / (spread * variance) ** 0.5
        if total["several"]:
            metrics[f"{op}/within_context_variance"] = total["within"] / total["several"]
            metrics[f"{op}/harmful_rate"] = total["harmful"] / total["several"]
    return metrics, notes
