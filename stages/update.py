"""partition/<model>, scores/<model>, token_advantages/<model> → updates, a checkpoint and its entry in
models: the DeepSpeed update of one model.

A thin stage: the trainer group does the work (`stages.training`). It is called by the driver and
never retried; the group itself makes a second delivery harmless.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from stages.base import Account, Context, StageResult
from stages.engines.base import Weights
from stages.lease import Lease
from stages.tables.parquet import TableRef, TableSink
from stages.training.spec import UpdateReport
from stages.training.trust.spec import REJECTED, state_before, told
from stages.trial import Trial
from workflows.models import Model
from workflows.trajectory import (
    MODELS,
    RATIOS,
    ROLE_PAIRS,
    ROLE_UPDATES,
    TRIAL,
    TRUST,
    UPDATES,
    rows_to_table,
    schema_of,
)

UPDATE_ARGUMENTS: Final = {
    "partition": "partition",
    "token_advantages": "advantages",
    "scores": "scores",
    "kl_scale": "kl_scale",
    "stop_rows": "stop_rows",
}
"""What the update reads: kinds of tables, and the arguments of `TrainerGroup.update` that take them."""

TRUST_BEFORE: Final = "trust_before"  # the kind of table that an update with a trust region begins with

MEASURES: Final = ("covariance_fraction", "stop_loss", "stop_value", "stop_probability")
"""What updates measure beside the columns of their table: in the manifest's metrics."""

# Columns of the summary row that go into the manifest's metrics where they hold a number.
_METRICS: Final = (
    "loss",
    "policy_loss",
    "value_loss",
    "kl_old",
    "kl_reference",
    "entropy",
    "explained_variance",
    "clip_fraction",
    "dual_clip_fraction",
    "importance_ratio_max",
    "importance_weight_mean",
    "importance_weight_max",
    "importance_masked",
    "sampler_gap_mean",
    "sampler_gap_max",
    "sampler_kl",
    "gradient_norm",
    "learning_rate",
    "num_rows",
    "num_tokens",
    "num_forward_tokens",
    "version_before",
    "version_after",
    "seconds",
)


