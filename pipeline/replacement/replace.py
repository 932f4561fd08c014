"""A replacement from its first step to its outcome. Each step is done once: the same call again goes on.

    snapshot → the newcomer put in cold → taught → aligned in the team → teammates settle → the gate

All of it happens in a run of its own, which begins as a copy of its parent. If the gate takes the newcomer,
that run is the team with it; if not, the run is put back, and its next iteration is its parent's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from pipeline.replacement.aligning import align_and_settle
from pipeline.replacement.asked import Asked, earned_turns, new_team
from pipeline.replacement.compared import against_before, played_steps, plays_line, shock_line
from pipeline.replacement.gate import passes
from pipeline.replacement.ladder import refuse_impossible
from pipeline.replacement.lessons import pupil_of, whole_weights
from pipeline.replacement.plays import answered, fleet_of, played
from pipeline.replacement.state import State
from pipeline.replacement.team import Team, incumbent_folder
from pipeline.run.cluster import check_gpus
from pipeline.store.differences import plain
from pipeline.store.fork import fork_run, link_tree
from pipeline.store.initial_weights import KEY
from pipeline.store.lock import RunLock
from stages.base import Progress
from stages.partition import PartitionStage
from stages.weights.content import content_fingerprint
from workflows.errors import UsageError

ACCEPTED: Final = "accepted"
ROLLED_BACK: Final = "rolled back"
BEFORE: Final = "before"
NEWCOMER: Final = "newcomer"
_OF_THE_OLD_TEAM: Final = ("best", "peak", "result", "parameters")  # keys of run.json that speak of it

Say = Callable[[str], None]


def run_replacement(
    asked: Asked, progress: Progress, start: Callable[[], None], say: Say, *, signals: bool = True
) -> State:
    """Make the steps that are not done yet, and decide.

    Args:
        asked: what is asked, checked.
        progress: where stages report to.
        start: starts Ray, if it has not; called before anything needs it.
        say: takes a line for each step that is done.
        signals: whether SIGTERM and SIGINT end it.

    Raises:
        UsageError: the newcomer can't take this place, or another replacement was begun in this run.
        RunFailed: plays, lessons or updates failed.
    """
    refuse_impossible(asked.rungs)
    if not asked.run.exists:
        fork_run(asked.parent, asked.run.name)
    asked.run.read_info()
    state = State(asked.run)
    with RunLock(state.folder):
        state.begin(asked.identity)
        if state.outcome is not None:
            return state
        state.write(ladder=[rung.as_dict() for rung in asked.rungs])
        _keep_before(asked, state)
        start()
        check_gpus(asked.old.plan)
        _snapshot(asked, state, progress, say)
        _cold(asked, state, progress, say)
        _lessons(asked, state, say)
        checkpoint = f"{state.folder.url}/{NEWCOMER}" if asked.does("distill") else asked.newcomer
        team, aligning = new_team(asked, checkpoint)
        _adopt(asked, team)
        if asked.does("align") or (asked.does("settle") and asked.teammates):
            align_and_settle(asked, state, team, aligning, progress, say, signals=signals)
        elif asked.does("distill") and state.step("taught_plays") is None:
            with fleet_of(team, asked.run, {**asked.versions, asked.model: 0}, progress) as fleet:
                scores = played(team, fleet, state.folder, "taught", asked.iterations, progress)
            state.keep("taught_plays", {"scores": scores})
        _decide(asked, state, team, say)
    return state


def _keep_before(asked: Asked, state: State) -> None:
    """Keep what a rollback puts back."""
    before = state.folder.child(BEFORE)
    if before.read_text("run.json") is not None:
        return
    link_tree(asked.run.folder.child("checkpoints"), before.child("checkpoints"))
    for name in ("settings.toml", "run.json"):  # run.json last
        text = asked.run.folder.read_text(name)
        assert text is not None, "a fork has both"
        before.write_text(name, text)


def _snapshot(asked: Asked, state: State, progress: Progress, say: Say) -> None:
    if state.step("old") is not None:
        return
    with fleet_of(asked.old, asked.run, asked.versions, progress) as fleet:
        scores = played(asked.old, fleet, state.folder, "old", asked.iterations, progress)
    mean = sum(scores.values()) / len(scores)
    state.keep("old", {"scores": scores, "mean": mean, "metric": asked.old.evaluation.best})
    say(f"the team as it is: {asked.old.evaluation.best} {mean:.3f} on {len(scores)} tasks")


def _cold(asked: Asked, state: State, progress: Progress, say: Say) -> None:
    """The newcomer's replies to stored contexts, and the team with it as it comes."""
    wants_format = asked.does("format") and state.step("format") is None
    is_last = not {"distill", "align", "settle"} & set(asked.section.steps)
    wants_swap = (asked.does("swap") or is_last) and state.step("swap_plays") is None
    if not (wants_format or wants_swap):
        return
    section, versions = asked.section, {**asked.versions, asked.model: 0}
    with fleet_of(asked.cold, asked.run, versions, progress) as fleet:
        if wants_format:
            taught = asked.does("distill")
            count, least = section.format_contexts, section.min_format
            rung = answered(asked.cold, fleet, asked.model, asked.contexts, count, least, taught)
            say(f"format: {rung.found}; expected {rung.expected}")
            refuse_impossible([rung])
            state.keep("format", rung.as_dict())
        if wants_swap:
            scores = played(asked.cold, fleet, state.folder, "swap", asked.iterations, progress)
            state.keep("swap_plays", {"scores": scores})
            say(plays_line(asked, state, "put in cold", scores))


