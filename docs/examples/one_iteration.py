"""One training iteration from tasks to new weights, in one process: no Ray, no server, no settings file.

Each step calls what the pipeline's stage of that name calls, so the numbers are the pipeline's (a test holds
them). A scripted engine stands in for the sampler, and a tiny model is trained. In a checkout, run
`PYTHONPATH=. python docs/examples/one_iteration.py`.
"""

import asyncio
import json

import polars as pl
import torch

from rewards.credit.assign import credit_turns
from rewards.loading import load_credit, load_reward
from rewards.scoring.score import score_turns
from rewards.scoring.weighted import WeightedReward, WeightedRewards
from stages.batching import plan_batches, prefix_names
from stages.partition_rows import gather
from stages.training.loss.batch import TokenBatch
from stages.training.loss.loss import denominator, policy_loss, terms_of, token_weights
from stages.training.loss.spec import LossSpec
from stages.training.network.packing import split
from stages.training.network.policy import Policy, load_network
from stages.weights.resolve import resolve_checkpoint
from workflows.data.tasks import choose, load_tasks
from workflows.loading import load_workflow
from workflows.models import Model, ModelMap
from workflows.playing.attempts import PlayLimits
from workflows.playing.play import Player
from workflows.testing import ScriptedEngine, echo_qa
from workflows.trajectory import EPISODES, TURN_KEYS, TURNS, rows_to_table

SEED, TASKS, GROUP_SIZE, LEARNING_RATE = 0, 4, 4, 1e-3

# sample: this iteration's slice of a seeded permutation of the tasks
tasks = choose(load_tasks("facts").tasks, "train", SEED, 0, TASKS)  # [4 tasks]

# rollout: every task is played GROUP_SIZE times; each call of a role or a tool is a turn
team = load_workflow("qa_decompose", {"top_k": 2})
models = ModelMap({"team": Model("team", "team", "scripted")}, dict.fromkeys(team.roles, "team"))
player = Player(team, {"team": ScriptedEngine(echo_qa, model_id="team")}, models, {}, PlayLimits(), SEED)


async def play():
    shown = [row | {"inputs": json.loads(row["inputs"])} for row in tasks.drop(["gold"]).to_pylist()]
    return [await player.play(t, iteration=0, sample=k) for t in shown for k in range(GROUP_SIZE)]


played = asyncio.run(play())
turns = rows_to_table([row for p in played for row in p.turns], TURNS)  # [T turns]
episodes = rows_to_table([p.episode for p in played], EPISODES)  # [16 episodes]

# reward: a number for each llm turn, null for tools; gold is looked at here for the first time
items = [WeightedReward(name, 1.0, load_reward(name, {})) for name in ("token_f1", "format")]
rewards = score_turns(tasks, turns, episodes, WeightedRewards(tuple(items)))  # [T]

# credit: return minus the mean return of the same role in all plays of the task
method = load_credit("group_relative", {"by": "task_role"})
credit = credit_turns(turns, episodes, rewards, method).table  # [T]

# partition: the R of the T turns to train on, in forward passes of at most 8,192 tokens
trained = pl.DataFrame(credit).filter(pl.col("excluded").is_null()).select(TURN_KEYS)
sizes = pl.DataFrame(turns.select([*TURN_KEYS, "num_prompt_tokens", "num_response_tokens", "context_hash"]))
names = pl.Series("prefix", prefix_names(ids or () for ids in turns["prompt_token_ids"].to_pylist()))
rows = sizes.rename({"context_hash": "prompt"}).with_columns(names).join(trained, on=TURN_KEYS)  # [R]
limits = {"ranks": 1, "mini_batches": 1, "micro_batch_tokens": 8192, "seed": SEED, "shared_prefix": True}
(batches,) = split(gather(turns, rewards, credit, plan_batches(rows, **limits)), packed=True).values()

# update: one optimizer step on the N response tokens; the loss is a sum over tokens, divided once
model = Policy(load_network(resolve_checkpoint("tiny-scripted"), precision="fp32", packed=True).model)
optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
spec, loss = LossSpec("ppo"), 0.0
divisor = denominator(spec, sum(b.num_tokens for b in batches), rows.height)  # N
for b in batches:
    logprobs, _, _ = model(b)  # [n]: those of the n response tokens of this forward pass, with the graph
    weights, terms = token_weights(spec, b.mask, b.row, len(b.roles)), terms_of(spec, b.roles, b.row)
    old = logprobs.detach()  # [n]: the first step starts from the policy itself
    tokens = TokenBatch(logprobs, old, b.advantages, b.mask, b.row, len(b.roles), weights, terms)
    part = policy_loss(spec, tokens).loss / divisor  # []
    part.backward()
    loss += float(part.detach())
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
print(f"{episodes.num_rows} episodes, {rows.height} turns trained on, loss {loss:.5f}")  # noqa: T201
