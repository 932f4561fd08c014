"""The couriers' game learned in one process: the product's plays, replays, rewards and credit, and a step of
an optimiser in each iteration, without Ray and without files that are kept.

What a stage of the pipeline calls is called here (`docs/examples/one_iteration.py` does the same), except for
the update: the gradient of Σ advantage · log p over sampled words and of an entropy bonus, with AdamW, which
is PPO's first step. The model is `tiny-words`: random weights, a step of a few milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import shutil
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, Literal

import polars as pl
import pyarrow as pa
import torch

from rewards.credit.assign import credit_turns
from rewards.loading import load_credit, load_reward
from rewards.scoring.score import score_turns
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from stages.effects import effects
from stages.message_credit import fit_of, merged_fits, message_credit
from stages.players.choices import Choosing
from stages.players.counterfactuals import Job, play_job
from stages.tables.parquet import Part, TableSink
from stages.weights.chat import ChatRenderer
from stages.weights.resolve import resolve_checkpoint
from tests.learning.couriers import COURIERS, SYMBOLS, build, tasks
from workflows.credit_tables import MESSAGES
from workflows.engine import Completion, Message, Sampling
from workflows.interventions import PLAYED_INTERVENTIONS
from workflows.models import Model, ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.playing.play import Player
from workflows.playing.record import Played
from workflows.roles import RoleSettings
from workflows.trajectory import EPISODES, TASKS, TURNS, rows_to_table
from workflows.vocabulary import Op

PLAYS: Final = 8  # of each task
SAMPLED: Final = len(SYMBOLS) * COURIERS * PLAYS * (COURIERS + 1)  # tokens of an iteration: each says a word
LEARNING_RATE: Final = 1e-3
ENTROPY: Final = 0.02
_KEYS: Final = ("episode_id", "turn_index")


class WordModel:
    """A model that speaks one word, as an engine: logits are found once for each prompt of a version."""

    model_id = base_id = "team"
    max_model_len = 24
    logprobs_mode = "processed_logprobs"
    trainable = True

    def __init__(self) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        folder = resolve_checkpoint("tiny-words")
        self.network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.network.config.use_cache = False
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
        self.policy_version = 0
        self._chat = ChatRenderer(folder)
        self.tokenizer_hash = self._chat.tokenizer_hash
        self._known: dict[tuple[int, ...], list[float]] = {}
        self._rendered: dict[str, list[int]] = {}

    def render(self, messages: Sequence[Message]) -> list[int]:
        key = json.dumps(messages)
        if key not in self._rendered:
            self._rendered[key] = self._chat.render(messages)
        return self._rendered[key]

    def special_tokens_in(self, messages: Sequence[Message]) -> int:
        return 0

    async def generate(self, prompt_token_ids: Sequence[int], sampling: Sampling) -> Completion:
        prompt = tuple(prompt_token_ids)
        if prompt not in self._known:
            with torch.no_grad():
                self._known[prompt] = self.logprobs([prompt])[0].tolist()
        logprobs, rest = self._known[prompt], random.Random(sampling.seed).random()
        word = len(logprobs) - 1
        for place, value in enumerate(logprobs):
            rest -= math.exp(value)
            if rest <= 0:
                word = place
                break
        text = self._chat.decode([word])
        return Completion(
            [word], [logprobs[word]], text, "length", self.policy_version, self.logprobs_mode, 0
        )

    def logprobs(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Of the next word after prompts of one length, [prompts, words]."""
        return torch.log_softmax(self.network(torch.tensor(prompts)).logits[:, -1].float(), dim=-1)

    def learn(self, rows: Sequence[tuple[Sequence[int], int, float]]) -> None:
        """One step on (prompt, word, advantage)."""
        loss = torch.zeros(())
        for _, same in groupby(sorted(rows, key=lambda row: len(row[0])), key=lambda row: len(row[0])):
            prompts, words, advantages = zip(*same, strict=True)
            distinct = sorted({tuple(prompt) for prompt in prompts})
            logprobs = self.logprobs(distinct)[[distinct.index(tuple(prompt)) for prompt in prompts]]
            said = logprobs.gather(1, torch.tensor(words)[:, None])[:, 0]
            entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
            loss = loss - (torch.tensor(advantages) * said + ENTROPY * entropy).sum()
        self.optimizer.zero_grad()
        (loss / len(rows)).backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.policy_version += 1
        self._known.clear()


