"""Metrics of an iteration: bounded, comparable across sharing regimes, and never a made-up number."""

import math
import re

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.metrics.gathered import Gathered, Measure
from pipeline.metrics.iteration import iteration_metrics, with_measured
from pipeline.metrics.names import MAX_NAMES, by_name
from pipeline.settings.names import slug
from stages.base import Account
from stages.tables.parquet import TableRef, TableSink
from tests.support.tables import named_values
from workflows.errors import CadreError
from workflows.trajectory import CREDIT, EPISODES, PARTITION, REWARDS, TASKS, TURNS, UPDATES, rows_to_table

ROLES = ("plan", "answer")


def episode_rows(group: int, sample: int, models: dict[str, str], score: float, baseline: float) -> dict:
    """One episode of two turns, `plan` of 3 tokens and `answer` of 5, with its rows in every table."""
    group_id = f"00000/t{group}"
    keys = {"group_id": group_id, "episode_id": f"{group_id}/{sample}"}
    turns, rewards, credit = [], [], []
    for index, role in enumerate(ROLES):
        key = {"episode_id": keys["episode_id"], "turn_index": index}
        turns.append(
            {
                **keys,
                **key,
                "event": "llm",
                "round": index * sample,  # the second sample goes around twice
                "role": role,
                "model_id": models[role],
                "status": "truncated" if role == "plan" and sample == 0 else "ok",
                "format_valid": role == "answer",
                "response_token_ids": list(range(3 + 2 * index)),
                "num_response_tokens": 3 + 2 * index,
                "num_prompt_tokens": 10,
                "num_cached_tokens": 4,
            }
        )
        rewards.append({**key, "reward": score, "reward_parts": named_values({"f1": score, "format": 1.0})})
        credit.append({**key, "return": score, "advantage": score - baseline})
    episode = {
        **keys,
        "status": "ok",
        "num_turns": 2,
        "num_prompt_tokens": 20,
        "num_response_tokens": 8,
        "seconds": 2.0,
    }
    return {"turns": turns, "rewards": rewards, "credit": credit, "episodes": [episode]}


def write(folder: str, parts: list[list[dict]]) -> dict[str, TableRef]:
    """Tables whose part `k` has the rows of the episodes `parts[k]`."""
    tables = {}
    for name, schema in (("turns", TURNS), ("rewards", REWARDS), ("credit", CREDIT), ("episodes", EPISODES)):
        sink = TableSink(name, f"{folder}/{name}", schema)
        rows = [[row for e in part for row in e[name]] for part in parts]
        tables[name] = sink.ref([sink.write_part(k, rows_to_table(r, schema)) for k, r in enumerate(rows)])
    return tables


def two_groups(models: dict[str, str]) -> list[dict]:
    """Group 0 has returns 1 and 0; group 1 has 0.5 twice, so no signal."""
    scores = {0: (1.0, 0.0), 1: (0.5, 0.5)}
    return [
        episode_rows(g, s, models, score, 0.5) for g, pair in scores.items() for s, score in enumerate(pair)
    ]


FULL = dict.fromkeys(ROLES, "team")
SEPARATE = {role: role for role in ROLES}


@pytest.mark.parametrize("place", ["disk", "memory"])
def test_means_count_every_episode_once_on_any_filesystem(tmp_path, place):
    folder = str(tmp_path) if place == "disk" else "memory://metrics"
    episodes = two_groups(FULL)
    metrics = iteration_metrics(write(folder, [episodes[:2], episodes[2:]]), [], {"rollout": 4.0})
    assert metrics["return/mean"] == 0.5
    assert metrics["reward/f1/mean"] == 0.5
    assert metrics["reward/format/mean"] == 1.0
    assert metrics["role/plan/response_tokens_mean"] == 3.0
    assert metrics["model/team/response_tokens_mean"] == 4.0
    assert metrics["role/plan/truncated_rate"] == 0.5
    assert metrics["role/plan/format_valid_rate"] == 0.0
    assert metrics["role/answer/advantage_abs_mean"] == 0.25
    assert metrics["groups/no_signal_rate"] == 0.5
    assert metrics["groups/usable_rate"] == 1.0
    assert metrics["rollout/tokens_per_second"] == 4 * 8 / 4.0
    assert metrics["rollout/prefix_cached_rate"] == 0.4
    assert metrics["rollout/rounds_mean"] == 1.5
    assert metrics["rollout/status/ok"] == 4.0
    assert metrics["rollout/status/timeout"] == 0.0


