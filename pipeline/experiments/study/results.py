"""What a study came to: each cell at its best and last, its gains and cost, and what is told from noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean
from typing import Any, Final, Literal

from pipeline.experiments.comparison import cost_of
from pipeline.experiments.study.spec import Cell, Study
from pipeline.experiments.study.statistics import LEVEL, BySeed, Effect, difference, effect_of, holm, score_of
from pipeline.experiments.study.trained import SPARE, Trained, read_trained

At = Literal["best", "last"]
ATS: Final[tuple[At, ...]] = ("best", "last")
UNTRAINED: Final = "the untrained team"
SINGLE: Final = "the control at equal trained tokens"
VOTE_UNTRAINED: Final = "votes of the untrained control"
VOTE_TRAINED: Final = "votes of the trained control"
GAINS: Final = (UNTRAINED, SINGLE, VOTE_UNTRAINED, VOTE_TRAINED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A cell at its best or last checkpoint, on the test split. `gains` are by what it is compared with."""

    score: Effect
    checkpoints: Mapping[int, int]  # by seed: finished iterations
    answer_tokens: float  # sampled tokens of one answer
    gains: Mapping[str, Effect]


@dataclass(frozen=True, slots=True)
class CellResult:
    """What one cell came to. `cost` is that of one run, the mean over seeds."""

    cell: Cell
    seeds: tuple[int, ...]
    untrained: Effect
    best: Outcome
    last: Outcome
    cost: Mapping[str, float]
    is_control: bool

    def at(self, when: At) -> Outcome:
        return self.best if when == "best" else self.last


@dataclass(frozen=True, slots=True)
class Claim:
    """One difference that the study looked at. `corrected` is its chance after Holm's correction."""

    what: str
    than: str
    when: At
    effect: Effect
    corrected: float | None

    @property
    def is_told(self) -> bool:
        """Whether the difference is told from noise."""
        return self.corrected is not None and self.corrected <= LEVEL


@dataclass(frozen=True, slots=True)
class StudyResult:
    """All of it. `trained` are the runs that it was read from, by cell's label and seed."""

    study: Study
    cells: tuple[CellResult, ...]
    claims: tuple[Claim, ...]
    notes: tuple[str, ...]
    trained: Mapping[tuple[str, int], Trained]

    def as_dict(self) -> dict[str, Any]:
        """Plain values: what `study.json` holds."""

        def outcome(one: Outcome) -> dict[str, Any]:
            return asdict(one)

        return {
            "study": self.study.sweep.name,
            "iterations": self.study.section.iterations,
            "seeds": list(self.study.section.seeds),
            "control": self.study.section.control,
            "cells": [
                {
                    "workflow": each.cell.workflow,
                    "regime": each.cell.regime,
                    "seeds": list(each.seeds),
                    "untrained": asdict(each.untrained),
                    "best": outcome(each.best),
                    "last": outcome(each.last),
                    "cost": dict(each.cost),
                }
                for each in self.cells
            ],
            "claims": [
                {
                    "what": claim.what,
                    "than": claim.than,
                    "at": claim.when,
                    **asdict(claim.effect),
                    "corrected": claim.corrected,
                    "told": claim.is_told,
                }
                for claim in self.claims
            ],
            "notes": list(self.notes),
        }


def results_of(study: Study) -> StudyResult:
    """Read what the finished runs of a study have stored; cells without a tested run are noted."""
    split, test = _splits(study)
    trained: dict[tuple[str, int], Trained] = {}
    notes: list[str] = []
    for cell in study.cells:
        for seed in study.section.seeds:
            one = read_trained(study.sweep.root, study.member_of(cell, seed).name, split, test)
            if one is not None:
                trained[cell.label, seed] = one
            else:
                notes.append(f"{cell.label}, seed {seed} has no test yet and is left out")
    reader = _Reader(study, trained, notes)
    cells = tuple(result for cell in study.cells if (result := reader.cell(cell)) is not None)
    claims = tuple(_corrected([*reader.of_gains(cells), *reader.of_regimes()]))
    if len(study.section.seeds) == 1:
        notes.append("one seed: intervals are over tasks alone, and say nothing of other seeds")
    return StudyResult(study, cells, claims, tuple(dict.fromkeys(notes)), trained)


def _splits(study: Study) -> tuple[str, str]:
    """The split that chooses, and the one that is reported."""
    evaluate = study.sweep.base.evaluate
    assert evaluate.test is not None, "a study without a test split is refused when it is read"
    return evaluate.split, evaluate.test.split


