"""docs/metrics.md is held against what is logged: every metric has its line, every line its metric."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.metrics.cost import cost_metrics
from pipeline.metrics.iteration import iteration_metrics, measured_by_stages
from pipeline.metrics.realised import gain_of
from pipeline.metrics.replicas import replica_metrics
from pipeline.replays.movement import Movement, part_sums
from pipeline.replays.record import replay_metrics
from pipeline.store.evaluated import Evaluated
from pipeline.store.finished import Finished
from pipeline.store.folder import Folder
from pipeline.store.place import IterationStore
from stages.base import Account
from stages.evaluate import Estimate, Score
from stages.tables.parquet import TableRef, TableSink
from stages.update import MEASURES
from tests.pipeline.test_metrics import SEPARATE, tool_turn, two_groups, with_sources
from tests.support.tables import named_values
from workflows.trajectory import (
    CREDIT,
    EPISODES,
    PARTITION,
    ROLE_PAIRS,
    ROLE_UPDATES,
    SHIFT,
    TRIAL,
    TRUST,
    TURNS,
    UPDATES,
    rows_to_table,
)

STOP_METRICS = (
    *("points", "price", "utility", "score", "cost", "point", "regret", "early_share", "late_share", "area"),
    *("probability", "calibration_error", "score_when_chosen", "best_fixed_utility", "best_fixed_point"),
    *("hindsight_utility", "probe_tokens"),
)
PAGE = (Path(__file__).parents[2] / "docs/metrics.md").read_text("utf-8")
DIAGNOSTICS = (
    *("messages", "replays", "unknown", "effect_mean", "effect_error", "changed_rate", "fidelity"),
    *("within_context_variance", "harmful_rate", "influence"),
)


def patterns() -> dict[str, re.Pattern[str]]:
    """Each name of the page's tables, with the pattern of the metrics that it stands for."""
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(names) == len(set(names))
    found = {}
    for name in names:
        pattern = name.replace("<stage>", r"[\w.\-]+(/[\w.\-]+)?").replace(">.vote", r">\.vote")
        found[name] = re.compile(re.sub(r"<\w+>", r"[\\w.\\-]+", pattern))
    return found


def undocumented(metrics: Any) -> list[str]:
    return [m for m in metrics if not any(p.fullmatch(m) for p in patterns().values())]


def one_part(folder: Path, name: str, schema: Any, rows: list[dict[str, Any]]) -> TableRef:
    sink = TableSink(name, f"{folder}/{name}", schema)
    return sink.ref([sink.write_part(0, rows_to_table(rows, schema))])


