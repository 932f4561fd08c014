"""The signalling game from random weights: from chance to 0.95, under every regime and both methods.

What a regime needs is in `REGIMES`, what a method needs in `METHODS`; the rest is docs/examples/signal.toml.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pipeline.run.cluster import start_ray
from tests.learning.train import EXAMPLES, Learned, train

GOAL: Final = 0.95
ITERATIONS: Final = 120
REGIMES: Final = {
    "full": ['sharing.regime="full"'],
    "separate": ['sharing.regime="separate"'],
    # a frozen random base knows no words, so the adapters have theirs. With 24 plays some seeds end with a
    # sender that says anything at all
    "adapters": [
        'sharing.regime="adapters"',
        "models.team.adapter={rank=8, alpha=16, train_embeddings=true}",
        "ppo.learning_rate=2e-3",
        "rollout.group_size=32",
    ],
}
METHODS: Final = {
    "group_relative": [],  # the example's own
    # advantages of one scale all the way, as with groups: the entropy bonus is weighed against them
    "gae": [
        'advantage={use="gae", whiten="role"}',
        'credit={use="none"}',
        'critic={kind="head", learning_rate=2e-3}',
    ],
}


def run(folder: str, seeds: Sequence[int], only: str = "") -> list[Learned]:
    """Train every regime with every method and seed."""
    import ray

    start_ray("local", 0.2)
    results = []
    try:
        for regime in REGIMES:
            for method in METHODS:
                if only not in f"{regime} {method}":
                    continue
                for seed in seeds:
                    results.append(play(regime, method, folder, seed))
                    print(results[-1].line(), flush=True)
    finally:
        ray.shutdown()
    return results


def play(regime: str, method: str, folder: str, seed: int) -> Learned:
    """One run of the game, ended as soon as it is won."""
    never = ["evaluate.every=0", "checkpoints.every=1000"]
    return train(
        f"{regime} {method}",
        EXAMPLES / "signal.toml",
        [*REGIMES[regime], *METHODS[method], *never],
        root=folder,
        seed=seed,
        iterations=ITERATIONS,
        goal=GOAL,
    )
