"""The pages of `show` for a stored iteration, evaluation or replay: its summary and some of its episodes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from pipeline.metrics.iteration import iteration_metrics, with_measured
from pipeline.metrics.signs import Alarm
from pipeline.store.effects import effects_of
from pipeline.store.episodes import Played, find_episode, sample_episodes
from pipeline.store.finished import Finished
from pipeline.store.run import Run
from pipeline.store.runs import settings_changes
from pipeline.store.shelf import Shelf, newer_unfinished
from pipeline.views.files import update_summaries
from pipeline.views.output import print_pages
from pipeline.views.render import IterationView, evaluation_table, summary, summary_dict
from pipeline.views.summary import places_of
from pipeline.views.transcript import transcript, transcript_dict
from stages.players.actor import failures
from stages.rollout import causes, merged_failures
from workflows.errors import UsageError

EPISODES: Final = 3  # in the list, unless --episodes says another number
_PLAYED: Final = ("episodes", "turns")  # what is measured of an evaluation


def print_place(
    shelf: Shelf, index: int | None, *, episode: str | None, episodes: int, full: bool, as_json: bool
) -> None:
    """Print an iteration or evaluation, the newest by default, with some of its episodes; or one episode
    alone.

    Raises:
        UsageError: there is no such iteration or evaluation, or no such episode in it.
    """
    place = _place(shelf, index, episode)
    if episode is not None:
        shown = [_found(place, shelf.title(place.index), episode, full)]
        effects = effects_of(shelf.run, place, frozenset([episode]))
        mark = [] if place.whole else [Text(f"{shelf.title(place.index)} is unfinished", "yellow")]
        data = transcript_dict(shown[0]) | ({} if place.whole else {"unfinished": True})
        data |= {"interventions": [row for rows in effects.values() for row in rows]} if effects else {}
        by_turn = {index: rows for (_, index), rows in effects.items()}
        print_pages([*mark, transcript(shown[0], full=full, effects=by_turn)], data, as_json)
        return
    view = stored_view(shelf, place)
    if index is None and (newer := newer_unfinished(shelf, place.index)):
        view = replace(view, notes=[*view.notes, newer])
    shown = sample_episodes(place.tables, episodes, full=full) if "episodes" in place.tables else []
    pages: list[RenderableType] = [summary(view)]
    data = summary_dict(view)
    if shelf.split is not None and (scores := _scores(place)):
        counts = {n: value for of_stage in place.stage_metrics.values() for n, value in of_stage.items()}
        pages.insert(0, evaluation_table(shelf.split, place.index, scores, counts))
        data |= {"scores": scores}
    for played in shown:
        pages += [Text(), transcript(played, full=full)]
    print_pages(pages, data | {"episodes": [transcript_dict(p) for p in shown]}, as_json)


def stored_view(shelf: Shelf, place: Finished) -> IterationView:
    """The summary of what is stored, computed from its tables."""
    run, index = shelf.run, place.index
    # the tables of a replay are partly its run's, whose stages took their time then
    anew = replace(place, manifests={k: m for k, m in place.manifests.items() if k not in place.inherited})
    seconds, notes, accounts = anew.stage_seconds, anew.notes, place.accounts
    if not place.whole:
        notes.append(f"this {shelf.kind} is unfinished; finished stages: {', '.join(seconds) or 'none'}")
    if place.begun:
        notes.append(begun_note(place))
    if shelf.split is None and shelf.replay is None:
        notes += [f"settings changed before it: {what}" for at, what in settings_changes(run) if at == index]
    where = {"tables": place.store.folder.url}
    alarms: list[str] = []
    if shelf.replay is not None:
        checkpoints = f"{run.folder.url}/replays/{shelf.replay}/checkpoints"
        where |= {"checkpoints": checkpoints} if any(n.startswith("updates/") for n in place.tables) else {}
    elif shelf.split is None:
        where = places_of(run, index, run.info.get("tracker", {}).get("link"))
        alarms = [str(alarm) for alarm in stored_alarms(run, index)]
    shown = (
        place.measured if shelf.split is None else {n: place.tables[n] for n in _PLAYED if n in place.tables}
    )
    metrics = iteration_metrics(shown, accounts, seconds)
    if shelf.split is None:
        metrics = with_measured(metrics, place.stage_metrics)
    return IterationView(
        run=shelf.name,
        iteration=index,
        title=shelf.title(index),
        metrics=metrics,
        accounts=accounts,
        updates=update_summaries(place.tables),
        seconds=seconds,
        notes=notes,
        alarms=alarms,
        where=where,
    )


def begun_note(place: Finished) -> str:
    """What an unfinished rollout has so far: its episodes, and why some failed."""
    plays = place.begun["episodes"]
    columns = ["episode_id", "status", "stop_reason", "error"]
    ends = [row for k in range(len(plays.parts)) for row in plays.read_part(k, columns).to_pylist()]
    kinds = merged_failures([failures(ends)])
    failed = sum(kind["count"] for kind in kinds)
    note = f"of its unfinished rollout, {len(ends)} episodes are there; {failed} of them failed"
    return f"{note}: {causes(kinds)}" if failed else note


def stored_alarms(run: Run, index: int) -> list[Alarm]:
    """The alarms that there were after a finished iteration."""
    text = run.iteration(index).folder.read_text("done.json")
    return [Alarm(**raw) for raw in json.loads(text).get("alarms", ())] if text else []


def _place(shelf: Shelf, index: int | None, episode: str | None) -> Finished:
    """The place of `index`, else the one that the episode is of, else the newest."""
    head = (episode or "").partition("/")[0].partition(".")[0]  # "00000/…", or "00000.1/…" of block 1
    if index is None and head.isdigit():
        index = int(head)
    return shelf.place(shelf.chosen(index))


def _scores(place: Finished) -> list[dict[str, Any]]:
    scores: list[dict[str, Any]] = json.loads(place.store.folder.read_text("result.json") or "{}").get(
        "scores", []
    )
    return scores


def _found(place: Finished, title: str, episode: str, full: bool) -> Played:
    there = "episodes" in place.tables
    played = find_episode(place.tables, episode, full=full) if there else None
    if played is None:
        some = [str(p.episode["episode_id"]) for p in sample_episodes(place.tables, 3)] if there else []
        raise UsageError(
            f"{title} has no episode {episode!r}; it has, for example: {', '.join(some) or 'none'}"
        )
    return played
