"""A study as its TOML file says it: settings of a run, and `[study]`, which says what is compared.

    [study]
    iterations = 60
    seeds = [0, 1, 2]

    [[study.workflows]]
    name = "voting"
    use = "voting"
    options = { task = "questions", voters = 3 }

    [[study.workflows]]
    name = "single"                 # the control
    use = "single"
    options = { task = "questions" }
    regimes = ["full", "adapters"]

All other sections are those of `pipeline.toml`, and all cells share them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.experiments.points import Point
from pipeline.experiments.sweep import Member, Sweep
from pipeline.settings.keys import dotted
from pipeline.settings.reading import parse_settings, read_settings
from pipeline.settings.section import validate
from pipeline.settings.study import StudySection
from workflows.errors import UsageError, did_you_mean

_NOT_FOR_A_CELL: Final = ("run", "data", "sharing", "workflow", "study", "tracking")
DEFAULT_VOTE: Final = {"answers": 8}


@dataclass(frozen=True, slots=True)
class Cell:
    """A workflow under a regime: one point of the sweep, one run for each seed."""

    workflow: str
    regime: str
    point: Point

    @property
    def label(self) -> str:
        return self.point.label


@dataclass(frozen=True, slots=True)
class Study:
    """A study before it runs: its section, its cells, and the sweep that trains them."""

    section: StudySection
    cells: tuple[Cell, ...]
    sweep: Sweep

    def is_control(self, cell: Cell) -> bool:
        return cell.workflow == self.section.control

    @property
    def controls(self) -> dict[str, Cell]:
        """The control's cells by regime."""
        return {cell.regime: cell for cell in self.cells if self.is_control(cell)}

    def control_of(self, cell: Cell) -> Cell | None:
        """The control of a team's cell: of its regime, or of full sharing where one role is all there is."""
        controls = self.controls
        return controls.get(cell.regime) or controls.get("full") or next(iter(controls.values()), None)

    def cell_of(self, member: Member) -> Cell:
        return next(cell for cell in self.cells if cell.point is member.point)

    def member_of(self, cell: Cell, seed: int) -> Member:
        return next(m for m in self.sweep.members if m.point is cell.point and m.seed == seed)


def read_study(path: str, overrides: Sequence[str]) -> Study:
    """The study that a file says, checked as far as that goes without assembling its cells.

    Raises:
        UsageError: the file can't be read, or says something that can't work.
    """
    raw = read_settings(path, overrides)
    if not isinstance(raw.get("study"), Mapping):
        raise UsageError(
            f"{path} has no [study] section, so it says nothing to compare; add [study] with iterations and "
            "at least one [[study.workflows]]"
        )
    section: StudySection = validate(StudySection, raw.pop("study"), f"{path}: study")
    _check(section, path)
    _check_evaluation(raw, path)
    vote = raw["evaluate"].pop("vote", None) or dict(DEFAULT_VOTE)
    cells = tuple(_cells(section, vote))
    shared = {key: value for key, value in raw.items() if key not in ("sharing", "workflow")}
    first = section.workflows[0]  # the folder of a sweep keeps settings with a workflow
    base = parse_settings(
        {**shared, "workflow": {"use": first.use, "options": first.options}}, path, overrides
    )
    ordered = sorted(cells, key=lambda cell: cell.workflow == section.control)  # stable: the controls last
    members = tuple(
        Member(f"{base.run.name}-{cell.point.slug}-s{seed}", cell.point, seed)
        for seed in section.seeds
        for cell in ordered
    )
    points = tuple(cell.point for cell in cells)
    sweep = Sweep(base.run.name, shared, base, section.iterations, points, members)
    study = Study(section, cells, sweep)
    for member in members:
        sweep.settings_of(member, {})
    return study


def _cells(section: StudySection, vote: Mapping[str, Any]) -> Iterator[Cell]:
    for workflow in section.workflows:
        for regime in workflow.regimes or section.regimes:
            settings = {**_leaves(section.regime.get(regime, {})), **_leaves(workflow.overrides)}
            if workflow.name == section.control:
                settings |= {**_leaves({"evaluate": {"vote": vote}}), "evaluate.test.when": "always"}
            settings |= _leaves({"workflow": {"use": workflow.use, "options": workflow.options}})
            overrides = [f"{key}={_toml(value)}" for key, value in settings.items()]
            named = {"workflow": workflow.name, "regime": regime}
            label = f"{workflow.name}, {regime}"
            yield Cell(workflow.name, regime, Point(label, {"regime": regime}, tuple(overrides), named))


def _leaves(settings: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Values by dotted key; a table without keys is a value."""
    leaves: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            leaves |= _leaves(value, (*path, key))
        else:
            leaves[dotted([*path, key])] = value
    return leaves


def _toml(value: Any) -> str:
    """A value as one line of TOML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{dotted([key])} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)  # texts, numbers and truth values are those of JSON


def _check(section: StudySection, path: str) -> None:
    names = [workflow.name for workflow in section.workflows]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(
            f"{path}: two [[study.workflows]] are named {doubled!r}; give each a name of its own"
        )
    if len(set(section.seeds)) < len(section.seeds):
        raise UsageError(f"{path}: study.seeds = {list(section.seeds)} has a seed twice; name each once")
    if section.control and section.control not in names:
        raise UsageError(
            f"{path}: study.control = {section.control!r} is not one of the workflows"
            f"{did_you_mean(section.control, names)}; they are: {', '.join(names)}. Name the one that teams "
            "have to beat, or leave the comparison out with an empty study.control"
        )
    for where, settings in [
        *((f"study.workflows {w.name!r}: overrides", w.overrides) for w in section.workflows),
        *((f"study.regime.{name}", settings) for name, settings in section.regime.items()),
    ]:
        if taken := next((key for key in settings if key in _NOT_FOR_A_CELL), None):
            raise UsageError(
                f"{path}: {where} sets {taken!r}, which all cells share or the study sets itself; put it at "
                "the top of the file"
            )


def _check_evaluation(raw: Mapping[str, Any], path: str) -> None:
    """Best and last are told apart by evaluations, and the best is reported on a split that chose nothing."""
    evaluate = raw.get("evaluate", {})
    if not isinstance(evaluate, Mapping) or not evaluate.get("every"):
        raise UsageError(
            f"{path}: a study needs [evaluate] every, the iterations from one checkpoint that may be the "
            "best to the next; set it, for example to a tenth of study.iterations"
        )
    if not evaluate.get("test"):
        raise UsageError(
            f"{path}: a study needs [evaluate] test, a split that chooses no checkpoint, because scores of "
            'the split that chose the best one flatter it; set for example evaluate.test.split = "test"'
        )
