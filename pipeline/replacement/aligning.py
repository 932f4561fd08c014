"""The newcomer is trained among teammates that stay as they are, and then they settle, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.replacement.compared import against_before, newest_shock, plays_line, shock_line
from pipeline.replacement.lessons import Pupil
from pipeline.replacement.plays import played
from pipeline.replacement.team import Team, in_turn
from pipeline.run.session import session
from pipeline.store.finished import Finished
from stages.base import Progress
from stages.partition import PartitionStage

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeline.replacement.asked import Asked
    from pipeline.replacement.state import State
    from pipeline.run.runner import Runner


def align_and_settle(
    asked: Asked,
    state: State,
    team: Team,
    aligning: Team,
    progress: Progress,
    say: Callable[[str], None],
    *,
    signals: bool = True,
) -> None:
    """Iterations of the new run, each at most once.

    Args:
        team: with the newcomer, as it will be.
        aligning: the same with trust regions and the newcomer's anchor.
    """
    with session(in_turn(aligning.plan, [asked.model]), progress, signals=signals) as runner:
        if asked.does("distill") and state.step("taught_plays") is None:
            scores = played(team, runner.fleet, state.folder, "taught", asked.iterations, progress)
            state.keep("taught_plays", {"scores": scores})
            say(plays_line(asked, state, "the team with it", scores))
        if asked.does("align") and not (state.step("align") or {}).get("ended"):
            _align(asked, state, team, runner, progress, say)
        if asked.does("settle") and asked.teammates and state.step("settle") is None:
            _settle(asked, state, team, aligning, runner, progress, say)


def _align(
    asked: Asked, state: State, team: Team, runner: Runner, progress: Progress, say: Callable[[str], None]
) -> None:
    rounds: list[dict[str, Any]] = list((state.step("align") or {}).get("rounds", []))
    ended = _ended(asked, state, rounds, _start(state))
    while not ended:
        index = asked.iterations + len(rounds)
        if runner.run.is_finished(index):
            done = Finished.read(runner.run.iteration(index))
        else:
            done = runner.run_iteration()
        label = f"aligned-{len(rounds):03d}"
        scores = played(team, runner.fleet, state.folder, label, asked.iterations, progress)
        far = _from_start(done, asked.model)
        far = far if far is not None else (rounds[-1]["from_start"] if rounds else 0.0)
        found = against_before(asked, state, scores).as_dict()
        rounds.append({"iteration": index, "scores": scores, "from_start": far, **found})
        ended = _ended(asked, state, rounds, None)
        state.keep("align", {"rounds": rounds, "ended": ended})
        line = plays_line(asked, state, f"iteration {index} of the newcomer alone", scores)
        say(f"{line}; {far:.3g} nats per message from its start")
    shock = _measured(asked, state, runner)
    state.keep("align", {"rounds": rounds, "ended": ended, "shock": shock})
    say(shock_line(f"aligned in {len(rounds)} iterations ({ended})", shock))


def _start(state: State) -> Mapping[str, float] | None:
    """The scores of the team with the newcomer before it is aligned, where it played."""
    for name in ("taught_plays", "swap_plays"):
        if (step := state.step(name)) is not None:
            scores: Mapping[str, float] = step["scores"]
            return scores
    return None


def _ended(
    asked: Asked, state: State, rounds: list[dict[str, Any]], start: Mapping[str, float] | None
) -> str | None:
    """Why the newcomer needs no further iteration; None where it does."""
    newest = rounds[-1] if rounds else None
    if newest is None and start is not None:
        newest = against_before(asked, state, start).as_dict()
    if newest is None:
        return None
    if newest["lost"] <= newest["won"] and newest["gain"] >= 0:
        return "no net regression"
    if newest.get("from_start", 0.0) >= asked.section.radius:
        far = newest["from_start"]
        return f"{far:.3g} nats per message from its start, and the radius is {asked.section.radius:g}"
    if len(rounds) >= asked.section.align_iterations:
        return "the budget of iterations is spent"
    return None


def _settle(
    asked: Asked,
    state: State,
    team: Team,
    aligning: Team,
    runner: Runner,
    progress: Progress,
    say: Callable[[str], None],
) -> None:
    order = settling_order(asked, state)
    rounds = (state.step("align") or {}).get("rounds", [])
    index = asked.iterations + len(rounds)
    runner.plan = in_turn(aligning.plan, order)
    if not runner.run.is_finished(index):
        runner.run_iteration()
    scores = played(team, runner.fleet, state.folder, "settled", asked.iterations, progress)
    state.keep("settle", {"iteration": index, "order": order, "scores": scores})
    say(plays_line(asked, state, f"its teammates settled ({', '.join(order)})", scores))


def settling_order(asked: Asked, state: State) -> list[str]:
    """The teammates that are trained, those first whose stored plays are worth least now."""
    measured = newest_shock(state)
    reaches = sorted(
        measured["teammates"] if measured else [], key=lambda r: (r["prefix"], r["suffix"], r["model"])
    )
    known = [r["model"] for r in reaches if r["model"] in asked.teammates]
    return known + [m for m in asked.teammates if m not in known]


def _measured(asked: Asked, state: State, runner: Runner) -> dict[str, Any]:
    """How far the newcomer is from its predecessor now."""
    stage = next(s for s in asked.cold.plan.stages if isinstance(s, PartitionStage))
    cut = next(spec for spec in stage.models if spec.model_id == asked.model)
    group = runner.fleet.trainer(asked.model)
    cut = replace(cut, mini_batches=1, by_role=False)
    return Pupil(group, cut, asked.contexts, asked.reading, state.folder).measured("aligned").as_dict()


def _from_start(done: Finished, model: str) -> float | None:
    """Nats per message from the newcomer's own start, as its update measured; None where it made no step."""
    table = done.tables.get(f"updates/{model}")
    rows = [] if table is None else [r for r in table.read().to_pylist() if r["kind"] == "summary"]
    if not rows or rows[-1]["kl_reference"] is None or not rows[-1]["num_rows"]:
        return None
    return float(rows[-1]["kl_reference"]) * rows[-1]["num_tokens"] / rows[-1]["num_rows"]