def test_parts_of_rewards_are_told_by_round_where_there_are_several(tmp_path):
    """Sample 0 goes around once, sample 1 twice; what is gained counts where it was gained."""
    episodes = [episode_rows(0, sample, FULL, 1.0, 0.5) for sample in (0, 1)]
    for gain, episode in zip((0.5, 0.25), episodes, strict=True):
        for turn, row in zip(episode["turns"], episode["rewards"], strict=True):
            row["reward_parts"] = named_values({"gain": gain * (1 + turn["round"])})
    metrics = iteration_metrics(write(str(tmp_path / "two"), [episodes[:1], episodes[1:]]), [], {})
    assert metrics["round/0/gain_mean"] == (0.5 + 0.25) / 2
    assert metrics["round/1/gain_mean"] == 0.5
    once = iteration_metrics(write(str(tmp_path / "one"), [episodes[:1]]), [], {})
    assert not [name for name in once if name.startswith("round/")]


def test_a_sharing_regime_changes_no_metric_but_those_of_the_models(tmp_path):
    by_regime = [
        iteration_metrics(write(f"{tmp_path}/{n}", [two_groups(m)]), [], {})
        for n, m in enumerate((FULL, SEPARATE))
    ]
    full, separate = ({k: v for k, v in m.items() if not k.startswith("model/")} for m in by_regime)
    assert full == separate
    assert set(by_name(by_regime[0], "role")) == set(ROLES)
    assert set(by_name(by_regime[1], "model")) == set(SEPARATE)


def test_how_rows_are_cut_into_parts_changes_no_metric(tmp_path):
    episodes = two_groups(SEPARATE)
    whole = iteration_metrics(write(f"{tmp_path}/a", [episodes]), [], {})
    cut = iteration_metrics(write(f"{tmp_path}/b", [episodes[:2], [], episodes[2:]]), [], {})
    assert whole == pytest.approx(cut)


def test_an_episode_with_more_turns_weighs_no_more(tmp_path):
    short, long = episode_rows(0, 0, FULL, 1.0, 0.5), episode_rows(0, 1, FULL, 0.0, 0.5)
    for name in ("turns", "rewards", "credit"):
        long[name] += [{**long[name][-1], "turn_index": k} for k in range(2, 9)]
    metrics = iteration_metrics(write(str(tmp_path), [[short, long]]), [], {})
    assert metrics["return/mean"] == metrics["role/answer/return_mean"] == metrics["reward/f1/mean"] == 0.5


def test_what_has_no_data_has_no_metric(tmp_path):
    episode = episode_rows(0, 0, FULL, 1.0, 0.0)
    for row in episode["turns"]:
        row |= {"status": "infra_error", "format_valid": None, "num_response_tokens": None}
    for row in episode["rewards"]:
        row |= {"reward": None, "reward_parts": []}
    for row in episode["credit"]:
        row |= {"return": None, "advantage": None, "excluded": "infra_error"}
    episode["episodes"][0] |= {"status": "infra_error", "num_response_tokens": 0}
    metrics = iteration_metrics(write(str(tmp_path), [[episode]]), [], {})
    earned = [name for name in metrics if name.startswith(("role/", "model/", "return/", "reward/"))]
    assert {name.split("/")[2] for name in earned} == {"turns", "failed_rate"}
    assert metrics["role/plan/failed_rate"] == metrics["rollout/failed_rate"] == 1.0
    assert "groups/no_signal_rate" not in metrics
    assert metrics["groups/usable_rate"] == 0.0
    assert metrics["rollout/status/infra_error"] == 1.0
    assert iteration_metrics({}, [], {}) == {"not_finite": 0.0}


def test_numbers_that_are_not_finite_are_left_out_and_counted(tmp_path):
    episodes = two_groups(FULL)
    episodes[0]["credit"][0]["return"] = math.nan
    metrics = iteration_metrics(write(str(tmp_path), [episodes]), [], {"rollout": math.inf})
    assert all(math.isfinite(v) for v in metrics.values())
    assert {"return/mean", "time/rollout_seconds", "role/plan/return_mean"}.isdisjoint(metrics)
    assert metrics["role/answer/return_mean"] == 0.5
    assert metrics["not_finite"] >= 4


def test_names_are_bounded_whatever_roles_do(tmp_path):
    episode = episode_rows(0, 0, FULL, 1.0, 0.0)
    for name in ("turns", "rewards", "credit"):
        episode[name] = [{**episode[name][0], "turn_index": k} for k in range(200)]
    for k, row in enumerate(episode["turns"]):
        row["role"] = f"r{k // 2 if k < 20 else k}"
    accounts = [Account("a", "turn", 300, 0, {f"reason {k}": 1 for k in range(300)})]
    metrics = iteration_metrics(write(str(tmp_path), [[episode]]), accounts, {})
    roles = by_name(metrics, "role")
    assert len(roles) == MAX_NAMES
    assert {f"r{k}" for k in range(10)} <= set(roles)  # the most frequent are kept
    assert len(metrics) < 900


