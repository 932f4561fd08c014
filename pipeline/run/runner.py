"""Runs iterations and evaluations: lists of stages, each stage at most once, then the record.

What `pipeline.run.execution` finds finished is loaded instead of run. That is all that resume is.
The algorithm itself, in one process and 85 lines: `docs/examples/one_iteration.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

from pipeline.metrics.alarms import alarms
from pipeline.metrics.cost import cost_metrics, total_cost
from pipeline.metrics.falls import peak
from pipeline.metrics.iteration import iteration_metrics, with_measured
from pipeline.metrics.replicas import replica_metrics
from pipeline.plan.assemble import Plan
from pipeline.plan.blocks import Block
from pipeline.plan.capacity import start_problem
from pipeline.plan.engines import greedy_players
from pipeline.plan.evaluation import EvaluationPlan
from pipeline.plan.trainers import changed_loss, spec_of
from pipeline.run.evaluation import evaluated
from pipeline.run.execution import run_stages
from pipeline.run.fleet import Fleet
from pipeline.run.lacking import first_lacking, shared_tables
from pipeline.run.peaks import note_peak, patience_is_spent
from pipeline.run.recorder import Recorder
from pipeline.run.redo import (
    is_trusted,
    position_of,
    redo,
    redo_evaluations,
    redone_notes,
    unfinished_blocks,
)
from pipeline.run.redone_updates import Redone
from pipeline.settings.names import slug
from pipeline.settings.program import again, hint
from pipeline.store.differences import dump
from pipeline.store.evaluated import Evaluated, best_so_far, choosing_number
from pipeline.store.finished import MARK, Finished, by_key, joined, of_block
from pipeline.store.place import IterationStore
from pipeline.store.run import Run, carried_tables, finished_metrics
from pipeline.store.runs import settings_changes
from pipeline.store.updates import are_silent, made_with, newest_version, prune_checkpoints, updates_since
from pipeline.tracking.tracker import Tracker
from pipeline.views.curves import curve_files, points_of
from pipeline.views.output import print_lines
from stages.base import Progress, check_chain
from stages.engines.kinds import engine_class
from stages.greedy import GREEDY
from stages.tables.parquet import write_bytes
from stages.training.spec import TrainerSpec
from stages.update import UpdateStage
from workflows.errors import RunFailed, UsageError

# what to do where an evaluation was made with other settings
EVALUATE_ANEW: Final = (
    "set them back, or make this stage of the evaluation and those after it again with the settings of now "
    "(`{redo}`)"
)


class Runner:
    """Owns the run folder (already locked) and the fleet for as long as iterations go on."""

    def __init__(self, plan: Plan, run: Run, tracker: Tracker, progress: Progress) -> None:
        self.plan, self.run, self.tracker, self.progress = plan, run, tracker, progress
        self._series: dict[int, Mapping[str, float]] | None = None  # metrics of finished iterations
        settings = plan.resolved
        self.recorder = Recorder(run, tracker, settings.tracking, settings.run.seed, settings.toml)
        self.fleet = Fleet(
            checkpoints=run,
            models=plan.models,
            engine_specs=plan.engine_specs,
            trainer_specs={m: replace(s, begins=run.begins(m)) for m, s in plan.trainer_specs.items()},
            player_specs={"train": plan.player_spec, GREEDY: greedy_players(plan.player_spec)},
            num_players=settings.rollout.players,
            checkpoint_every=settings.checkpoints.every,
            version_of=self.version_of,
            redo=self.stored_updates,
            made=self._made,
            progress=progress,
            limits=settings.cluster.limits,
            redo_tolerance=settings.checkpoints.redo_tolerance,
            has_room=cache(lambda: start_problem(plan, settings.cluster.address) is None),
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
        iteration = self.run.iteration(self.next_index())
        blocks: list[Finished] = []
        while (block := self._next_block(iteration.index, blocks)) is not None:
            blocks.append(self._run_block(iteration.at(block.index), block, blocks))
        self._refuse_other_blocks(iteration, len(blocks))
        done = self._record(joined(blocks))
        self._prune_checkpoints()
        self._check_signal(done)
        return done

    def redo(self, stage: str) -> str:
        """Clear a stage of the unfinished iteration and those after it, and say so (`pipeline.run.redo`).

        Raises:
            UsageError: no iteration is unfinished, or it has no such stage.
        """
        places = unfinished_blocks(self.run, self.next_index())
        before: list[Finished] = []
        blocks: list[Block] = []
        for place in places:
            block = self._next_block(place.index, before)
            if block is None:
                break  # another schedule began it: `run_iteration` refuses that
            blocks.append(block)
            before.append(Finished(place, manifests=by_key(place.manifests())))
        having = [
            number for number, block in enumerate(blocks) if position_of(block.stages, stage) is not None
        ]
        lacks = first_lacking(blocks, before, stage)
        newest = max(having, default=len(blocks) - 1) if lacks is None else lacks
        return redo(self.run, places[newest], blocks[newest], stage, places[newest + 1 :])

    def _next_block(self, iteration: int, blocks: Sequence[Finished]) -> Block | None:
        manifests = [{m.stage: m for m in block.manifests.values()} for block in blocks]
        schedule = self.plan.schedule
        if not getattr(schedule, "reads_earlier", False):
            return schedule.next_block(self.plan, iteration, manifests)
        places = self.run.iteration(iteration - 1).blocks() if iteration else []
        earlier = [{m.stage: m for m in place.manifests()} for place in places]
        reading: Any = schedule  # the protocol has no `earlier`, for schedules that do without
        block: Block | None = reading.next_block(self.plan, iteration, manifests, earlier)
        return block

    def _run_block(self, place: IterationStore, block: Block, before: Sequence[Finished]) -> Finished:
        if is_trusted(self.run, place):
            done = of_block(place)
            return replace(done, resumed=tuple(done.manifests))
        named = f", block {place.block}" if place.block else ""
        what = f"iteration {place.index}{named} of run {self.run.name!r}"
        shared = shared_tables(block.stages, block.shared, [each.tables for each in before], what)
        check_chain(block.stages, {name: table.schema for name, table in shared.items()})
        self.fleet.expect(s.model.model_id for s in block.stages if isinstance(s, UpdateStage))
        return run_stages(
            block.stages,
            place,
            block.fingerprints,
            what=what,
            progress=self.progress,
            fleet=self.fleet,
            tables=carried_tables(self.run, place, block.stages) | shared,
            shared=block.shared,
            notes=redone_notes(self.run, place),
        )

    def _refuse_other_blocks(self, iteration: IterationStore, count: int) -> None:
        """Refuse an iteration with more blocks than the schedule has: another one began them."""
        if (blocks := len(iteration.blocks())) > count:
            raise UsageError(
                f"iteration {iteration.index} of run {self.run.name!r} has {blocks} blocks, and with these "
                f"settings it has {count}: another [schedule] began it; set it back to finish the iteration, "
                "or start anew with --new"
            )

    def train(
        self,
        iterations: int,
        evaluation: EvaluationPlan | None = None,
        on_done: Callable[[Finished], bool] = lambda _: False,
        on_evaluated: Callable[[Evaluated], None] = lambda _: None,
    ) -> None:
        """Go on until the run has `iterations` finished iterations, however many it has now.

        With an `evaluation`, the team is evaluated before the first of them, every
        `evaluate.every` iterations, and at the end. `on_done` may end the training by True, and so does
        `evaluate.patience`.
        """
        every = self.plan.resolved.evaluate.every
        ended = False
        while not ended and (index := self.next_index()) < iterations:
            # an iteration that has begun was begun after its evaluation, if it has one
            if evaluation and every and index % every == 0 and index not in self.run.iterations():
                found = self.evaluate(evaluation)
                if patience_is_spent(self.run, self.plan.resolved.evaluate, evaluation.split, index):
                    break  # the last evaluation, below, is this one
                on_evaluated(found)
            ended = on_done(self.run_iteration())
        if evaluation:
            on_evaluated(self.evaluate(evaluation, is_last=True))
        self.recorder.catch_up()
        self.tracker.log_files("plots", self.curves())

    def evaluate(
        self, plan: EvaluationPlan, *, is_last: bool = False, redo_from: str | None = None
    ) -> Evaluated:
        """Evaluate the team as it is after the finished iterations, or load what was found before.

        Evaluations that choose nothing (`plan.also`) come with it where they are due: always, or at the
        first, at the best so far, and where `is_last`.

        Args:
            plan: of the evaluation and of those that come with it.
            is_last: whether no iteration follows.
            redo_from: the stage of these that is made again, with those after it, finished or not.

        Raises:
            UsageError: an iteration is unfinished: some models may have moved and others not.
            RunFailed: too many episodes failed.
        """
        index = self.next_index()
        if index in self.run.iterations():
            raise UsageError(
                f"iteration {index} of run {self.run.name!r} is unfinished; finish it before the team is "
                f"evaluated (`{hint('run iteration')}`)"
            )
        if redo_from is not None:
            print_lines(redo_evaluations(self.run, plan, index, redo_from))
        found = self._evaluated(plan, index)
        found = replace(found, best_so_far=self._keep_best(plan, found))
        if self.recorder.evaluation(found, self.curves):
            self._log_missed_evaluations(plan)
        is_best = self.run.info["best"][plan.split]["iterations"] == index
        also = [self._evaluated(other, index) for other in plan.also if other.always or is_best or is_last]
        for other in also:
            self.recorder.evaluation(other, self.curves)
        return replace(found, also=tuple(also))

    def _evaluated(self, plan: EvaluationPlan, index: int) -> Evaluated:
        """One evaluation, played or loaded."""
        place = self.run.evaluation(plan.label, index)
        purpose = "vote" if plan.is_vote else "evaluate"  # they sample at other temperatures
        self.fleet.player_specs[purpose] = plan.player_spec
        done = run_stages(
            plan.stages,
            place,
            plan.fingerprints,
            what=f"the evaluation on {plan.label!r} after iteration {index - 1} of run {self.run.name!r}",
            progress=self.progress,
            fleet=self.fleet.lend(purpose),
            remedy=EVALUATE_ANEW.replace("{redo}", again("--redo {stage}", "evaluate")),
            notes=redone_notes(self.run, place, plan.label),
        )
        found = evaluated(plan, done)
        place.folder.write_text("result.json", dump(found.as_dict()))
        return found

    def _log_missed_evaluations(self, plan: EvaluationPlan) -> None:
        """Log finished evaluations that the tracker has missed; those made with other settings can't be."""
        for one in (plan, *plan.also):
            for index in self.recorder.missed_evaluations(one.label):
                place = self.run.evaluation(one.label, index)
                if not all(place.manifest(stage) for stage in one.stages):
                    continue
                try:
                    done = run_stages(one.stages, place, one.fingerprints, what="", progress=self.progress)
                except UsageError:
                    continue
                self.recorder.evaluation(evaluated(one, done), self.curves)

    @property
    def _scripted(self) -> set[str]:
        """The models for which something else than weights speaks, as metrics call them."""
        plans = self.plan.resolved.model_plans.values()
        return {
            slug(plan.model_id)
            for plan in plans
            if engine_class(plan.section.engine).said_by(plan.section.engine_options) is not None
        }

    def curves(self) -> dict[str, bytes]:
        """The learning curves up to now, which are also left in the run's folder `report`."""
        files = curve_files(points_of(self.run), self.run.name, settings_changes(self.run))
        for name, data in files.items():
            write_bytes(f"{self.run.folder.url}/report/{name}", data)
        return files

    def close(self) -> None:
        self.fleet.close()

    def version_of(self, model_id: str) -> int:
        """Version after the newest finished update of this model, or of its initial weights."""
        return max(newest_version(self.run.newest_first(), model_id) or 0, self.run.begins(model_id))

    def stored_updates(self, model_id: str, version: int) -> list[dict[str, Any]]:
        """The finished updates that took this model on from `version`: see `updates_since`."""
        return updates_since(self.run.newest_first(), model_id, version, lambda place: place.tables()[0])

    def _made(self, spec: TrainerSpec, arguments: Mapping[str, Any]) -> Redone:
        """How one of `stored_updates` was made, by its manifest."""
        iteration, block = arguments["at"]
        fingerprint, published = made_with(self.run.iteration(iteration).at(block), spec.model_id)
        return Redone(arguments, spec_of(fingerprint, spec), published, changed_loss(fingerprint))

    def _record(self, done: Finished) -> Finished:
        """Measure a finished iteration, log it, and mark it as done."""
        metrics = iteration_metrics(done.tables, done.accounts, done.stage_seconds)
        metrics = with_measured(metrics, done.stage_metrics)
        if self._series is None:
            self._series = finished_metrics(self.run)
        before = total_cost(m for index, m in self._series.items() if index < done.index)
        metrics |= replica_metrics(self.fleet.replica_counts())
        metrics |= cost_metrics(metrics, self.fleet.peak_memory(), before)
        self._series[done.index] = metrics
        series = sorted(self._series.items())
        limits = self.plan.resolved.tracking.alarms
        trained = [m.model_id for m in self.plan.models.trainable]
        versions = note_peak(self.run, done, peak(series, limits.iterations), trained, self.version_of)
        raised = alarms(series, limits, self._scripted, versions)
        done = replace(done, metrics=metrics, alarms=tuple(raised))
        self.recorder.iteration(done)
        done.store.folder.write_text(
            MARK,
            dump(
                {
                    "seconds": done.seconds,
                    "metrics": metrics,
                    "alarms": [alarm.as_dict() for alarm in raised],
                }
            ),
        )
        return done

    def _keep_best(self, plan: EvaluationPlan, found: Evaluated) -> str:
        """Note the best evaluation of its split, and make sure of a whole checkpoint of what it was of.

        A tie leaves the earlier one, as early stopping does: a score has to get better to count, and of two
        teams that are as good the one that moved less from its start is kept. Where a greedy score jumps
        about, the best of many is a lucky one: it chooses a checkpoint, and is no estimate of how good that
        is.

        Returns:
            A sentence for people: which evaluation is the best now, and why.
        """
        name, value = choosing_number(found.scores, plan.best, plan.best_by)
        best = dict(self.run.info.get("best", {}))
        before = best.get(plan.split)
        redone = before and before["metric"] == name and before["iterations"] == found.index
        if before and before["metric"] == name and before["value"] >= value and not redone:
            return best_so_far(name, value, found.index, before)
        self.fleet.save_checkpoints()
        versions = {m.model_id: self.version_of(m.model_id) for m in self.plan.models.trainable}
        best[plan.split] = {
            "metric": name,
            "value": value,
            "iterations": found.index,
            "versions": versions,
        }
        self.run.write_info(best=best)
        return best_so_far(name, value, found.index, None)

    def _prune_checkpoints(self) -> None:
        """Keep the newest whole checkpoints, the best ones, those of the highest mean return, and the weights
        that a model stands at."""
        keep = self.plan.resolved.checkpoints.keep
        best = [*self.run.info.get("best", {}).values(), self.run.info.get("peak", {"versions": {}})]
        for model in self.plan.models.trainable:
            also = {self.version_of(model.model_id), *(b["versions"].get(model.model_id) for b in best)}
            prune_checkpoints(self.run, model.model_id, keep, also)

    def check_trained(self) -> None:
        """Fail a run none of whose iterations has trained on anything.

        Raises:
            RunFailed: every advantage of every model was zero, in all iterations that are finished.
        """
        trained = [m.model_id for m in self.plan.models.trainable]
        indices = [index for index in self.run.iterations() if self.run.is_finished(index)]
        newest_first = (self.run.iteration(index) for index in reversed(indices))
        if indices and trained and are_silent(newest_first, trained, len(indices)):
            raise RunFailed(
                f"run {self.run.name!r} has trained on nothing: in all of its {len(indices)} iterations "
                "every advantage was zero, so no weights moved; they are kept, and the next call goes on "
                f"after them. Look at the rewards (`{hint('show')}`), raise rollout.group_size or the "
                "temperature"
            )

    def _check_signal(self, done: Finished) -> None:
        """No advantage in any model for too many iterations in a row is a broken reward, not bad luck."""
        limit = self.plan.resolved.run.max_iterations_without_signal
        newest_first = (self.run.iteration(index) for index in range(done.index, -1, -1))
        if not are_silent(newest_first, [m.model_id for m in self.plan.models.trainable], limit):
            return
        raise RunFailed(
            f"{limit} iterations in a row had no signal: every advantage was zero, so no weights moved; look "
            f"at the rewards (`{hint('show')}`), raise rollout.group_size or the temperature"
        )