def _lessons(asked: Asked, state: State, say: Say) -> None:
    """Measure the newcomer on stored turns, and teach it."""
    wants_swap = asked.does("swap") and state.step("swap") is None
    wants_lesson = asked.does("distill") and state.step("taught") is None
    if not (wants_swap or wants_lesson):
        return
    plan = asked.cold.plan
    stage = next(s for s in plan.stages if isinstance(s, PartitionStage))
    cut = next(spec for spec in stage.models if spec.model_id == asked.model)
    trainer = plan.trainer_specs[asked.model]
    with pupil_of(trainer, cut, asked.contexts, asked.reading, state.folder) as pupil:
        if wants_swap:
            found = state.keep("swap", pupil.measured("swap").as_dict())
            say(shock_line("direct swap", found))
        if not wants_lesson:
            return
        imitates = asked.reading.own_words
        lesson = earned_turns(asked) if imitates else asked.contexts.taught
        if imitates:
            report = pupil.taught(asked.section, None, lesson)
        else:
            version = asked.versions[asked.model]
            folder, is_adapter = incumbent_folder(asked.run, asked.old, asked.model, version)
            base = asked.old.plan.trainer_specs[asked.model].checkpoint if is_adapter else None
            with whole_weights(folder, base) as teacher:
                report = pupil.taught(asked.section, teacher, lesson)
        target = state.folder.child(NEWCOMER)
        state.folder.remove(NEWCOMER)
        pupil.publish(target)
        shock = pupil.measured("taught").as_dict()
        way = "imitation" if imitates else "mixture"
        found = state.keep(
            "taught", {**shock, "way": way, "rows": len(lesson.rows), "lesson": asdict(report)}
        )
        say(shock_line(f"taught {len(lesson.rows)} stored turns ({way})", found))


def _adopt(asked: Asked, team: Team) -> None:
    """Make the run that of the new team: its identity, its settings, and where the newcomer begins."""
    run, plan = asked.run, team.plan
    if run.info.get("begins", {}).get(asked.model) == asked.begins:
        return
    with RunLock(run.folder):
        for key in _OF_THE_OLD_TEAM:
            run.info.pop(key, None)
        weights = {k: v for k, v in run.info.get(KEY, {}).items() if k.partition(" ")[0] != asked.model}
        folder = plan.trainer_specs[asked.model].checkpoint
        weights[asked.model] = {"folder": folder, "content": content_fingerprint(folder)}
        run.folder.write_text("settings.toml", plan.resolved.toml)
        run.write_info(
            identity=plain(plan.identity),
            regime=plan.models.regime,
            begins={**run.info.get("begins", {}), asked.model: asked.begins},
            replacement={"model": asked.model, "newcomer": asked.newcomer, "outcome": None},
            **{KEY: weights},
        )


def _decide(asked: Asked, state: State, team: Team, say: Say) -> None:
    name, scores = played_steps(state)[-1]
    found = against_before(asked, state, scores)
    stays = passes(found, asked.section.eps)
    outcome = ACCEPTED if stays else ROLLED_BACK
    if stays:
        with RunLock(asked.run.folder):
            asked.run.read_info()
            asked.run.folder.write_text("settings.toml", team.plan.resolved.toml)
            asked.run.write_info(
                replacement={"model": asked.model, "newcomer": asked.newcomer, "outcome": outcome}
            )
    else:
        roll_back(asked, state)
    state.write(gate={**found.as_dict(), "step": name, "eps": asked.section.eps}, outcome=outcome)
    state.folder.remove(BEFORE)
    sign = ">" if stays else "≤"
    say(
        f"gate: the lower bound of the gain is {found.lower:+.3f} {sign} {-asked.section.eps:+.3f}: {outcome}"
    )


def roll_back(asked: Asked, state: State) -> None:
    """Put the run back to where its parent was: iterations, checkpoints, settings and `run.json`."""
    run, before = asked.run, state.folder.child(BEFORE)
    text = before.read_text("run.json")
    settings = before.read_text("settings.toml")
    if text is None or settings is None:
        raise UsageError(f"{before.url} is gone, so the run can't be put back; remove it and replace anew")
    with RunLock(run.folder):
        for index in run.iterations():
            if index >= asked.iterations:
                run.folder.remove(f"iterations/{index:05d}")
        run.folder.remove("checkpoints")
        link_tree(before.child("checkpoints"), run.folder.child("checkpoints"))
        run.folder.write_text("settings.toml", settings)
        run.info = json.loads(text)
        run.write_info(replacement={"model": asked.model, "newcomer": asked.newcomer, "outcome": ROLLED_BACK})
