"""A game in which one message in four matters: four couriers say a word each, and one of them counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rewards.base import PlayedEpisode
from workflows.roles import Role
from workflows.script import ScriptWorkflow
from workflows.team import Team

COURIERS: Final = 4
SYMBOLS: Final = ("red", "green", "blue", "yellow")
WORDS: Final = ("ba", "do", "ki", "lu")


def build() -> ScriptWorkflow:
    """The game, for a model of the words of `tiny-words`."""

    async def run(team: Team, task: Mapping[str, Any]) -> None:
        async def say(branch: Team, _: int) -> Any:
            return await branch.call("say", {"symbol": task["symbol"]})

        said = await team.each(range(COURIERS), say)
        await team.call("keep", {"words": " ".join(output.text for output in said)}, reads=said)

    return ScriptWorkflow(
        "couriers",
        [
            Role("courier", prompt="see {symbol} say", max_response_tokens=4, fixed_length=True),
            Role("keeper", prompt="hear {words} name", max_response_tokens=8, fixed_length=True),
        ],
        run,
        steps={"say": "courier", "keep": "keeper"},
        answer_step="keep",
    )


def tasks(path: str) -> Iterator[dict[str, Any]]:
    """Every symbol with every courier who may count. `path` is how many symbols there are."""
    for split in ("train", "dev"):
        for symbol in SYMBOLS[: int(path)]:
            for which in range(COURIERS):
                yield {
                    "task_id": f"{symbol}-{which}-{split}",
                    "split": split,
                    "inputs": {"symbol": symbol, "which": which},
                    "gold": {"answers": [WORDS[SYMBOLS.index(symbol)]]},
                }


def delivered(episode: PlayedEpisode) -> list[float | None]:
    """1 for every turn where the courier who counts says the right word, else 0."""
    branch = str(episode.inputs["which"])
    said = next(t["response_text"] for t in episode.turns if t["step"] == "say" and t["branch"] == branch)
    value = float(str(said).split()[:1] == [episode.gold["answers"][0]])
    mine = set(episode.trainable())
    return [value if place in mine else None for place in range(len(episode.turns))]
