"""The chain game by enumeration: what updates promised, what they gained, and how far contexts moved.

A unit's policy is a table: for each fact and each word that may come in, the chances of the words that go
out (`Policies`). With one for each unit, the law of every place of the chain and the value of every word
follow by two sweeps over all tasks, without sampling. So a gap here has no noise of episodes in it.

Shapes: T tasks (all starts and facts), P places of the chain, F facts, M texts of a word, in and out alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.learning.chain import COLOURS, FACTS, PROMPT

TEMPERATURE = 2.0  # of the plays, as in teams.toml

Floats = npt.NDArray[np.float64]
Policies = Mapping[str, Floats]
"""By unit: chances [F, M, M] of what goes out, by its fact and by what comes in."""


@dataclass(frozen=True)
class Chain:
    """The game of so many units, each of which speaks once a round. `texts` are the M texts of a word."""

    units: int
    texts: tuple[str, ...]
    rounds: int = 1

    @cached_property
    def facts(self) -> npt.NDArray[np.int64]:
        """[T, units]."""
        return np.array(list(product(range(len(FACTS)), repeat=self.units)) * len(COLOURS))

    @cached_property
    def right(self) -> npt.NDArray[np.int64]:
        """[T, P]: the text that is right at each place."""
        starts = np.repeat(np.arange(len(COLOURS)), len(FACTS) ** self.units)
        moved = np.cumsum(np.tile(self.facts, self.rounds), axis=1)
        places = np.array([self.texts.index(colour) for colour in COLOURS])
        return places[(starts[:, None] + moved) % len(COLOURS)]

    @cached_property
    def start(self) -> Floats:
        """[T, M]: the law of what comes in at the first place."""
        starts = np.repeat(np.arange(len(COLOURS)), len(FACTS) ** self.units)
        places = np.array([self.texts.index(colour) for colour in COLOURS])
        return np.eye(len(self.texts))[places[starts]]

    @property
    def places(self) -> range:
        return range(self.units * self.rounds)

    def at(self, unit: str) -> list[int]:
        """The places at which a unit speaks."""
        return [place for place in self.places if f"unit{place % self.units}" == unit]

    def kernel(self, policies: Policies, place: int) -> Floats:
        """[T, M, M]: what goes out at a place by what comes in."""
        unit = place % self.units
        return policies[f"unit{unit}"][self.facts[:, unit]]

    def contexts(self, policies: Policies) -> list[Floats]:
        """For each place [T, M]: the law of what comes in."""
        laws = [self.start]
        for place in self.places:
            laws.append(np.einsum("tm,tma->ta", laws[-1], self.kernel(policies, place)))
        return laws[:-1]

    def values(self, policies: Policies) -> list[Floats]:
        """For each place [T, M]: what a word that goes out there earns, there and later, of the return."""
        after = np.zeros((len(self.facts), len(self.texts)))
        values: list[Floats] = []
        for place in reversed(self.places):
            earned = np.eye(len(self.texts))[self.right[:, place]] / len(self.places)
            values.append(earned + after)
            after = np.einsum("tma,ta->tm", self.kernel(policies, place), values[-1])
        return values[::-1]

    def score(self, policies: Policies, tasks: npt.NDArray[np.bool_] | None = None) -> float:
        """The mean return of a team over all tasks, or over those of a mask [T]."""
        law, value = self.contexts(policies)[0], self.values(policies)[0]
        of_tasks = np.einsum("tm,tma,ta->t", law, self.kernel(policies, 0), value)
        return float(of_tasks.mean() if tasks is None else of_tasks[tasks].mean())

    def promise(
        self, on: Policies, unit: str, new: Floats, tasks: npt.NDArray[np.bool_] | None = None
    ) -> float:
        """The surrogate of an update of `unit` to `new`, under the contexts and values of the team `on`."""
        laws, values, total = self.contexts(on), self.values(on), np.zeros(len(self.facts))
        number = int(unit.removeprefix("unit"))
        change = (new - on[unit])[self.facts[:, number]]
        for place in self.at(unit):
            total += np.einsum("tm,tma,ta->t", laws[place], change, values[place])
        return float(total.mean() if tasks is None else total[tasks].mean())

    def seen(self, policies: Policies) -> list[Floats]:
        """For each place [F, M]: the law of what its unit sees, its fact and the word that comes in."""
        laws = []
        for place, law in enumerate(self.contexts(policies)):
            fact = self.facts[:, place % self.units]
            laws.append(np.stack([law[fact == f].sum(axis=0) for f in range(len(FACTS))]) / len(law))
        return laws

    def shift(self, one: Policies, other: Policies, unit: str | None = None) -> float:
        """Total variation between the contexts of two teams: mean over the places of a unit, or over all."""
        places = self.places if unit is None else self.at(unit)
        laws = zip(self.seen(one), self.seen(other), strict=True)
        apart = [0.5 * float(np.abs(a - b).sum()) for a, b in laws]
        return float(np.mean([apart[place] for place in places]))


def tabulate(folder: str, adapter: Mapping[str, Any] | None, base: str) -> Floats:
    """The policy [F, M, M] that an adapter in `folder` makes of its base; with None, the base itself.

    Args:
        folder: of a version's weights, or empty for the base.
        adapter: how it was made, as in the model map.
        base: the folder of the base.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    from stages.weights.adapters import AdapterSpec
    from stages.weights.lora import Adaptable, Share

    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(base)
    if adapter is not None and folder:
        adaptable = Adaptable(model)
        adaptable.use(Share(adaptable.read(AdapterSpec(**adapter), folder)))
    texts, of_text = words(tokenizer)
    table = np.zeros((len(FACTS), len(texts), len(texts)))
    with torch.no_grad():
        for f, fact in enumerate(FACTS):
            for m, text in enumerate(texts):
                chat = [{"role": "user", "content": PROMPT.format(message=text, fact=fact)}]
                ids = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
                logits = model(torch.tensor([tokenizer(ids, add_special_tokens=False)["input_ids"]])).logits
                np.add.at(table[f, m], of_text, (logits[0, -1].double() / TEMPERATURE).softmax(-1).numpy())
    return table


