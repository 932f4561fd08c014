"""Signs that a training has gone wrong, read off the metrics of its finished iterations. Pure.

A sign must be there for several iterations in a row, so that one unlucky batch says nothing; an alarm
whose sign is gone is over. An alarm never stops a run. Names of metrics are those of docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from pipeline.metrics.falls import fell_from_peak, of_gradients
from pipeline.metrics.names import by_name
from pipeline.metrics.signs import Alarm, Metrics, Series, above, reference, since_when
from pipeline.settings.program import hint
from pipeline.settings.tracking import AlarmsSection

SMALL_DRIFT: Final = 8.0  # tokens by which a length may drift, whatever factor that is
SMALL_GAP: Final = 0.01  # nats per token by which sampler and trainer may differ, whatever they did at first


def alarms(
    series: Series,
    limits: AlarmsSection,
    without_logprobs: Collection[str] = (),
    versions: Mapping[str, int] | None = None,
) -> list[Alarm]:
    """The alarms after the last iteration of the series, in a fixed order.

    Args:
        without_logprobs: models, as metrics call them, for which a script or a file speaks: logprobs that no
            policy has given differ from the trainer's, and that is no sign of anything.
        versions: of the models at the peak of the mean return, as `peak` finds it, where they are kept.
    """
    if not series:
        return []
    holding = [*_constant_reward(series, limits), *_no_signal(series, limits), *_excluded(series, limits)]
    holding += fell_from_peak(series, limits, versions)
    last = series[-1][1]
    for role in sorted(by_name(last, "role")):
        holding += [*_of_role(series, limits, role), *of_gradients(series, limits, role)]
    for model in sorted(by_name(last, "model")):
        holding += _of_model(series, limits, model)
        if model not in without_logprobs:
            holding += _sampler_gap(series, limits, model)
    return holding


def _constant_reward(series: Series, limits: AlarmsSection) -> Iterator[Alarm]:
    def sign(metrics: Metrics, _: int) -> bool:
        return "reward/min" in metrics and metrics["reward/min"] == metrics.get("reward/max")

    since = since_when(series, sign, limits.iterations)
    if since is not None:
        value = series[-1][1]["reward/min"]
        yield Alarm(
            "constant_reward",
            "",
            since,
            f"every episode has the reward {value:.4g}",
            f"look at reward/<reward>/mean and at episodes (`{hint('show')}`): is the reward broken, or "
            "are all tasks solved?",
        )


def _no_signal(series: Series, limits: AlarmsSection) -> Iterator[Alarm]:
    def sign(metrics: Metrics, _: int) -> bool:
        skipped = [values["skipped"] for values in by_name(metrics, "model").values() if "skipped" in values]
        quiet = metrics.get("groups/no_signal_rate", 0.0) >= limits.no_signal_rate
        return quiet or (bool(skipped) and min(skipped) == 1.0)

    since = since_when(series, sign, limits.iterations)
    if since is not None:
        rate = series[-1][1].get("groups/no_signal_rate")
        groups = f"{rate:.0%} of the groups have" if rate is not None else "all turns have"
        yield Alarm(
            "no_signal",
            "",
            since,
            f"{groups} no advantage but 0",
            "raise rollout.group_size or the temperature, take other tasks, or repair the reward",
        )


def _excluded(series: Series, limits: AlarmsSection) -> Iterator[Alarm]:
    names = {
        "rows/trainable_excluded_rate": "of what could be trained on is left out",
        "rollout/failed_rate": "of the episodes failed through no doing of the policy",
    }
    for name, what in names.items():
        since = since_when(series, above(name, limits.excluded_rate), limits.iterations)
        if since is not None:
            yield Alarm(
                "much_excluded",
                "",
                since,
                f"{series[-1][1][name]:.0%} {what}",
                "look at rows/… and rollout/status/…, and at the summary's rows by reason",
            )
            return


def _of_role(series: Series, limits: AlarmsSection, role: str) -> Iterator[Alarm]:
    length, entropy, cut = (
        f"role/{role}/{metric}" for metric in ("response_tokens_mean", "sampled_entropy", "truncated_rate")
    )

    def before(at: int) -> float | None:
        return reference(series, length, max(0, at - limits.length_window), at, limits.iterations)

    def drifts(metrics: Metrics, at: int) -> bool:
        value, earlier = metrics.get(length), before(at)
        if earlier is None or value is None or abs(value - earlier) < SMALL_DRIFT:
            return False
        return not earlier / limits.length_factor < value < earlier * limits.length_factor

    def collapses(metrics: Metrics, at: int) -> bool:
        first = reference(series, entropy, 0, at, limits.iterations)
        return first is not None and metrics.get(entropy, first) < limits.entropy_share * first

    last = series[-1][1]
    if (since := since_when(series, drifts, limits.iterations)) is not None:
        yield Alarm(
            "length_drift",
            role,
            since,
            f"its responses went from {before(len(series) - 1):.4g} to {last[length]:.4g} tokens within "
            f"{min(limits.length_window, len(series))} iterations",
            f"look at {length} beside return/mean, and at episodes (`{hint('show')}`)",
        )
    if (since := since_when(series, above(cut, limits.truncated_rate), limits.iterations)) is not None:
        yield Alarm(
            "cut_off",
            role,
            since,
            f"{last[cut]:.0%} of its responses are stopped by the token limit",
            f"raise roles.{role}.max_response_tokens, or reward brevity",
        )
    if (since := since_when(series, collapses, limits.iterations)) is not None:
        yield Alarm(
            "entropy_collapse",
            role,
            since,
            f"its tokens have {last[entropy]:.3g} nats, less than {limits.entropy_share:.0%} of the start",
            "if it has not learned by then: a lower ppo.learning_rate, or ppo.entropy_coefficient",
        )


def _of_model(series: Series, limits: AlarmsSection, model: str) -> Iterator[Alarm]:
    for name, metric, limit, what, look in (
        (
            "large_update",
            "kl_old",
            limits.kl_old,
            "an update moves it by a KL of",
            "a lower ppo.learning_rate, or fewer optimizer steps in an update",
        ),
        (
            "far_from_reference",
            "kl_reference",
            limits.kl_reference,
            "its KL from the reference is",
            "a higher ppo.kl_coefficient, or a lower ppo.learning_rate",
        ),
    ):
        key = f"model/{model}/{metric}"
        since = since_when(series, above(key, limit), limits.iterations)
        if since is not None:
            yield Alarm(name, model, since, f"{what} {series[-1][1][key]:.3g} nats per token", look)


def _sampler_gap(series: Series, limits: AlarmsSection, model: str) -> Iterator[Alarm]:
    """Too far from the sampler; or much farther than before the first update, as when an engine has other
    weights than the trainer, or the same ones rounded."""
    key = f"model/{model}/sampler_gap_mean"
    first = next((metrics[key] for _, metrics in series if key in metrics), 0.0)

    def sign(metrics: Metrics, _: int) -> bool:
        gap = metrics.get(key, 0.0)
        return gap >= limits.sampler_gap or (gap >= SMALL_GAP and gap >= limits.sampler_gap_growth * first)

    if (since := since_when(series, sign, limits.iterations)) is not None:
        yield Alarm(
            "sampler_gap",
            model,
            since,
            f"sampler and trainer differ by {series[-1][1][key]:.3g} nats per token, at first by {first:.3g}",
            "look at sampler_gap_max and at the precision of both; ppo.importance corrects small gaps",
        )
