"""Runs iterations: the stages of a plan in order, each at most once, then the record.

There is no training loop here: an iteration is the plan's list of stages, and a stage that has a
manifest is loaded instead of run. That is all that resume is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline import store
from pipeline.artifacts import iteration_files
from pipeline.assemble import Plan
from pipeline.fleet import Fleet
from pipeline.metrics import iteration_metrics
from pipeline.settings import settings_toml
from pipeline.store import IterationStore, Manifest, Run
from pipeline.tracking import Tracker
from stages.base import Account, Context, Progress, Stage
from stages.tables import TableRef
from workflows.errors import RunFailed, UsageError


@dataclass(slots=True)
class Finished:
    """One finished iteration as the summary needs it."""

    index: int
    tables: dict[str, TableRef]
    manifests: dict[str, Manifest]
    metrics: dict[str, float]
    seconds: float
    resumed: list[str] = field(default_factory=list)  # stages that were finished before

    @property
    def accounts(self) -> list[Account]:
        return [a for m in self.manifests.values() for a in m.accounts]

    @property
    def notes(self) -> list[str]:
        return [n for m in self.manifests.values() for n in m.notes]


class Runner:
    """Owns the run folder (already locked) and the fleet for as long as iterations go on."""

    def __init__(self, plan: Plan, run: Run, tracker: Tracker, progress: Progress) -> None:
        self.plan, self.run, self.tracker, self.progress = plan, run, tracker, progress
        settings = plan.settings
        self.fleet = Fleet(
            run=run,
            models=plan.models,
            engine_specs=plan.engine_specs,
            trainer_specs=plan.trainer_specs,
            player_spec=plan.player_spec,
            num_players=settings.rollout.players,
            checkpoint_every=settings.checkpoints.every,
            version_of=self.version_of,
            redo=self.stored_partitions,
            progress=progress,
        )

    def next_index(self) -> int:
        """The unfinished iteration if there is one, else the one after the last."""
        indices = self.run.iterations()
        unfinished = [i for i in indices if not self.run.is_finished(i)]
        return unfinished[0] if unfinished else (indices[-1] + 1 if indices else 0)

    def run_iteration(self) -> Finished:
        """Finish the unfinished iteration, or run the next one.

        Raises:
            RunFailed: nothing could be trained on, or a budget of failures was spent.
            UsageError: settings changed in a way that the finished stages contradict.
        """
        index = self.next_index()
        started = time.monotonic()
        iteration = self.run.iteration(index)
        self._check_fingerprints(iteration)
        done = Finished(index, {}, {}, {}, 0.0)
        for stage in self.plan.stages:
            self._run_stage(stage, iteration, done)
        done.seconds = time.monotonic() - started
        self._record(iteration, done)
        self._prune_checkpoints()
        self._check_signal(done)
        return done

    def close(self) -> None:
        self.fleet.close()

    def version_of(self, model_id: str) -> int:
        """Version after the newest finished update of this model; 0 for the initial weights."""
        for index in reversed(self.run.iterations()):
            manifest = self.run.iteration(index).manifest_at(f"updates/{model_id}")
            if manifest is not None:
                return int(manifest.metrics["version_after"])
        return 0

    def stored_partitions(self, model_id: str, version: int) -> list[tuple[int, TableRef]]:
        """Partitions of the finished updates that took this model on from `version`, in order."""
        out = []
        for index in self.run.iterations():
            manifest = self.run.iteration(index).manifest_at(f"updates/{model_id}")
            if manifest is None or manifest.metrics["version_before"] < version:
                continue
            if manifest.metrics["version_after"] == manifest.metrics["version_before"]:
                continue
            tables, _ = store.stored_tables(self.run, index)
            out.append((index, tables[f"partition/{model_id}"]))
        return out

    def _run_stage(self, stage: Stage, iteration: IterationStore, done: Finished) -> None:
        inputs = {t: done.tables[t] for t in stage.inputs}
        manifest = iteration.manifest(stage)
        if manifest is not None:
            _check_inputs(stage, manifest, inputs)
            done.resumed.append(stage.name)
        else:
            manifest = self._execute(stage, iteration, inputs)
        done.manifests[stage.name] = manifest
        done.tables.update(iteration.refs(stage, manifest))

    def _execute(self, stage: Stage, iteration: IterationStore, inputs: Mapping[str, TableRef]) -> Manifest:
        self._prepare_folder(stage, iteration, inputs)
        context = Context(iteration.index, self.progress, self.fleet)
        started = time.monotonic()
        result = stage.run(inputs, iteration.sinks(stage), context)
        for account in result.accounts:
            account.check()
        seconds = time.monotonic() - started
        return iteration.commit(stage, result, self.plan.fingerprints[stage.name], inputs, seconds)

    def _prepare_folder(
        self, stage: Stage, iteration: IterationStore, inputs: Mapping[str, TableRef]
    ) -> None:
        """Clear what an unfinished run of the stage left, unless the stage commits piece by piece and
        the pieces were made from the same inputs with the same settings."""
        folder = iteration.folder.child(stage.folder)
        mark = store.to_mark(self.plan.fingerprints[stage.name], inputs)
        begun = folder.read_text("begun.json")
        if begun is None or not getattr(stage, "resumable", False):
            iteration.clear(stage)
        elif begun != mark:
            difference = store.differences(store.from_mark(begun), store.from_mark(mark))
            raise UsageError(
                f"iteration {iteration.index} of run {self.run.name!r} has begun stage {stage.name!r} with "
                f"other settings: {difference}; set them back to finish it, or start anew with --new"
            )
        folder.write_text("begun.json", mark)

    def _check_fingerprints(self, iteration: IterationStore) -> None:
        for stage in self.plan.stages:
            manifest = iteration.manifest(stage)
            if manifest is None:
                continue
            now = store.plain(self.plan.fingerprints[stage.name])
            if manifest.fingerprint != now:
                raise UsageError(
                    f"iteration {iteration.index} of run {self.run.name!r} is unfinished, and its stage "
                    f"{stage.name!r} was done with other settings: "
                    f"{store.differences(manifest.fingerprint, now)}; set them back to finish it, or start "
                    "anew with --new"
                )

    def _record(self, iteration: IterationStore, done: Finished) -> None:
        seconds = {name: m.seconds for name, m in done.manifests.items()}
        done.metrics = iteration_metrics(done.tables, done.accounts, seconds)
        if iteration.folder.read_text("tracked.json") is None:
            # its time is the tables', so that logging it again after a kill gives the same point
            at = max(m.finished_at for m in done.manifests.values())
            if self.tracker.log_iteration(done.index, done.metrics, lambda: self._files(done), at):
                iteration.folder.write_text("tracked.json", "{}")
        iteration.folder.write_text("done.json", store.dump({"seconds": done.seconds}))

    def _files(self, done: Finished) -> dict[str, bytes]:
        settings = self.plan.settings
        count = settings.tracking.sample_episodes
        return iteration_files(done.tables, done.accounts, settings_toml(settings), count)

    def _prune_checkpoints(self) -> None:
        """Keep the newest whole checkpoints, and of weights alone those that a model stands at."""
        keep = self.plan.settings.checkpoints.keep
        for model in self.plan.models.trainable:
            kept = {*self.run.checkpoint_versions(model.model_id)[-keep:], self.version_of(model.model_id)}
            for version in set(self.run.weights_versions(model.model_id)) - kept:
                self.run.folder.remove(f"checkpoints/{model.model_id}/{version:05d}")

    def _check_signal(self, done: Finished) -> None:
        """No advantage in any model for too many iterations in a row is a broken reward, not bad luck."""
        limit = self.plan.settings.run.max_iterations_without_signal
        if done.index + 1 < limit:
            return
        for index in range(done.index + 1 - limit, done.index + 1):
            for model in self.plan.models.trainable:
                manifest = self.run.iteration(index).manifest_at(f"updates/{model.model_id}")
                if manifest and manifest.metrics["version_after"] > manifest.metrics["version_before"]:
                    return
        raise RunFailed(
            f"{limit} iterations in a row had no signal: every advantage was zero, so no weights moved; look "
            "at the rewards (`python -m pipeline show`), raise rollout.group_size or the temperature"
        )


def _check_inputs(stage: Stage, manifest: Manifest, inputs: Mapping[str, TableRef]) -> None:
    now = store.input_hashes(inputs)
    if manifest.inputs != now:
        raise UsageError(
            f"stage {stage.name!r} was made from other tables than are there now: "
            f"{store.differences(manifest.inputs, now)}; remove {stage.folder!r} and the folders of later "
            "stages in this iteration to compute them again"
        )