def test_tables_of_different_iterations_are_refused(tmp_path):
    tables = write(f"{tmp_path}/a", [two_groups(FULL)])
    other = write(f"{tmp_path}/b", [[episode_rows(7, 0, FULL, 1.0, 0.0)]])
    with pytest.raises(CadreError, match="not of the same iteration"):
        iteration_metrics({**tables, "credit": other["credit"]}, [], {})


def test_updates_give_their_summary_row_and_rates(tmp_path):
    step = {"model_id": "m", "kind": "step", "step": 0, "loss": 9.0}
    last = {
        "model_id": "m", "kind": "summary", "loss": 0.5, "version_before": 3, "version_after": 4,
        "num_rows": 8, "num_forward_tokens": 500, "seconds": 2.0, "sampler_gap_mean": 0.01,
    }  # fmt: skip
    skipped = {"model_id": "q", "kind": "summary", "version_after": 1, "skipped": "no signal"}
    tables = {}
    for name, rows in (("m", [step, last]), ("q", [skipped])):
        sink = TableSink(f"updates/{name}", f"{tmp_path}/{name}", UPDATES)
        tables[sink.name] = sink.ref([sink.write_part(0, rows_to_table(rows, UPDATES))])
    sink = TableSink("partition/m", f"{tmp_path}/p", PARTITION)
    tables["partition/m"] = sink.ref([sink.write_part(0, rows_to_table([{"role": "a"}] * 8, PARTITION))])
    metrics = iteration_metrics(tables, [], {"update/m": 2.5})
    assert metrics["model/m/loss"] == 0.5
    assert metrics["model/m/version"] == 4.0
    assert metrics["model/m/rows_trained"] == metrics["model/m/rows_partitioned"] == 8.0
    assert metrics["model/m/update_tokens_per_second"] == 250.0
    assert metrics["model/q/skipped"] == 1.0
    assert "model/q/loss" not in metrics
    assert metrics["time/update/m_seconds"] == metrics["time/total_seconds"] == 2.5


def test_every_row_that_a_boundary_leaves_out_is_counted_there():
    accounts = [
        Account("turns to rewards", "turn", 10, 7, {"infra_error": 2, "frozen model (judge)": 1}),
        Account("credit to partition", "turn", 10, 6, {"infra_error": 4}),
    ]
    metrics = iteration_metrics({}, accounts, {})
    assert metrics["rows/turns_to_rewards/excluded"] == 3.0
    assert metrics["rows/turns_to_rewards/frozen_model_judge"] == 1.0
    assert metrics["rows/credit_to_partition/infra_error"] == 4.0


@pytest.mark.parametrize(
    "name", ["a@b", "a(b)", "100%", "x=y", "[z]", "", "..", "a/b", "naïve", "a b", "é" * 90]
)
def test_any_name_becomes_one_valid_component_of_its_own(name):
    assert re.fullmatch(r"[\w.\-]+", slug(name))
    assert slug(name) not in (".", "..")
    assert slug(name) != slug(name + "@")


def test_a_plain_name_stays_as_it_is():
    assert slug("reader-2.b") == "reader-2.b"


def tool_turn(turns: list[dict], status: str, seconds: float) -> dict:
    """A tool's turn that follows those of an episode."""
    last = turns[-1]
    keys = {k: last[k] for k in ("group_id", "episode_id")}
    times = {"queued_at": 0.0, "started_at": 1.0, "ended_at": 1.0 + seconds}
    return {
        **keys,
        **times,
        "turn_index": len(turns),
        "event": "tool",
        "tool": "search",
        "status": status,
        "attempts": 1,
    }


def test_a_tool_says_how_often_it_is_called_and_succeeds(tmp_path):
    episodes = two_groups(FULL)
    for episode, status in zip(episodes, ("ok", "ok", "tool_error", "infra_error"), strict=True):
        episode["turns"].append(tool_turn(episode["turns"], status, 2.0))
    metrics = iteration_metrics(write(str(tmp_path), [episodes[:1], episodes[1:]]), [], {})
    assert by_name(metrics, "tool") == {
        "search": {
            "calls": 4,
            "success_rate": 0.5,
            "failed_rate": 0.25,
            "attempts_mean": 1,
            "seconds_mean": 2,
        }
    }


def with_sources(tmp_path, episodes, sources):
    """Tables in which task `t<k>` comes from `sources[k]`."""
    for episode in episodes:
        for row in (*episode["turns"], *episode["episodes"]):
            row["task_id"] = row["group_id"].partition("/")[2]
    tables = write(str(tmp_path), [episodes])
    sink = TableSink("tasks", f"{tmp_path}/tasks", TASKS)
    rows = [{"task_id": f"t{k}", "source": source} for k, source in enumerate(sources)]
    return tables | {"tasks": sink.ref([sink.write_part(0, rows_to_table(rows, TASKS))])}


