"""The peer of the iteration benchmark: TRL's GRPOTrainer, one optimizer step per request.

Runs in a process whose path has TRL (requirements/bench.txt). The settings are the fastest that we
found for this machine: no gradient checkpointing, all completions in one generation batch, no
reference model, no logging; see `docs/results.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from tests.benchmarks.peer import claim_stdout


def main() -> None:
    """Arguments: checkpoint, rows of {prompt: messages, answers}, group_size, max_completion_tokens, …"""
    import json

    answer = claim_stdout()
    arguments = json.loads(sys.argv[1])
    trainer = make_trainer(arguments, answer)
    trainer.train()


def time_generation(trainer: Any, seen: dict[str, Any]) -> None:
    """Note how long each call that generates takes, so that the step's answer can say it."""
    import time

    generate = trainer._generate_and_score_completions

    def timed(*inputs: Any) -> Any:
        started = time.monotonic()
        result = generate(*inputs)
        seen["generation_seconds"] = time.monotonic() - started
        return result

    trainer._generate_and_score_completions = timed


def make_trainer(arguments: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> Any:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(int(arguments["threads"]))
    model = AutoModelForCausalLM.from_pretrained(
        arguments["checkpoint"], dtype=getattr(torch, arguments["dtype"]), attn_implementation="sdpa"
    )
    rows = [row for row in arguments["rows"] for _ in range(1)]
    completions = int(arguments["group_size"]) * int(arguments["tasks_per_step"])
    config = GRPOConfig(
        output_dir=arguments["folder"],
        use_cpu=True,
        bf16=bool(arguments["autocast"]),
        per_device_train_batch_size=int(arguments["micro_batch"]),
        gradient_accumulation_steps=completions // int(arguments["micro_batch"]),
        num_generations=int(arguments["group_size"]),
        max_completion_length=int(arguments["max_completion_tokens"]),
        max_steps=len(rows) // int(arguments["tasks_per_step"]),
        learning_rate=float(arguments["learning_rate"]),
        temperature=1.0,
        beta=0.0,
        scale_rewards="none",
        gradient_checkpointing=bool(arguments["gradient_checkpointing"]),
        shuffle_dataset=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=0,
        **arguments.get("extra", {}),
    )
    seen: dict[str, Any] = {}
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward_of(arguments["workflow"], seen),
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(arguments["checkpoint"]),
        callbacks=[one_step_per_line(answer, seen)],
    )
    time_generation(trainer, seen)
    return trainer


def reward_of(workflow: str, seen: dict[str, Any]) -> Callable[..., list[float]]:
    """Token F1 of what the workflow's own parser reads, and its format penalty at weight 0.2."""
    from rewards.grading import qa
    from workflows.parsers import Tag

    parser = Tag("answer")

    def reward(completions: Sequence[Any], answers: Sequence[list[str]], **_: Any) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        parsed = [parser.parse(text) for text in texts]
        seen["completion_ids"] = _["completion_ids"]
        return [
            qa.f1(str(p.value), golds) if p.valid else -0.2 for p, golds in zip(parsed, answers, strict=True)
        ]

    return reward


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
                    "step": state.global_step,
                    "completions": len(ids),
                    "tokens": sum(map(len, ids)),
                    "generation_seconds": seen["generation_seconds"],
                }
            )

    return OneStepPerLine()


if __name__ == "__main__":
    main()
