"""Settings that can't work are refused before anything starts: numbers by a table, places by an attempt."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from pipeline.plan.assemble import assemble
from pipeline.run.overfit import already_solved, overfit_settings, watch
from pipeline.settings.page import parts
from pipeline.settings.reading import parse_settings
from pipeline.store.finished import MARK
from pipeline.store.folder import check_root
from stages.engines.base import EngineSpec
from stages.engines.vllm.arguments import cache_bytes, check_arguments
from stages.weights.resolve import resolve_checkpoint
from tests.support.merging import merged
from tests.support.stored_runs import write_run
from workflows.errors import UsageError

Raw = Callable[..., dict[str, Any]]
ROOT = Path(__file__).parents[2]

# by key, values that nothing can run with; keys of models are those of the model `team`
IMPOSSIBLE: dict[str, list[Any]] = {
    "ppo.betas": [[1.0, 2.0], [0.9, 1.0], [-0.1, 0.9], [0.9], [0.9, 0.9, 0.9]],
    "ppo.learning_rate": [-1e-6],
    "ppo.gradient_clip": [0, -1],
    "ppo.eps": [0, -1e-8],
    "ppo.weight_decay": [-0.1],
    "ppo.clip_low": [0, 1.1],
    "ppo.clip_high": [0],
    "ppo.dual_clip": [0.5, 1.0, -1],
    "ppo.cov_share": [0, 1.1, -0.1],
    "ppo.cov_kl_coefficient": [-1],
    "ppo.entropy_coefficient": [-0.1],
    "ppo.kl_coefficient": [-0.1],
    "ppo.kl_target": [0, -1],
    "ppo.kl_step": [0, 5, -0.1],
    "ppo.importance_cap": [0],
    "ppo.importance_floor": [-1],
    "ppo.epochs": [0, 1.5],
    "ppo.mini_batches": [0],
    "ppo.micro_batch_tokens": [0, -1],
    "ppo.total_updates": [0],
    "ppo.warmup_updates": [-1],
    "ppo.final_share": [-0.1, 1.1],
    "ppo.fixed_length": [0],
    "ppo.coherence_damping": [-0.1, 0.6],
    "ppo.coherence_window": [0],
    "ppo.max_role_share": [0, 1.1],
    "measure.window": [0],
    "trust_region.radius": [0, -0.1],
    "trust_region.top_k": [0],
    "trust_region.quantile": [-0.1, 1.1],
    "trust_region.share": [0, 1.1],
    "trust_region.penalty": [-1],
    "trust_region.stop_at": [-1],
    "trust_region.mask_above": [-1],
    "trust_region.backtrack": [-1, 21, 0.5],
    "trust_region.z": [-1],
    "trust_region.tolerance": [-1],
    "trust_region.return_range": [0],
    "trust_region.trial_tasks": [-1, 0.5],
    "trust_region.trial_samples": [0],
    "advantage.gamma": [-0.1, 1.1],
    "advantage.lam": [-0.1, 1.1],
    "advantage.turn_gamma": [1.1],
    "advantage.turn_lam": [1.1],
    "advantage.clip": [0, -1],
    "counterfactuals.tokens": [0],
    "counterfactuals.alternatives": [0],
    "counterfactuals.explore": [0, 1.1],
    "counterfactuals.permutations": [0],
    "replace.contexts": [0],
    "replace.format_contexts": [0],
    "replace.min_format": [-0.1, 1.1],
    "replace.distill_kl": [0],
    "replace.distill_passes": [0],
    "replace.distill_learning_rate": [0],
    "replace.align_iterations": [0],
    "replace.radius": [0],
    "replace.step_radius": [0],
    "replace.anchor": [0],
    "replace.settle_radius": [0],
    "replace.eps": [-0.1],
    "replace.confidence": [0.5, 1],
    "reward_model.margin": [-0.1],
    "reward_model.pairs_per_task": [0],
    "reward_model.held_out": [0, 1],
    "reward_model.context": [15],
    "reward_model.passes": [0],
    "reward_model.pairs_per_step": [0],
    "reward_model.micro_batch_tokens": [0],
    "reward_model.learning_rate": [-1],
    "reward_model.head_learning_rate": [-1],
    "reward_model.warmup_steps": [-1],
    "reward_model.weight_decay": [-0.1],
    "reward_model.gradient_clip": [0],
    "reward_model.centring": [-1],
    "reward_model.save_steps": [0],
    "cluster.nodes.count": [0, 1.5],
    "cluster.nodes.gpus": [-1, 65],
    "cluster.nodes.gpu_memory_gib": [-1],
    "cluster.nodes.memory_gib": [-1],
    "critic.learning_rate": [-1],
    "critic.value_clip": [-1],
    "critic.coefficient": [-1],
    "critic.warmup_updates": [-1],
    "rollout.group_size": [0, 1, -4],
    "rollout.temperature": [0, 0.001, 11, -1],
    "rollout.max_in_flight": [0],
    "rollout.tasks_per_shard": [0],
    "rollout.players": [0],
    "rollout.max_turns": [0],
    "rollout.call_timeout_seconds": [0, -1],
    "rollout.tool_timeout_seconds": [0],
    "rollout.episode_timeout_seconds": [0],
    "rollout.call_attempts": [0],
    "rollout.max_failed_share": [-0.1, 1.5],
    "run.max_iterations_without_signal": [0],
    "run.seed": [1.5],
    "data.tasks_per_iteration": [0, 10**6],
    "data.max_bad_share": [2],
    "data.public_tests": [-1],
    "data.limit": [0],
    "evaluate.samples": [0],
    "evaluate.tasks": [0],
    "evaluate.temperature": [-1, 11],
    "evaluate.every": [-1],
    "evaluate.patience": [-1, 1.5],
    "evaluate.max_failed_share": [2],
    "evaluate.test.tasks": [0],
    "evaluate.vote.answers": [0, 1],
    "evaluate.vote.temperature": [0, 11],
    "evaluate.vote.tokens": [0],
    "checkpoints.every": [0],
    "checkpoints.keep": [0],
    "checkpoints.redo_tolerance": [-0.1],
    "cluster.object_store_gib": [0, 0.05],
    "tracking.sample_episodes": [-1],
    "tracking.sample_every": [0],
    "tracking.alarms.iterations": [0],
    "tracking.alarms.no_signal_rate": [1.1],
    "tracking.alarms.excluded_rate": [1.1],
    "tracking.alarms.length_factor": [1],
    "tracking.alarms.length_window": [0],
    "tracking.alarms.truncated_rate": [1.1],
    "tracking.alarms.entropy_share": [1.1],
    "tracking.alarms.kl_old": [-1],
    "tracking.alarms.kl_reference": [-1],
    "tracking.alarms.sampler_gap": [-1],
    "tracking.alarms.sampler_gap_growth": [1],
    "tracking.alarms.role_share": [1.1],
    "tracking.alarms.role_odds": [1],
    "tracking.alarms.copies_cosine": [1.1],
    "tracking.alarms.peak_fall": [1.1],
    "tracking.alarms.style_leak": [-1],
    "stopping.probes": [0],
    "stopping.price": [-1],
    "stopping.budget": [0],
    "stopping.price_step": [0, 1.1],
    "stopping.epsilon": [0, 1.1],
    "stopping.coefficient": [-1],
    "models.team.max_model_len": [0, 64, 10**9],
    "models.team.kv_cache_gib": [0],
    "models.team.gpu_memory_fraction": [0, 1.1],
    "models.team.num_gpus": [-1],
    "models.team.max_batch_size": [0],
    "models.team.replicas": [0, 1.5, 257],
    "cluster.engine_restarts": [-1, 1.5],
    "models.team.trainer.ranks": [0],
    "models.team.trainer.zero_stage": [3],
    "models.team.trainer.num_threads": [-1],
    "models.team.trainer.num_gpus": [-1],
    "models.team.adapter.rank": [0],
    "models.team.adapter.alpha": [0],
    "roles.reader.format_weight": [-1],
    "roles.reader.max_response_tokens": [0, 10**6],
    "roles.reader.max_prompt_tokens": [0],
    "roles.reader.sampling.temperature": [0, 0.001, -1],
    "roles.reader.sampling.top_p": [0, 1.1],
    "roles.reader.sampling.top_k": [-1],
    "roles.reader.sampling.min_p": [-0.1, 1],
    "evaluate.top_p": [0, 1.1],
    "evaluate.top_k": [-1],
    "evaluate.min_p": [-0.1, 1],
}
POSSIBLE = {  # any finite number works
    *("ppo.cov_low", "ppo.cov_high"),  # either sign; which is above which is test_algorithm's
    *("rewards.weight", "evaluate.rewards.weight", "credit.channels.weight", "evaluate.solved_at"),
    *(f"cluster.{name}_seconds" for name in ("ray_start", "engine_start", "engine_call", "player_start")),
    *(f"cluster.{name}_seconds" for name in ("player_call", "trainer_start", "update")),
}


def setting(key: str, value: Any) -> dict[str, Any]:
    for step in reversed(key.split(".")):
        value = [{step: value}] if key == f"cluster.nodes.{step}" else {step: value}
    return dict(value)


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in IMPOSSIBLE.items() for v in values])
def test_a_number_that_nothing_can_run_with_is_refused(scripted: Raw, key: str, value: Any) -> None:
    gae = {"advantage": {"use": "gae"}, "critic": {"kind": "head"}} if key[:3] in ("adv", "cri") else {}
    with pytest.raises(UsageError) as refused:
        assemble(parse_settings(scripted(**merged(gae, setting(key, value)))))
    assert "Traceback" not in str(refused.value)
    assert key.rpartition(".")[2].removesuffix("s") in str(refused.value)


def test_every_number_of_the_settings_has_a_case() -> None:
    numbers = set()
    for part in parts():
        header = part.header.strip("[]").replace("<id>", "team").replace("<name>", "reader")
        for key, field in part.section.model_fields.items():
            kind = str(field.annotation)
            if re.search(r"\b(int|float)\b", kind) and "Section" not in kind:
                numbers.add(f"{header}.{key}")
    assert numbers - set(IMPOSSIBLE) - POSSIBLE == set()


def test_a_temperature_below_what_engines_sample_at_is_refused_in_training_alone(scripted: Raw) -> None:
    with pytest.raises(UsageError, match=r"0\.01"):
        assemble(parse_settings(scripted(rollout={"temperature": 0.001})))
    assemble(parse_settings(scripted(rollout={"temperature": 0.01}, evaluate={"temperature": 0.001})))


def test_a_cache_that_holds_no_whole_sequence_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(resolve_checkpoint("tiny"), tmp_path / "wide")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"head_dim": 32}))  # vLLM wants so many

    def vllm(**changes: Any) -> EngineSpec:
        return EngineSpec("team", "vllm", str(folder), **{"max_model_len": 256, **changes})

    spec = vllm()
    needed = cache_bytes(spec, "float32")
    assert needed > 0
    assert cache_bytes(vllm(max_model_len=257), "float32") - needed == needed // 8  # one more block of 32
    assert cache_bytes(vllm(dtype="bfloat16"), "float32") == needed // 2
    check_arguments(vllm(kv_cache_gib=needed / 2**30))
    with pytest.raises(UsageError, match=r"models\.team\.kv_cache_gib = 1e-06.*max_model_len = 256"):
        check_arguments(vllm(kv_cache_gib=1e-6))
    check_arguments(vllm(kv_cache_gib=1e-6, options={"kv_cache_memory_bytes": needed}))


@pytest.mark.parametrize("below", ["", "runs", "a/b"])
def test_a_root_that_is_a_file_or_lies_in_one_is_refused(scripted: Raw, tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    root = str(file / below) if below else str(file)
    with pytest.raises(UsageError) as refused:
        assemble(parse_settings(scripted(run={"root": root})))
    assert str(refused.value).startswith(f"run.root = {root!r}")
    assert "file" in str(refused.value)
    assert file.read_text() == "x"


@pytest.mark.parametrize("root", ["/proc/cadre/runs", "/sys/runs", "x" * 300])
def test_a_root_that_can_not_be_written_is_refused(root: str) -> None:
    with pytest.raises(UsageError, match=r"run\.root = .*can't be written \("):
        check_root(root, "qa")


@pytest.mark.skipif(os.geteuid() == 0, reason="every folder can be written by root")
def test_a_folder_of_another_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="can't be written"):
        check_root(str(tmp_path))


def test_the_name_of_a_run_that_is_a_file_is_refused_and_nothing_stays_behind(tmp_path: Path) -> None:
    (tmp_path / "qa").write_text("x")
    with pytest.raises(UsageError, match="can't hold the run"):
        check_root(str(tmp_path), "qa")
    check_root(str(tmp_path / "new" / "deep"), "qa")
    assert [path.name for path in tmp_path.iterdir()] == ["qa"]


@pytest.mark.parametrize("verb", [["check"], ["run", "iteration"], ["run", "train", "-n", "1"]])
def test_a_root_that_is_a_file_is_one_message(verb: list[str], scripted: Raw, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("x")
    config = tmp_path / "p.toml"
    config.write_text(tomlkit.dumps(scripted()))
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *verb, "--config", str(config)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: run.root = ")
    assert done.stderr.count("\n") == 1


def test_a_group_that_is_solved_is_not_trained_again(scripted: Raw) -> None:
    settings = overfit_settings(parse_settings(scripted()))
    run = write_run(settings)
    solved = watch(settings.evaluate, settings.rewards)
    assert not solved.is_solved_by(run)
    for index, mean in enumerate((0.2, 1.0)):
        metrics = f'{{"metrics": {{"reward/token_f1/mean": {mean}}}}}'
        run.iteration(index).folder.write_text(MARK, metrics)
        assert solved.is_solved_by(run) == (mean == 1.0)
    assert "in iteration 1" in already_solved(run, solved)
    run.iteration(2).folder.write_text("sample/begun.json", "{}")  # an unfinished iteration is finished first
    assert not solved.is_solved_by(run)