def test_sources_of_tasks_stand_apart_where_there_are_several(tmp_path):
    metrics = iteration_metrics(with_sources(tmp_path / "two", two_groups(FULL), ("a", "b")), [], {})
    assert {s: v["return_std"] for s, v in by_name(metrics, "source").items()} == {
        "a": math.sqrt(0.5),
        "b": 0,
    }
    alone = iteration_metrics(with_sources(tmp_path / "one", two_groups(FULL), ("a", "a")), [], {})
    assert not by_name(alone, "source")


def test_what_credit_leaves_out_is_a_share_of_what_could_be_trained_on(tmp_path):
    episodes = two_groups(FULL)
    for episode in episodes:
        for row in episode["turns"]:
            row["trainable"] = row["role"] == "answer"
        episode["credit"][0] |= {"excluded": "the model is frozen"}
    episodes[0]["credit"][1] |= {"excluded": "infra_error", "advantage": None}
    metrics = iteration_metrics(write(str(tmp_path), [episodes]), [], {})
    assert metrics["role/answer/excluded_rate"] == metrics["rows/trainable_excluded_rate"] == 0.25
    assert "role/plan/excluded_rate" not in metrics


def test_the_entropy_of_what_was_sampled_needs_no_update(tmp_path):
    episodes = two_groups(FULL)
    for episode in episodes:
        for row in episode["turns"]:
            row["behaviour_logprobs"] = [-0.5, -1.5] if row["role"] == "plan" else None
    metrics = iteration_metrics(write(str(tmp_path), [episodes]), [], {})
    assert metrics["role/plan/sampled_entropy"] == 1.0
    assert "role/answer/sampled_entropy" not in metrics


@settings(max_examples=60)
@given(st.lists(st.lists(st.floats(-1e3, 1e3), max_size=5), min_size=1, max_size=5))
def test_statistics_do_not_depend_on_how_values_are_cut(parts):
    whole, cut = Gathered(), Gathered()
    measures = {s: Measure(pl.col("x"), s) for s in ("mean", "std", "min", "max", "count")}
    whole.add("a", pl.DataFrame({"x": [x for part in parts for x in part]}, {"x": pl.Float64}), measures)
    for part in parts:
        cut.add("a", pl.DataFrame({"x": part}, {"x": pl.Float64}), measures)
    assert cut.metrics() == pytest.approx(whole.metrics(), abs=1e-6)


@settings(max_examples=60)
@given(st.floats(-1e6, 1e6), st.integers(1, 40))
def test_equal_values_have_no_deviation_whatever_rounding_does(value, count):
    gathered = Gathered()
    for _ in range(2):
        gathered.add("a", pl.DataFrame({"x": [value] * count}), {"std": Measure(pl.col("x"), "std")})
    assert gathered.metrics() == {"a/std": 0.0}


def test_means_over_survivors_stand_beside_those_over_all_and_missing_parts_are_counted(tmp_path):
    """Four episodes of reward 1; the fourth failed: it has no reward, and the second has no f1."""
    episodes = [episode_rows(0, sample, FULL, 1.0, 0.0) for sample in range(4)]
    for row in episodes[1]["rewards"]:
        row["reward_parts"] = [{"name": "f1", "value": None}, {"name": "format", "value": 1.0}]
    for row in episodes[3]["rewards"]:
        row |= {"reward": None, "reward_parts": []}
    for row in episodes[3]["credit"]:
        row |= {"return": None, "advantage": None, "excluded": "no reward"}
    metrics = iteration_metrics(write(str(tmp_path), [episodes[:1], episodes[1:]]), [], {})
    assert (metrics["reward/mean"], metrics["reward/mean_of_asked"]) == (1.0, 0.75)
    assert (metrics["return/mean"], metrics["return/mean_of_asked"]) == (1.0, 0.75)
    assert (metrics["reward/f1/mean"], metrics["reward/f1/mean_of_asked"]) == (1.0, 0.5)
    assert metrics["reward/f1/missing"] == 1.0
    assert "reward/format/missing" not in metrics
    assert not [name for name in metrics if name.endswith("/count")]


def test_what_stages_measured_and_is_not_finite_is_counted_with_the_rest(tmp_path):
    metrics = iteration_metrics(write(str(tmp_path), [two_groups(FULL)]), [], {"rollout": math.inf})
    stages = {"advantage": {"advantage_mean/team": math.nan, "advantage_std/team": 1.0}}
    both = with_measured(metrics, stages)
    assert both["not_finite"] == metrics["not_finite"] + 1 > 1
    assert both["model/team/token_advantage_std"] == 1.0
    assert with_measured(metrics, {})["not_finite"] == metrics["not_finite"]
