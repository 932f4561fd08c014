"""The words and sentences of the task sets `reading` and `reading_chains`: people, things, places, forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Form:
    """A way to say where somebody has something, and the question about it."""

    statement: str
    question: str


PEOPLE: Final = (
    "Ana", "Ben", "Carla", "David", "Ella", "Frank", "Grace", "Henry", "Irene", "Jack", "Karen", "Leo",
    "Maria", "Noah", "Olivia", "Paul", "Rita", "Simon", "Tina", "Victor",
)  # fmt: skip
THINGS: Final = (
    "balls", "bells", "books", "boots", "bottles", "buttons", "candles", "cards", "coins", "cups", "forks",
    "glasses", "gloves", "hats", "jars", "keys", "knives", "lamps", "maps", "nails", "paints", "pens",
    "photos", "plates", "ropes", "scarves", "seeds", "shoes", "spoons", "tools",
)  # fmt: skip
PLACES: Final = (
    "attic", "barn", "basement", "bathroom", "bedroom", "cabin", "cellar", "closet", "garage", "garden",
    "hall", "kitchen", "library", "office", "pantry", "shed", "studio", "tent", "tower", "workshop",
)  # fmt: skip
COLOURS: Final = ("black", "blue", "brown", "gray", "green", "orange", "pink", "red", "white", "yellow")
CONTAINERS: Final = ("bag", "basket", "box", "case", "chest", "tin")

FORMS: Final = (
    Form("{person} keeps the {thing} in the {place}.", "Where does {person} keep the {thing}?"),
    Form("{person} left the {thing} in the {place}.", "Where did {person} leave the {thing}?"),
    Form("{person} found the {thing} in the {place}.", "Where did {person} find the {thing}?"),
)
HOLDS: Final = Form(
    "{person} keeps the {thing} in the {place}.", "In which room are the {thing} of {person}?"
)
STANDS: Final = "The {container} is in the {place}."
