"""What a reward model is worth on tasks that trained nothing, beside rankers that look at one number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pipeline.reward_model.asked import Asked
from rewards.preferences.measures import gain_of, ranking_of, trivial_ranker


def judged(asked: Asked, scores: Mapping[str, float]) -> dict[str, Any]:
    """Rankings of the training pairs and of the held-out ones, and how far the model is above each trivial
    ranker: by length, by number of turns, and by the share of replies that keep their format."""
    train, test = asked.train, asked.test
    features = {
        "length": {play: float(len(ids) + asked.removed[play]) for play, ids in asked.ids.items()},
        "turns": {play.play: float(play.num_turns) for play in asked.paired},
        "format": {play.play: play.format for play in asked.paired},
    }
    trivial = {}
    for name, feature in features.items():
        ranker, of_ranker = trivial_ranker(name, feature, train, test)
        trivial[name] = {**asdict(ranker), "gain": asdict(gain_of(test, scores, of_ranker))}
    return {
        "train": ranking_of(train, scores).as_dict(),
        "held_out": ranking_of(test, scores).as_dict(),
        "trivial": trivial,
    }


def remark(judgement: Mapping[str, Any]) -> str:
    """A sentence: whether the model has learned more than the best trivial ranker."""
    name, best = max(judgement["trivial"].items(), key=lambda item: item[1]["accuracy"]["value"])
    gain = best["gain"]
    if gain["low"] is None:
        return "one held-out task says nothing of how certain this is; name runs with more tasks"
    share = f"{gain['value']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"
    if gain["low"] > 0:
        return f"above the best trivial ranker, {name}, by {share}"
    return (
        f"not above the trivial ranker {name} ({share}): on these plays the model has learned no more than "
        "that, and as a reward it would pay for it"
    )