def everything(folder: Path) -> dict[str, float]:
    """The metrics of an iteration that has all tables, and a value in every column of them."""
    episodes = two_groups(SEPARATE)
    for episode in episodes:
        for row in episode["turns"]:
            times = {"queued_at": 0.0, "started_at": 1.0, "ended_at": 2.0}
            row |= {"trainable": True, "behaviour_logprobs": [-1.0], **times}
            row |= {"step": "search", "parsed": '{"action": "end"}'}
        episode["turns"].append(tool_turn(episode["turns"], "ok", 1.0))
        noted = {"event": "control", "step": "note", "tool": None}
        episode["turns"].append(tool_turn(episode["turns"], "ok", 1.0) | noted)
        episode["episodes"][0]["stop_reason"] = "finished"
        graded = {"branch_right": 1.0, "final_right": 0.0, "satisfied": 1.0}
        episode["rewards"][-1]["reward_parts"] += named_values(graded)
    for row in episodes[0]["rewards"]:  # an episode without a value of f1
        row["reward_parts"] = [
            p | ({"value": None} if p["name"] == "f1" else {}) for p in row["reward_parts"]
        ]
    again = episodes[0]["turns"][0] | {"event": "tool", "tool": "search", "origin": "replayed"}
    episodes[0]["turns"].append(again | {"turn_index": 9, "model_id": None, "role": None})
    episodes[0]["episodes"][0] |= {"base_episode_id": "e", "num_copied_tokens": 3}
    tables = with_sources(folder, episodes, ("a", "b"))
    update: dict[str, Any] = {f.name: 1 if "int" in str(f.type) else 1.0 for f in UPDATES}
    update |= {
        "kind": "summary",
        "model_id": "plan",
        "skipped": None,
        "update_id": "u",
        "decision": "accepted",
    }
    tables["updates/plan"] = one_part(folder, "updates/plan", UPDATES, [update])
    trust: dict[str, Any] = {f.name: 1 if "int" in str(f.type) else 1.0 for f in TRUST if f.type != "string"}
    trust |= {"model_id": "plan", "decision": "accepted"}
    tables["trust/plan"] = one_part(folder, "trust/plan", TRUST, [trust])
    shift = {f.name: 1 if "int" in str(f.type) else 1.0 for f in SHIFT} | {"model_id": "plan"}
    tables["shift"] = one_part(folder, "shift", SHIFT, [shift])
    pair = {f.name: 1 if "int" in str(f.type) else 1.0 for f in TRIAL if f.type != "string"}
    pairs = [pair | {"model_id": "plan", "task_id": task} for task in ("a", "b")]
    tables["trial/plan"] = one_part(folder, "trial/plan", TRIAL, pairs)
    for name, schema in (("role_updates", ROLE_UPDATES), ("role_pairs", ROLE_PAIRS)):
        full = {f.name: 1 if "int" in str(f.type) else 1.0 for f in schema if f.type != "string"}
        of_role = full | {"kind": "summary", "role": "plan", "branch": None}
        rows = [of_role, of_role | {"role": None}] if name == "role_updates" else []
        rows = rows or [of_role | {"other_role": "answer", "other_branch": None}]
        tables[f"{name}/plan"] = one_part(folder, f"{name}/plan", schema, rows)
    tables["partition/plan"] = one_part(folder, "partition/plan", PARTITION, [{"role": "plan"}])
    tables["greedy_episodes"] = one_part(folder, "greedy", EPISODES, [{"status": "ok"}])
    accounts = [Account("credit to partition", "turn", 4, 3, {"infra_error": 1})]
    metrics = iteration_metrics(tables, accounts, {"rollout": 1.0, "update/plan": 1.0})
    measured = ("advantage_mean", "advantage_std", "explained_variance")
    measured += tuple(f"{n}_{s}" for n in ("kl_reference", "importance_weight") for s in ("mean", "max"))
    stages = {"advantage": {f"{m}/plan": 1.0 for m in measured}, "credit": {"baseline/plan": 1.0}}
    stages["advantage"]["kl_coefficient/plan"] = 0.1
    stages["greedy"] = dict.fromkeys(("episodes", "episodes_failed", "response_tokens", "prompt_tokens"), 1.0)
    stages["greedy_reward"] = {"reward": 0.5}
    stages["stops"] = dict.fromkeys(STOP_METRICS, 1.0)
    stages["credit"] |= {
        f"channel/message/{m}": 1.0 for m in ("rows", "abs_mean", "gap_mean", "gap_abs_mean")
    }
    counted = ("played", "failed", "unequal", "tokens", "stored_tokens")
    stages["counterfactual"] = dict.fromkeys(counted, 1.0)
    stages["messages"] = {f"resample/{name}": 1.0 for name in DIAGNOSTICS}
    stages["score/plan"] = {"rows_bootstrapped": 2.0}
    stages["update/plan"] = dict.fromkeys(MEASURES, 1.0)
    cost = cost_metrics(
        metrics | measured_by_stages(stages), {"engine/base": 2**30, "trainer/base": 2**30}, {}
    )
    answered = dict.fromkeys(("calls", "prompt_tokens", "cached_tokens", "response_tokens"), 3)
    cost |= replica_metrics({"base": {1: answered | {"asked_again": 1, "restarts": 1}}})
    gains = gain_of(*[pl.DataFrame({"task_id": ["t"], "sample": [0], "return": [r]}) for r in (0.0, 1.0)])
    by_plays = dict.fromkeys(("pred_vs_real", "tv_classifier", "tv_classifier_error"), 0.1)
    metrics |= {f"shift/plan/{name}": value for name, value in (gains | by_plays).items()}
    played = {name: value for name, value in metrics.items() if "/gradient_" not in name}
    return metrics | measured_by_stages(stages) | cost | evaluation(played) | replayed(folder)


def replayed(folder: Path) -> dict[str, float]:
    turns = [{"episode_id": "e", "turn_index": k, "role": "plan"} for k in range(4)]
    credit = [
        [{**turn, "return": 1.0, "advantage": sign * k} for k, turn in enumerate(turns)]
        for sign in (1.0, -1.0)
    ]
    before, after = (
        one_part(folder, f"credit-{i}", CREDIT, [{c: row[c] for c in row if c != "role"} for row in rows])
        for i, rows in enumerate(credit)
    )
    sums = part_sums(0, one_part(folder, "turns-of-a-replay", TURNS, turns), before, after)["sums"]
    return replay_metrics(
        Finished(IterationStore(Folder(str(folder)), 0)), {}, Movement(sums, pl.DataFrame())
    )


def evaluation(metrics: dict[str, float]) -> dict[str, float]:
    score = Score("token_f1", Estimate(0.5, 0.4, 0.6, 8), {1: 0.5})
    score = replace(score, by_source={"nq": score, "hotpot": score})
    vote = Score("token_f1/vote", Estimate(0.5, 0.4, 0.6, 8))
    done = Finished(IterationStore(Folder("nowhere"), 3), metrics=metrics)
    found = Evaluated("dev", 3, (score,), done, "", "f1").metrics()
    return found | Evaluated("test.vote", 3, (score, vote), done, "", "f1").metrics()


def test_every_metric_has_its_line_and_every_line_its_metric(tmp_path: Path) -> None:
    metrics = everything(tmp_path)
    assert undocumented(metrics) == []
    assert [name for name, p in patterns().items() if not any(p.fullmatch(m) for m in metrics)] == []
