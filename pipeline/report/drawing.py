"""The workflow's graph as SVG: the steps as they were declared, with what ran at each.

`run.json` has the declared graph. Where it does not (runs of an earlier version), or where an async
function decides in Python what comes next, the graph is read off the turns: who read whose output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, Final
from xml.etree import ElementTree as Xml

from pipeline.report.layout import COLUMN_GAP, HEIGHT, WIDTH, Point, lay_out
from pipeline.views.render import number, visible
from workflows.vocabulary import Event

Row = Mapping[str, Any]
PALETTE_SIZE: Final = 8  # colours of roles in the style sheet
_NAME, _WHAT, _LABEL = 22, 29, 32  # characters that fit
_LETTER: Final = 5.6  # pixels of a letter of a label
ACTORS: Final[Mapping[str, str | None]] = {Event.LLM: "role", Event.TOOL: "tool", Event.CONTROL: None}
"""For each event the column of `turns` that says who acted; a step is drawn in the style of its event."""


def graph_of(declared: Row | None, turns: Sequence[Row]) -> dict[str, Any]:
    """`steps` and `edges` as `workflows.draw.drawing` has them, each with how often it ran (`ran`).

    `observed` says that the edges are read off the turns.
    """
    steps_ran = Counter(turn["step"] for turn in turns if "step" in turn)
    edges_ran = _edges_that_ran(turns)
    if declared and declared["edges"]:
        steps = [{**step, "ran": steps_ran[step["name"]]} for step in declared["steps"]]
        return {"observed": False, "steps": steps, "edges": [dict(edge) for edge in declared["edges"]]}
    known = {step["name"]: step for step in (declared or {}).get("steps", ())}
    order = _in_order_of_appearance(turns)
    names = [*order, *(name for name in known if name not in steps_ran)]
    steps = [{**known.get(n, _seen_step(n, turns)), "ran": steps_ran[n]} for n in names]
    rank = {name: i for i, name in enumerate(names)}
    edges = [
        {
            "source": source,
            "target": target,
            "label": f"{ran:,}×",
            "conditional": False,
            "back": rank[target] <= rank[source],
        }
        for (source, target), ran in sorted(edges_ran.items(), key=lambda e: (rank[e[0][0]], rank[e[0][1]]))
    ]
    return {"observed": True, "steps": steps, "edges": edges}


def svg(graph: Row, roles: Sequence[str]) -> str:
    """The drawing. Names are text nodes, and its colours come from the page's style sheet."""
    steps, edges = graph["steps"], graph["edges"]
    # between two columns there is room for the longest label of a forward edge
    longest = max((len(_short(e["label"], _LABEL)) for e in edges if not e["back"]), default=0)
    gap = max(COLUMN_GAP, longest * _LETTER + 26)
    layout = lay_out([s["name"] for s in steps], [(e["source"], e["target"]) for e in edges], gap)
    root = Xml.Element(
        "svg",
        {
            "class": "graph",
            "viewBox": f"0 0 {layout.width:.0f} {layout.height:.0f}",
            "width": f"{layout.width:.0f}",
            "height": f"{layout.height:.0f}",
            "role": "group",
            "aria-label": "The workflow: its steps, and what follows what",
        },
    )
    _add_arrow(root)
    for i, (edge, points) in enumerate(zip(edges, layout.paths, strict=True)):
        _add_edge(root, edge, *(_bend(points) if i in layout.back else _curve(points)))
    for step in steps:
        _add_step(root, step, layout.centres[step["name"]], roles)
    return Xml.tostring(root, encoding="unicode")


def _edges_that_ran(turns: Sequence[Row]) -> Counter[tuple[str, str]]:
    step_of = {(turn["episode"], turn["turn_index"]): turn.get("step") for turn in turns}
    edges: Counter[tuple[str, str]] = Counter()
    for turn in turns:
        for parent in turn.get("parents", ()):
            source = step_of.get((turn["episode"], parent))
            if source is not None and "step" in turn:
                edges[source, turn["step"]] += 1
    return edges


def _in_order_of_appearance(turns: Sequence[Row]) -> list[str]:
    """Steps by where in an episode they first appear, on average."""
    first: dict[tuple[int, str], int] = {}
    for turn in turns:
        if "step" in turn:
            first.setdefault((turn["episode"], turn["step"]), turn["turn_index"])
    places: dict[str, list[int]] = {}
    for (_, step), index in first.items():
        places.setdefault(step, []).append(index)
    return sorted(places, key=lambda step: (fmean(places[step]), step))


