"""What Cadre adds to vLLM's worker process, named to vLLM by import path (`worker_extension_cls`)."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Final

ADAPTERS: Final = "CADRE_ENGINE_ADAPTERS"  # in the environment: the engine has adapters, on a CPU
OWNER: Final = "CADRE_ENGINE_OWNER"  # in the environment: id of the process that started the engine core


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


def _end_with_owner() -> None:
    """End this process when the one that started it has ended, however that was.

    vLLM's engine core waits for word from its front end, and goes on with its weights, its cache and what
    it was computing when that was killed: a run that ended by `kill -9` would leave it behind for good.
    """
    owner = os.environ.get(OWNER)
    if owner is None or int(owner) != os.getppid():
        return  # imported elsewhere, or by a worker whose parent, the engine core, sees to it

    def watch() -> None:
        while os.getppid() == int(owner):
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, name="cadre-owner", daemon=True).start()


def _compute_adapters_together() -> None:
    if os.environ.get(ADAPTERS) == "1":
        from stages.engines.vllm.adapters import install

        install()


_compute_adapters_together()
_end_with_owner()  # as early as this module is known: loading the weights takes half a minute