@dataclass(frozen=True, slots=True)
class _Reader:
    study: Study
    trained: Mapping[tuple[str, int], Trained]
    notes: list[str]

    def cell(self, cell: Cell) -> CellResult | None:
        runs = self._runs(cell)
        if not runs:
            return None
        costs = [cost_of(run.history) for run in runs.values()]
        names = dict.fromkeys(name for cost in costs for name in cost)
        return CellResult(
            cell,
            tuple(runs),
            score_of({seed: run.scores(run.tested[0]) for seed, run in runs.items()}),
            self._outcome(cell, runs, "best"),
            self._outcome(cell, runs, "last"),
            {name: fmean(cost[name] for cost in costs if name in cost) for name in names},
            self.study.is_control(cell),
        )

    def of_gains(self, cells: Sequence[CellResult]) -> Iterator[Claim]:
        for result in cells:
            for when in ATS:
                for than, effect in result.at(when).gains.items():
                    yield Claim(result.cell.label, than, when, effect, None)

    def of_regimes(self) -> Iterator[Claim]:
        """Each regime of a workflow against each other."""
        for one, other in combinations(self.study.cells, 2):
            runs, others = self._runs(one), self._runs(other)
            if one.workflow != other.workflow or not runs.keys() & others.keys():
                continue
            for when in ATS:
                pair = [
                    {s: run.scores(c) for s, run in each.items() if (c := _checkpoint(run, when)) is not None}
                    for each in (runs, others)
                ]
                if values := _paired(pair[0], pair[1]):
                    yield Claim(one.label, other.label, when, effect_of(values), None)

    def _runs(self, cell: Cell) -> dict[int, Trained]:
        return {
            s: self.trained[cell.label, s]
            for s in self.study.section.seeds
            if (cell.label, s) in self.trained
        }

    def _outcome(self, cell: Cell, runs: Mapping[int, Trained], when: At) -> Outcome:
        checkpoints = {s: c for s, run in runs.items() if (c := _checkpoint(run, when)) is not None}
        scores = {seed: runs[seed].scores(at) for seed, at in checkpoints.items()}
        rivals: dict[str, BySeed] = {UNTRAINED: {s: run.scores(run.tested[0]) for s, run in runs.items()}}
        if not self.study.is_control(cell) and (control := self.study.control_of(cell)) is not None:
            rivals |= self._rivals(cell, control, runs, checkpoints, when)
        gains = {than: effect_of(v) for than, rival in rivals.items() if (v := _paired(scores, rival))}
        tokens = fmean(runs[seed].answer_tokens(at) for seed, at in checkpoints.items())
        return Outcome(score_of(scores), checkpoints, tokens, gains)

    def _rivals(
        self, cell: Cell, control: Cell, runs: Mapping[int, Trained], at: Mapping[int, int], when: At
    ) -> dict[str, BySeed]:
        """The scores of the control by what it is: as trained as the team, or voting as long as the team."""
        single: dict[int, dict[str, float]] = {}
        untrained: dict[int, dict[str, float]] = {}
        voted: dict[int, dict[str, float]] = {}
        reached: list[float] = []  # shares of the team's tokens that the control has sampled
        for seed, rival in self._runs(control).items():
            if seed not in at:
                continue
            budget = runs[seed].tokens(runs[seed].tested[-1])  # what the team's whole training has sampled
            checkpoint = _checkpoint(rival, when, budget)
            if checkpoint is None:
                continue
            single[seed] = dict(rival.scores(checkpoint))
            reached.append(rival.tokens(rival.tested[-1]) / max(budget, 1))
            tokens = runs[seed].answer_tokens(at[seed])
            for votes, point in ((untrained, rival.voted_by(0)), (voted, rival.voted_by(checkpoint))):
                if point is not None:
                    tallies = rival.votes(point, tokens)
                    votes[seed] = {task: t.value for task, t in tallies.items()}
                    if any(t.short for t in tallies.values()):
                        most = max(t.answers for t in tallies.values())
                        self.notes.append(
                            f"{cell.label}: an answer of the team costs {tokens:.0f} tokens, which pays for "
                            f"more than the {most:.0f} independent answers of {control.label}; raise "
                            "evaluate.vote.answers"
                        )
        if reached and min(reached) < 1 - SPARE:
            self.notes.append(
                f"{control.label} has sampled {min(reached):.0%} of the tokens of {cell.label}, so it is "
                "compared at fewer; the same command trains it on, up to study.control_most"
            )
        return {SINGLE: single, VOTE_UNTRAINED: untrained, VOTE_TRAINED: voted}


def _checkpoint(run: Trained, when: At, tokens: float | None = None) -> int | None:
    return run.best(tokens) if when == "best" else run.last(tokens)


def _paired(one: BySeed, other: BySeed) -> dict[int, dict[str, float]]:
    """The differences, for seeds with a task in common."""
    return {seed: by_task for seed, by_task in difference(one, other).items() if by_task}


def _corrected(claims: Sequence[Claim]) -> Iterator[Claim]:
    for claim, chance in zip(claims, holm([claim.effect.chance for claim in claims]), strict=True):
        yield Claim(claim.what, claim.than, claim.when, claim.effect, chance)