def words(tokenizer: Any) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """The texts that a single token can be, and for each token the place of its text."""
    said = [tokenizer.decode([token], skip_special_tokens=True) for token in range(len(tokenizer))]
    texts = tuple(sorted(set(said)))
    return texts, np.array([texts.index(text) for text in said])


@dataclass(frozen=True, slots=True)
class Step:
    """One update as it was, by enumeration. Gains and promises are in units of return."""

    unit: str
    gain: float  # of the team's score
    promise: float  # the surrogate on the plays that the update was made on
    fresh_promise: float  # the surrogate on plays of the team right before the update
    shift: float  # of all contexts, from those plays to the team after the update
    own_shift: float  # of the unit's contexts, from those plays to the team right before the update

    @property
    def gap(self) -> float:
        return abs(self.promise - self.gain)

    @property
    def stale_gap(self) -> float:
        return abs(self.promise - self.fresh_promise)


def steps_of(
    chain: Chain,
    start: Policies,
    updates: Sequence[tuple[str, Floats]],
    played_with: Callable[[int], int],
    tasks: npt.NDArray[np.bool_] | None = None,
) -> list[Step]:
    """The updates of an iteration in their order.

    Args:
        start: the team at the start of the iteration.
        updates: the unit and its new policy of each.
        played_with: for each update, how many updates the team had had that played for it.
        tasks: a mask [T]; None: all tasks.
    """
    teams: list[dict[str, Floats]] = [dict(start)]
    for unit, new in updates:
        teams.append({**teams[-1], unit: new})
    steps = []
    for place, (unit, new) in enumerate(updates):
        played, before, after = teams[played_with(place)], teams[place], teams[place + 1]
        steps.append(
            Step(
                unit,
                gain=chain.score(after, tasks) - chain.score(before, tasks),
                promise=chain.promise(played, unit, new, tasks),
                fresh_promise=chain.promise(before, unit, new, tasks),
                shift=chain.shift(played, after),
                own_shift=chain.shift(played, before, unit),
            )
        )
    return steps
