"""The update against the machine's own rate for its matrix products.

The work that counts: six times a weight for every token of the forward passes (shared prefixes once), the
output layer for tokens of responses only, nothing that is computed twice. The limit does just these products,
in the shapes of the same micro-batches; ours does them within `TrainerGroup.update`, with attention, losses,
gradient norm, AdamW and the reading of the partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.run.cluster import start_ray
from stages.tables.parquet import TableSink
from stages.training.group import TrainerGroup
from stages.training.network.packing import split
from stages.training.spec import TrainerSpec
from stages.weights.precision import trainer_precision
from stages.weights.resolve import resolve_checkpoint
from tests.benchmarks.measure import Figure, Options, column, interleave, noise_of, told, torch_dtype
from tests.benchmarks.peer import Peer, cores, peer
from tests.benchmarks.update import MODEL, Case, cases, planned
from workflows.trajectory import PARTITION

GOAL = 0.7
CASES = ("update, shared prompts", "update, qa_decompose", "update, reading")


def run(options: Options, say: Callable[[str], None]) -> list[Figure]:
    import ray

    checkpoint = resolve_checkpoint(options.checkpoint)
    spec = TrainerSpec(MODEL, MODEL, checkpoint, precision=trainer_precision("auto", 0))
    layers, head = linear_layers(checkpoint)
    arguments = {"dtype": torch_dtype(), "threads": cores(), "layers": layers, "head": head}
    start_ray("local", 0.3)
    figures = []
    try:
        group = TrainerGroup.start(spec, version=0)
        with peer("tests.benchmarks.products", arguments, Path(options.folder) / "products.log") as limit:
            bench = _Bench(group, limit, layers, head, options.folder)
            for case in cases(checkpoint):
                if case.name in CASES:
                    say(case.said)
                    figures.append(bench.figure(case, options.pairs, say))
        group.close()
    finally:
        ray.shutdown()
    return figures


def linear_layers(checkpoint: str) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """[in, out] of every linear layer that sees all tokens, and of the output layer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(checkpoint))
    head = model.get_output_embeddings()
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not head]
    return [(m.in_features, m.out_features) for m in linear], (head.in_features, head.out_features)


class _Bench:
    """Our trainer and the bare products, over the same micro-batches."""

    def __init__(
        self,
        group: TrainerGroup,
        limit: Peer,
        layers: list[tuple[int, int]],
        head: tuple[int, int],
        folder: str,
    ) -> None:
        self.group, self.limit = group, limit
        self.body = sum(into * out for into, out in layers)
        self.head = head[0] * head[1]
        self.sink = TableSink(f"partition/{MODEL}", f"{folder}/partition", PARTITION)
        self.updates, self.batches = 0, [(0, 0)]

    def figure(self, case: Case, pairs: int, say: Callable[[str], None]) -> Figure:
        mine, others = interleave(lambda _: self.ours(case), lambda _: self.theirs(), pairs, say)
        return Figure(
            case.name.replace("update", "limit"),
            "GFLOP/s",
            column(mine, "gflops"),
            column(others, "gflops"),
            goal=GOAL,
            at="least",
            against="its matrix products alone",
            notes=(
                f"{case.said}: {told(mine, 'tokens', 0)} tokens in {told(mine, 'passes', 0)} forward passes, "
                f"{told(mine, 'of_head', 0)} of them with logits, {told(mine, 'tflop', 2)} TFLOP, "
                f"{torch_dtype()}, {cores()} threads",
                f"seconds: ours {told(mine, 'seconds', 2)}, products {told(others, 'seconds', 2)}",
                noise_of(mine, others),
            ),
        )

    def ours(self, case: Case) -> dict[str, float]:
        rows = case.rows(self.updates, self.group.version)
        cut = planned(rows, self.updates, shared_prefix=True)
        part = self.sink.write_part(self.updates, cut)
        passes = next(iter(split(cut, packed=True).values()))
        self.batches = [(batch.token_ids.numel(), batch.positions.numel()) for batch in passes]
        started = time.monotonic()
        report = self.group.update(self.sink.ref([part]), self.updates)
        seconds = time.monotonic() - started
        self.updates += 1
        if report.skipped:
            raise RuntimeError(f"the update was skipped: {report.skipped}")
        tokens, of_head = (sum(side) for side in zip(*self.batches, strict=True))
        flop = 6.0 * (tokens * self.body + of_head * self.head)
        return {
            "gflops": flop / seconds / 1e9,
            "seconds": seconds,
            "tokens": float(tokens),
            "of_head": float(of_head),
            "passes": float(len(self.batches)),
            "tflop": flop / 1e12,
        }

    def theirs(self) -> dict[str, float]:
        """Of the micro-batches that ours had last."""
        answer = self.limit.ask(batches=self.batches)
        return {"gflops": answer["flop"] / answer["seconds"] / 1e9, "seconds": answer["seconds"]}