def _seen_step(name: str, turns: Sequence[Row]) -> dict[str, Any]:
    turn = next((t for t in turns if t.get("step") == name), {})
    kind = turn.get("event", Event.CONTROL)
    actor = ACTORS.get(kind)
    what = f"{actor} {turn.get(actor)}" if actor else str(kind)
    return {"name": name, "what": what, "kind": kind, "branches": bool(turn.get("branch"))}


def role_of(step: Row) -> str | None:
    """The role that speaks at a step, from its line `role <name>, …`."""
    what = str(step["what"])
    return what.removeprefix("role ").split(",")[0] if what.startswith("role ") else None


def _add_arrow(root: Xml.Element) -> None:
    definitions = Xml.SubElement(root, "defs")
    size = {"viewBox": "0 0 8 8", "refX": "7", "refY": "4", "markerWidth": "7", "markerHeight": "7"}
    marker = Xml.SubElement(definitions, "marker", {"id": "arrow", "orient": "auto", **size})
    Xml.SubElement(marker, "path", {"d": "M0 0 L8 4 L0 8 z", "class": "arrow"})


def _add_edge(root: Xml.Element, edge: Row, path: str, middle: Point) -> None:
    style = "edge conditional" if edge["conditional"] else "edge"
    Xml.SubElement(root, "path", {"class": style, "d": path, "marker-end": "url(#arrow)"})
    if edge["label"]:
        x, y = middle
        label = Xml.SubElement(root, "text", {"class": "label", "x": f"{x:.0f}", "y": f"{y - 5:.0f}"})
        label.text = _short(visible(edge["label"]), _LABEL)


def _add_step(root: Xml.Element, step: Row, centre: Point, roles: Sequence[str]) -> None:
    x, y = centre[0] - WIDTH / 2, centre[1] - HEIGHT / 2
    role = role_of(step)
    colour = f" role-{roles.index(role) % PALETTE_SIZE}" if role in roles else ""
    name = visible(step["name"])
    box = Xml.SubElement(
        root, "g", {"class": f"step {step['kind']}{colour}", "data-step": step["name"], "tabindex": "0"}
    )
    title = Xml.SubElement(box, "title")
    title.text = f"{name}: {visible(step['what'])}; {number(step['ran'])} turns here"
    if step["branches"]:
        _add_box(box, x + 4, y + 4)
    _add_box(box, x, y)
    Xml.SubElement(
        box, "rect", {"class": "stripe", "x": f"{x}", "y": f"{y}", "width": "5", "height": f"{HEIGHT}"}
    )
    for text, style, dx, dy in (
        (_short(name, _NAME), "name", 14, 21),
        (_short(visible(step["what"]), _WHAT), "what", 14, 38),
    ):
        line = Xml.SubElement(box, "text", {"class": style, "x": f"{x + dx:.0f}", "y": f"{y + dy:.0f}"})
        line.text = text
    count = Xml.SubElement(box, "text", {"class": "count", "x": f"{x + WIDTH - 8:.0f}", "y": f"{y + 21:.0f}"})
    count.text = number(step["ran"])


def _add_box(parent: Xml.Element, x: float, y: float) -> None:
    place = {"x": f"{x}", "y": f"{y}", "width": f"{WIDTH}", "height": f"{HEIGHT}", "rx": "6"}
    Xml.SubElement(parent, "rect", {"class": "box", **place})


def _curve(points: Sequence[Point]) -> tuple[str, Point]:
    """A path to the right that is level at each point, and the middle of it."""
    path = f"M{points[0][0]:.0f} {points[0][1]:.0f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        half = (x0 + x1) / 2
        path += f" C{half:.0f} {y0:.0f} {half:.0f} {y1:.0f} {x1:.0f} {y1:.0f}"
    (x0, y0), (x1, y1) = points[(len(points) - 1) // 2], points[(len(points) - 1) // 2 + 1]
    return path, ((x0 + x1) / 2, (y0 + y1) / 2)


def _bend(points: Sequence[Point]) -> tuple[str, Point]:
    """A path that leads back below the steps, and the lowest place of it."""
    (x0, y0), (_, low), _, (x1, y1) = points
    path = f"M{x0:.0f} {y0:.0f} C{x0:.0f} {low:.0f} {x1:.0f} {low:.0f} {x1:.0f} {y1:.0f}"
    return path, ((x0 + x1) / 2, (y0 + y1) / 8 + 0.75 * low)


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