class UpdateStage:
    """Train one model on its partition, save it, and let the fleet put the new weights into its engine.

    `advantages` and `scores` say whether the plan has those tables; without them a turn's advantage
    stands for all of its tokens, and old logprobs come from the update's own forward pass. `off_policy`
    takes rows that other weights than the trainer's sampled (`TrainerGroup.update`). `kl_scale` says whether
    the KL coefficients of the loss are adaptive. With `by_role` there are tables of what the update measured
    of each role (`stages.training.roles`). `trust` says whether the model has a trust region, whose state is
    carried from block to block, and `ratios` whether that measures every row: then there is a table of how
    far each message has moved. `stops` says whether it learns from stop decisions too. With a `trial`
    the team plays with each candidate before that is the model's next version, so the stage borrows engines.
    """

    def __init__(
        self,
        model: Model,
        *,
        advantages: bool = False,
        scores: bool = False,
        off_policy: bool = False,
        kl_scale: bool = False,
        by_role: bool = False,
        trust: bool = False,
        ratios: bool = False,
        stops: bool = False,
        trial: Trial | None = None,
    ) -> None:
        self._stops, self.trial = stops, trial
        self.lease: Lease = "trainer" if trial is None else "both"
        self.model, self.off_policy, self._scores, self._kl_scale = model, off_policy, scores, kl_scale
        self.by_role, self.trust, self.ratios = by_role, trust, ratios
        model_id = model.model_id
        self.folder = f"updates/{model_id}"
        self.name = f"update/{model_id}"
        self._partition, self._updates = f"partition/{model_id}", f"updates/{model_id}"
        self._models = f"models/{model_id}"
        kinds = {"partition": True, "token_advantages": advantages, "scores": scores, "kl_scale": kl_scale}
        kinds["stop_rows"] = stops
        tables = [f"{kind}/{model_id}" for kind, is_read in kinds.items() if is_read]
        self._before, self._trust = f"{TRUST_BEFORE}/{model_id}", f"trust/{model_id}"
        self.carried: Mapping[str, str] = {self._before: self._trust} if trust else {}
        self.inputs: Mapping[str, pa.Schema] = {table: schema_of(table) for table in tables} | dict.fromkeys(
            self.carried, TRUST
        )
        self._roles, self._pairs = f"role_updates/{model_id}", f"role_pairs/{model_id}"
        of_roles = {self._roles: ROLE_UPDATES, self._pairs: ROLE_PAIRS} if by_role else {}
        self._ratios, self._trial = f"ratios/{model_id}", f"trial/{model_id}"
        decided = ({self._trust: TRUST} if trust else {}) | ({self._ratios: RATIOS} if ratios else {})
        decided |= {self._trial: TRIAL} if trial is not None else {}
        self.outputs: Mapping[str, pa.Schema] = {
            self._updates: UPDATES,
            self._models: MODELS,
            **of_roles,
            **decided,
        }
        places = {self._updates: "steps", self._models: "models", self._roles: "roles", self._pairs: "pairs"}
        places |= {self._trust: "trust", self._ratios: "ratios", self._trial: "trial"}
        self.places: Mapping[str, str] = {table: places[table] for table in self.outputs}

    def reading(self, *, advantages: bool) -> UpdateStage:
        """The same update, with or without a table of token advantages."""
        return UpdateStage(
            self.model,
            advantages=advantages,
            scores=self._scores,
            off_policy=self.off_policy,
            kl_scale=self._kl_scale,
            by_role=self.by_role,
            trust=self.trust,
            ratios=self.ratios,
            stops=self._stops,
            trial=self.trial,
        )

    def run(
        self, inputs: Mapping[str, TableRef], outputs: Mapping[str, TableSink], context: Context
    ) -> StageResult:
        """Raises RunFailed where the update can't be made; the weights and the tables are then unchanged."""
        partition, model_id = inputs[self._partition], self.model.model_id
        if self.trial is not None:
            context.fleet.players()  # engines start at the model's version: before the trainer moves on
        group = context.fleet.trainer(model_id)
        context.progress.start(f"update {model_id}", partition.rows * group.spec.epochs, "row")
        report: UpdateReport = group.update(
            version=context.fleet.version_of(model_id),
            at=(context.iteration, context.block),
            on_progress=lambda rows, tokens: context.progress.advance(rows, tokens=tokens),
            off_policy=self.off_policy,
            **{
                UPDATE_ARGUMENTS[table.partition("/")[0]]: inputs[table]
                for table in self.inputs
                if table not in self.carried
            },
            trust=state_before(inputs[self._before].read().to_pylist()) if self.trust else None,
        )
        context.progress.finish()
        trial: list[dict[str, Any]] = []
        accounts, notes = [], []
        if self.trial is not None and report.on_trial:
            folder = outputs[self._trial].folder + "-plays"
            report, trial, of_trial, told_trial = self.trial.decided(group, report, folder, context)
            accounts = [of_trial]
            if report.version_after > report.version_before:  # else it is the reason of the rejection
                notes = [f"trial of model {model_id!r}: {told_trial}"]
        weights: Weights | None = None
        if report.version_after > report.version_before:
            # numbers that rejected candidates have spent count: a checkpoint that was due at one is due now
            numbers = range(report.version_before + 1, report.version_after + 1)
            write = group.save if any(map(context.fleet.checkpoint_is_due, numbers)) else group.publish
            weights = write(context.fleet.checkpoint_uri(model_id, report.version_after))
        tables = {
            self._updates: rows_to_table(report.rows(), UPDATES),
            self._models: self._entry(report, weights),
            self._roles: rows_to_table(report.roles, ROLE_UPDATES),
            self._pairs: rows_to_table(report.pairs, ROLE_PAIRS),
            self._trust: rows_to_table([report.trust] if report.trust else [], TRUST),
            self._ratios: rows_to_table(report.ratios, RATIOS),
            self._trial: rows_to_table(trial, TRIAL),
        }
        parts = {name: [outputs[name].write_part(0, tables[name])] for name in self.outputs}
        if weights is not None:
            context.fleet.weights_changed(weights)
        return StageResult(
            parts,
            accounts=[account_of(report, partition.rows), *self._account_of_roles(report), *accounts],
            metrics=_metrics(report),
            notes=[*notes, *_notes(report)],
        )

    def _account_of_roles(self, report: UpdateReport) -> list[Account]:
        """Rows trained on = rows of all roles together, where they are measured."""
        if not self.by_role:
            return []
        roles = [row for row in report.roles if row["kind"] == "summary" and row["branch"] is None]
        rows = sum(row["num_rows"] for row in roles if row["role"] is not None)
        return [Account(f"update → role_updates/{report.model_id}", "turn", report.num_rows, rows)]

    def _entry(self, report: UpdateReport, weights: Weights | None) -> pa.Table:
        """The new version as a `MODELS` row; no row where there is no new version."""
        rows: list[dict[str, Any]] = []
        if weights is not None:
            adapter = self.model.adapter
            rows.append(
                {
                    "iteration": report.iteration,
                    "block": report.block,
                    "model_id": self.model.model_id,
                    "base_id": self.model.base_id,
                    "adapter": json.dumps(dict(adapter)) if adapter is not None else None,
                    "version": weights.version,
                    "parent_version": report.version_before,
                    "uri": weights.uri,
                    "hash": weights.hash,
                }
            )
        return rows_to_table(rows, MODELS)


def account_of(report: UpdateReport, partition_rows: int) -> Account:
    """Rows of the partition = rows trained on + rows excluded."""
    boundary = f"partition/{report.model_id} → update"
    return Account(boundary, "turn", partition_rows, report.num_rows, dict(report.excluded))


def _metrics(report: UpdateReport) -> dict[str, float]:
    values = {name: report.summary.get(name) for name in _METRICS}
    metrics = {name: float(value) for name, value in values.items() if value is not None}
    metrics |= {name: report.measures[name] for name in MEASURES if name in report.measures}
    if report.seconds and not report.skipped:
        metrics["tokens_per_second"] = report.num_forward_tokens / report.seconds
    metrics["skipped"] = float(report.skipped is not None)
    if report.trust is not None and report.skipped is None:
        metrics["rejected"] = float(report.trust["decision"] == REJECTED)
        measured = {"surrogate": report.trust.get("surrogate"), "kl_seq": report.trust.get("per_episode")}
        metrics |= {name: value for name, value in measured.items() if value is not None}
    return metrics


def _notes(report: UpdateReport) -> list[str]:
    """What became of the update, for people, where that is not the usual."""
    if report.skipped:
        return [f"no update of model {report.model_id!r}: {report.skipped}"]
    if report.trust is None or "whole_divergence" not in report.trust:
        return []
    return [told(report.trust)]
