"""What rewards need that is started once for all parts: weights in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from rewards.base import Reward, RewardHooks
from rewards.scoring.weighted import WeightedRewards
from workflows.hooks import hooks_of


@contextmanager
def opened(lists: Sequence[WeightedRewards]) -> Iterator[list[WeightedRewards]]:
    """The rewards as tasks of the cluster ask them; what some of them need is started once, for the block.

    A reward object that several lists have stays one object.
    """
    with ExitStack() as stack:
        by_id: dict[int, Reward] = {}
        for item in (item for rewards in lists for item in rewards.items):
            if id(item.reward) not in by_id:
                context = hooks_of(item.reward, RewardHooks).opened()
                by_id[id(item.reward)] = item.reward if context is None else stack.enter_context(context)
        yield [
            WeightedRewards(tuple(replace(item, reward=by_id[id(item.reward)]) for item in rewards.items))
            for rewards in lists
        ]
