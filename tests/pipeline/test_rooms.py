"""Laws about who in `pipeline` may read what, kept over its syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PIPELINE = Path(__file__).parents[2] / "pipeline"
MAY_READ_SETTINGS = (
    "settings/",
    "cli/",
    "plan/resolve.py",
    "replacement/",
)  # the last makes settings of runs
MOST = 9  # where whole settings go in: to assemble, to plan a replay or a sweep, to rename a run


def whole_settings(tree: ast.AST) -> Iterator[int]:
    """Lines with a parameter or attribute of the type Settings, or with a read of `.settings`."""
    for node in ast.walk(tree):
        annotation = node.annotation if isinstance(node, ast.arg | ast.AnnAssign) else None
        if annotation is not None and "Settings" in _names(annotation):
            yield annotation.lineno
        if isinstance(node, ast.Attribute) and node.attr == "settings":
            yield node.lineno


def _names(annotation: ast.expr) -> set[str]:
    """Every name in an annotation, quoted ones too."""
    names = set()
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= _names(ast.parse(node.value, mode="eval").body)
    return names


def test_builders_take_a_section_or_what_was_resolved_not_the_whole_settings() -> None:
    places = []
    for file in sorted(PIPELINE.rglob("*.py")):
        name = file.relative_to(PIPELINE).as_posix()
        if not name.startswith(MAY_READ_SETTINGS):
            places += [f"{name}:{line}" for line in whole_settings(ast.parse(file.read_text("utf-8")))]
    assert len(places) <= MOST, f"{len(places)} places: {', '.join(places)}; take the section that is read"


def test_the_count_sees_every_way_to_take_whole_settings() -> None:
    source = """
class Plan:
    settings: Settings
    maybe: "Settings | None"
def build(settings: Settings, *, more: schema.Settings = None) -> Settings:
    return plan.settings.run, build(plan.settings)
def other(section: RunSection, settings_toml: str, roles: dict[str, RoleSettings]): ...
"""
    assert sorted(whole_settings(ast.parse(source))) == [3, 4, 5, 5, 6, 6]


def test_overrides_of_sections_are_worked_out_in_one_place() -> None:
    """[models.<id>.ppo], [roles.<name>.ppo] and [models.<id>.critic] are merged in plan/resolve.py alone."""
    readers = set()
    for file in PIPELINE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "validate":
                sections = {arg.id for arg in node.args if isinstance(arg, ast.Name)}
                if sections & {"PpoSection", "CriticSection"}:
                    readers.add(file.relative_to(PIPELINE).as_posix())
    assert readers == {"plan/resolve.py"}
