"""Stand-ins for two optional packages, with the same interface: what tests of their adapters hold by.

They are written as packages into a folder, for one adapter reads the source of a family.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

GYM = {
    "reasoning_gym/__init__.py": "",
    "reasoning_gym/factory.py": """
from reasoning_gym.sums import Sums, SumsConfig
from reasoning_gym.lists import Lists
from reasoning_gym.runs import Runs

DATASETS = {"sums": (Sums, SumsConfig), "lists": (Lists, SumsConfig), "runs": (Runs, SumsConfig)}
""",
    "reasoning_gym/sums.py": """
from dataclasses import dataclass
from random import Random

@dataclass
class SumsConfig:
    largest: int = 99
    signs: tuple = ("+",)
    seed: int | None = None
    size: int = 500

    def __post_init__(self):
        assert self.largest > 0, "largest must be positive"

class Sums:
    def __init__(self, config):
        self.config, self.seed = config, config.seed

    def __getitem__(self, idx):
        rng = Random(self.seed + idx)
        a, b = rng.randint(0, self.config.largest), rng.randint(0, self.config.largest)
        question = f"{a} {self.config.signs[0]} {b}?"
        return {"question": question, "answer": str(a + b), "metadata": {"pair": (a, b)}}

    def score_answer(self, answer, entry):
        assert isinstance(entry["metadata"]["pair"], tuple)  # as the package made it
        if answer == "odd": raise ValueError("not a number")
        return 1.0 if answer == entry["answer"] else 0.5 if answer and entry["answer"] in answer else 0.0
""",
    "reasoning_gym/lists.py": """
from reasoning_gym.sums import Sums

class Lists(Sums):
    def __getitem__(self, idx):
        item = super().__getitem__(idx)
        return item | {"answer": str(list(item["metadata"]["pair"])), "metadata": {"expression": "[1 + 1]"}}

    def score_answer(self, answer, entry):
        assert eval(entry["metadata"]["expression"]) == [2]
        try:
            return float(eval(answer) == eval(entry["answer"]))
        except Exception:
            return 0.0
""",
    "reasoning_gym/runs.py": """
from reasoning_gym.sums import Sums

class Runs(Sums):
    def score_answer(self, answer, entry):
        import sympy
        return float(sympy.parse_expr(answer) == int(entry["answer"]))
""",
}
ARENA = {
    "textarena/__init__.py": "from textarena.envs.registration import make\n",
    "textarena/envs/__init__.py": "",
    "textarena/envs/registration.py": '''
import random
import numpy as np

class Stones:
    """Two players take 1 or 2 stones by turns; who takes the last one wins. The pile is drawn."""
    opened, ended = [], []

    def reset(self, num_players, seed=None):
        if num_players != 2: raise AssertionError("two play")
        random.seed(seed)
        self.left, self.player = random.randint(3, 9), 0
        self.bonus = int(np.random.randint(1000))
        self.told = {p: [(-1, f"You are Player {p}. Bonus {self.bonus}.", 1)] for p in (0, 1)}
        self.info, self.rewards = {0: {}, 1: {}}, None
        Stones.opened.append(self)
        self._tell(-1, f"{self.left} stones are left.")

    def _tell(self, sender, text):
        for p in self.told: self.told[p].append((sender, text, 5))

    def get_observation(self):
        told, self.told[self.player] = self.told[self.player], []
        return self.player, told

    def step(self, action):
        self._tell(self.player, action)
        luck = random.randint(0, 1000)
        if "crash" in action: raise ValueError("the game is broken")
        if action not in ("[1]", "[2]"):
            self.info[self.player] = {"invalid_move": True, "reason": "not a move"}
            return self._end(1 - self.player)
        self.left -= int(action[1])
        self._tell(-1, f"{max(self.left, 0)} stones are left. Luck {luck}.")
        if self.left <= 0:
            self.info[self.player] = {"reason": "took the last stone"}
            return self._end(self.player)
        self.player = 1 - self.player
        return False, {}

    def _end(self, winner):
        self.rewards = {winner: 1, 1 - winner: -1}
        return True, {}

    def close(self):
        Stones.ended.append(self)
        return self.rewards, self.info

class Words(Stones):
    def reset(self, num_players, seed=None):
        raise LookupError("****\\n  Resource 'words' not found.\\n")

ENV_REGISTRY = {}
for name, kind in (("Stones-v0", Stones), ("Words-v0", Words)):
    for suffix in ("", "-raw", "-train"):
        ENV_REGISTRY[name + suffix] = kind

def make(env_id):
    return ENV_REGISTRY[env_id]()
''',
}


@contextmanager
def stand_in(files: dict[str, str], folder: Path) -> Iterator[None]:
    """The package that these files are, in the place of the real one where that is installed."""
    package = next(iter(files)).partition("/")[0]

    def forget() -> None:
        for name in [n for n in sys.modules if n == package or n.startswith(f"{package}.")]:
            del sys.modules[name]

    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield
        forget()


def needs(package: str) -> pytest.MarkDecorator:
    """Skips where the package itself is not installed."""
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None,
        reason=f"{package} is not installed (pip install -e '.[games]'): a stand-in holds the laws",
    )
