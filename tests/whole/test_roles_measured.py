"""Gradients by role in a whole iteration: the same names under every regime, in tables and on pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.plan.assemble import assemble
from pipeline.run.session import session
from pipeline.settings.reading import parse_settings
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from pipeline.views.render import as_text
from pipeline.views.summary import summary_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

Settings = Callable[..., dict[str, Any]]
ROLES = ("decomposer", "reader", "answerer")
REGIMES: dict[str, dict[str, Any]] = {
    "full": {"sharing": {"regime": "full"}},
    "separate": {"sharing": {"regime": "separate"}},
    "adapters": {"sharing": {"regime": "adapters"}, "models": {"team": {"adapter": {"rank": 4}}}},
    "groups": {"sharing": {"groups": {"readers": ["decomposer", "reader"], "answers": ["answerer"]}}},
}


def iteration(raw: dict[str, Any]) -> tuple[Run, Finished]:
    with session(assemble(parse_settings(raw)), signals=False) as runner:
        return runner.run, runner.run_iteration()


@pytest.mark.parametrize("regime", REGIMES)
def test_every_regime_has_the_same_names_and_no_cosine_between_models(
    scripted: Settings, regime: str
) -> None:
    run, done = iteration(scripted(**REGIMES[regime], measure={"gradients": "estimate", "drift": True}))
    models = {row["role"]: row["model_id"] for row in done.tables["turns"].read().to_pylist() if row["role"]}
    for role in ROLES:
        of_role = {n.split("/", 2)[2] for n in done.metrics if n.startswith(f"role/{role}/")}
        assert {
            *("gradient_norm", "gradient_share", "token_share", "gradient_cosine", "kl_old", "kl_reference"),
        } <= of_role
        beside = {n.rpartition("/")[2] for n in of_role if n.startswith("gradient_cosine_with/")}
        assert beside == {other for other in ROLES if other != role and models[other] == models[role]}
        alone = beside == set()
        assert (done.metrics[f"role/{role}/gradient_share"] == 1) is alone
    for model in set(models.values()):
        rows = done.tables[f"role_updates/{model}"].read().to_pylist()
        whole = next(r for r in rows if r["role"] is None and r["kind"] == "summary")
        # the estimate of the length of the whole gradient, and the trainer's own
        assert whole["gradient_norm"] == pytest.approx(done.metrics[f"model/{model}/gradient_norm"], rel=0.05)
    page = as_text(summary_of(run, done))
    assert "Gradients by role, before clipping" in page
    assert all(
        account.rows_in == account.rows_out for account in done.accounts if "role_updates" in account.boundary
    )


def test_without_the_switch_nothing_is_measured(scripted: Settings) -> None:
    run, done = iteration(scripted())
    assert not [name for name in done.tables if name.startswith("role_")]
    assert not [name for name in done.metrics if "gradient_share" in name]
    assert "Gradients by role" not in as_text(summary_of(run, done))
