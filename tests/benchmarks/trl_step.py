"""The peer of the iteration benchmark: TRL's GRPOTrainer, one optimizer step per request.

Runs in a process whose path has TRL (requirements/bench.txt). The settings are the fastest that we
found for this machine: no gradient checkpointing, all completions in one generation batch, no
reference model, no logging; see `docs/results.md`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.benchmarks.peer import claim_stdout


def main() -> None:
    answer = claim_stdout()
    make_trainer(json.loads(sys.argv[1]), answer).train()


def make_trainer(arguments: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> Any:
    """A trainer whose steps wait for requests. `arguments` is what `iteration.py` makes."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(arguments["threads"])
    model = AutoModelForCausalLM.from_pretrained(
        arguments["checkpoint"], dtype=getattr(torch, arguments["dtype"]), attn_implementation="sdpa"
    )
    rows, micro_batch = arguments["rows"], arguments["micro_batch"]
    completions = arguments["group_size"] * arguments["tasks_per_step"]
    config = GRPOConfig(
        output_dir=arguments["folder"],
        use_cpu=True,
        bf16=arguments["autocast"],
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=completions // micro_batch,
        num_generations=arguments["group_size"],
        max_completion_length=arguments["max_completion_tokens"],
        max_steps=len(rows) // arguments["tasks_per_step"],
        learning_rate=arguments["learning_rate"],
        lr_scheduler_type="constant",
        weight_decay=0.01,
        temperature=1.0,
        beta=0.0,  # no reference model: ours has none either
        scale_rewards="none",
        gradient_checkpointing=arguments["gradient_checkpointing"],
        shuffle_dataset=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=0,
    )
    seen: dict[str, Any] = {}
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward_of(arguments["format_weight"], seen),
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(arguments["checkpoint"]),
        callbacks=[one_step_per_line(answer, seen)],
    )
    time_generation(trainer, seen)
    return trainer


def reward_of(format_weight: float, seen: dict[str, Any]) -> Callable[..., list[float]]:
    """Token F1 of what the parser of `single` reads, 0 where it refuses, with the format penalty there."""
    from rewards.grading import qa
    from workflows.loading import load_workflow

    parser = load_workflow("single", {}).roles["solver"].parser

    def one(text: str, golds: list[str]) -> float:
        parsed = parser.parse(text)
        return qa.f1(str(parsed.value), golds) if parsed.valid else -format_weight

    def reward(
        prompts: Sequence[Any], completions: Sequence[Any], answers: Sequence[list[str]], **columns: Any
    ) -> list[float]:
        seen["completion_ids"] = columns["completion_ids"]
        texts = [completion[0]["content"] for completion in completions]
        return [one(text, golds) for text, golds in zip(texts, answers, strict=True)]

    return reward


def time_generation(trainer: Any, seen: dict[str, Any]) -> None:
    """Note how long each batch's sampling and rewards take, so that the step's answer can say it."""
    generate = trainer._generate_and_score_completions

    def timed(inputs: Any) -> Any:
        started = time.monotonic()
        batch = generate(inputs)
        seen["generation_seconds"] = time.monotonic() - started
        seen["prompt_tokens"] = int(batch["prompt_mask"].sum())
        return batch

    trainer._generate_and_score_completions = timed


def one_step_per_line(answer: Callable[[dict[str, Any]], None], seen: dict[str, Any]) -> Any:
    """A callback that lets a step begin when a line comes in, and answers when it has ended."""
    from transformers import TrainerCallback

    class OneStepPerLine(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 0:
                answer({"ready": True})
            if not sys.stdin.readline():
                sys.exit(0)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            ids = seen["completion_ids"]
            answer(
                {
                    "completions": len(ids),
                    "tokens": sum(map(len, ids)),
                    "prompt_tokens": seen["prompt_tokens"],
                    "generation_seconds": seen["generation_seconds"],
                }
            )

    return OneStepPerLine()


if __name__ == "__main__":
    main()
