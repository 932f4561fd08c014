"""What Cadre adds to vLLM's worker process, named to vLLM by import path (`worker_extension_cls`)."""

from __future__ import annotations

from typing import Any


class CadreWorker:
    """Mixed into vLLM's worker class: reached by `collective_rpc`."""

    model_runner: Any
    reload_weights: Any

    def swap_weights(self, folder: str) -> None:
        """Reload weights in place, the output layer of tied models included.

        vLLM 0.32 on CPU computes the output layer from a packed copy of its matrix. A reload renews the
        copy when the files hold such a matrix; models that tie it to the embedding have none, and would
        go on with their old output layer over new everything else.
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
        from vllm.platforms import current_platform

        self.reload_weights(weights_path=folder)
        if current_platform.is_cpu():
            for module in self.model_runner.get_model().modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)