def learned(
    folder: str, credit: Literal["team", "messages"], seed: int, iterations: int
) -> tuple[list[float], list[int]]:
    """By iteration, the share of right plays, and the tokens sampled until then, those of replays too.

    Args:
        folder: for tables of replays; it is emptied.
    """
    model = WordModel()
    models = ModelMap({"team": Model("team", "team", "tiny-words")}, dict.fromkeys(build().roles, "team"))
    limits = {role: RoleSettings(max_response_tokens=1) for role in build().roles}
    player = Player(build(), {"team": model}, models, limits, PlayLimits(), seed)
    rows = [row for row in tasks(str(len(SYMBOLS))) if row["split"] == "train"]
    table = rows_to_table([_task(row) for row in rows], TASKS)
    shares, tokens, spent = [], [], 0
    for index in range(iterations):
        played = asyncio.run(_plays(player, rows, index))
        turns = rows_to_table([turn for play in played for turn in play.turns], TURNS)
        episodes = rows_to_table([play.episode for play in played], EPISODES)
        rewards = _scored(table, turns, episodes)
        method = load_credit("group_relative", {"by": "task_role"})
        given = pl.DataFrame(credit_turns(turns, episodes, rewards, method).table)
        spent += sum(turns["num_response_tokens"].to_pylist())
        if credit == "messages":
            shutil.rmtree(folder, ignore_errors=True)
            given, more = _credited(folder, player, table, turns, episodes, rewards, seed)
            spent += more
        shares.append(float(pl.DataFrame(rewards).drop_nulls("reward")["reward"].mean()))  # type: ignore[arg-type]
        tokens.append(spent)
        said = pl.DataFrame(turns).filter(pl.col("role") == "courier")
        said = said.join(given.select(*_KEYS, "advantage"), on=_KEYS, maintain_order="left")
        columns = said.select("prompt_token_ids", pl.col("response_token_ids").list.first(), "advantage")
        model.learn(columns.rows())
    return shares, tokens


async def _plays(player: Player, rows: Sequence[dict[str, Any]], index: int) -> list[Played]:
    shown = [{name: row[name] for name in ("task_id", "split", "inputs")} for row in rows]
    return await asyncio.gather(
        *(player.play(task, iteration=index, sample=k) for task in shown for k in range(PLAYS))
    )


def _task(row: dict[str, Any]) -> dict[str, Any]:
    texts = {name: json.dumps(row[name]) for name in ("inputs", "gold")}
    return {**dict.fromkeys(TASKS.names, ""), **row, **texts}


def _scored(table: pa.Table, turns: pa.Table, episodes: pa.Table) -> pa.Table:
    reward = load_reward("tests.learning.couriers:delivered", {})
    return score_turns(table, turns, episodes, WeightedRewards((WeightedReward("right", 1.0, reward),)))


def _credited(
    folder: str,
    player: Player,
    table: pa.Table,
    turns: pa.Table,
    episodes: pa.Table,
    rewards: pa.Table,
    seed: int,
) -> tuple[pl.DataFrame, int]:
    """What messages were worth as `advantage`, every one of them resampled once, and the tokens that took."""
    stored = {"tasks": table, "turns": turns, "episodes": episodes, "rewards": rewards}
    sinks = {name: TableSink(name, f"{folder}/{name}", part.schema) for name, part in stored.items()}
    refs = {name: sink.ref([sink.write_part(0, stored[name])]) for name, sink in sinks.items()}
    plays = {"turns": TURNS, "episodes": EPISODES, "played_interventions": PLAYED_INTERVENTIONS}
    out = {n: TableSink(n, f"{folder}/plays/{n}", s) for n, s in {**plays, "messages": MESSAGES}.items()}
    choosing = Choosing([Op.RESAMPLE], roles=frozenset({"courier"}), seed=seed)
    job = Job(
        *(0, refs["tasks"], refs["turns"], refs["episodes"], out, choosing, f"{folder}/plays/0.json"),
        rewards=refs["rewards"],
    )
    receipt = asyncio.run(play_job(player, job, asyncio.Semaphore(256)))
    made = {name: sink.ref([Part(**receipt["parts"][name])]).read() for name, sink in out.items()}
    scored = _scored(table, made["turns"], made["episodes"])
    played = pl.DataFrame(effects(made["played_interventions"], scored))
    messages = pl.DataFrame(made["messages"])
    assert receipt["unequal"] == receipt["failed"] == 0
    assert messages.height == COURIERS * episodes.num_rows
    credit = message_credit(messages, played, "fitted", merged_fits([fit_of(messages, played)]))
    return pl.DataFrame(credit.table).rename({"credit": "advantage"}), receipt["tokens"]
