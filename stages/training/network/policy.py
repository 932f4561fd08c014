"""The networks as the trainer runs them: logprobs of response tokens, or hidden states, and no more."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stages.training.network import attention, chance, lean
from stages.training.network.attention import UnsupportedAttention
from stages.training.network.layout import layout_of
from stages.training.network.logprobs import token_logprobs
from stages.training.network.packing import MicroBatch, forest_of
from workflows.errors import UsageError

Outputs = tuple[Tensor, Tensor | None, Tensor]
TRIALS = 3  # rows that packed attention is tried on


class Policy(nn.Module):
    """A causal LM whose output head sees only the positions that predict a response token.

    The gather sits in front of the model's own head, inside the model's own forward pass, so what a
    model does to its logits after the head (scaling, soft caps) is kept.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self._positions: Tensor | None = None
        self._hidden: Tensor | None = None
        model.get_output_embeddings().register_forward_pre_hook(self._gather)

    @property
    def width(self) -> int:
        """Size of a hidden state."""
        return int(self.model.get_output_embeddings().weight.shape[1])

    def forward(self, batch: MicroBatch, entropies: bool = False, whole: bool = False) -> Any:
        """Logprobs of the N response tokens at the sampler's temperatures, float32 (N,); their entropies
        if asked for; and the hidden states (N, width) that they were predicted from. With `whole`, the
        `distributions` instead.
        """
        if whole:
            return self.distributions(batch)
        self._positions = batch.positions
        try:
            logits = run(self.model, batch).logits[0]
            hidden = self._hidden
        finally:
            self._positions = self._hidden = None
        assert hidden is not None
        logprobs, entropy = token_logprobs(logits, batch.targets, batch.temperatures, entropies)
        return logprobs, entropy, hidden

    def distributions(self, batch: MicroBatch) -> Tensor:
        """Log probabilities (N, vocabulary) of all tokens at the sampler's temperatures, float32."""
        self._positions = batch.positions
        try:
            logits = run(self.model, batch).logits[0]
        finally:
            self._positions = self._hidden = None
        return (logits.float() / batch.temperatures[:, None]).log_softmax(-1)

    def _gather(self, head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (hidden,) = inputs  # (B, L, width)
        assert self._positions is not None, "the head runs inside forward() only"
        # its gradient adds up in the order of the positions, which indexing does not promise
        self._hidden = hidden.flatten(0, 1).index_select(0, self._positions)
        return (self._hidden[None],)


class Trunk(nn.Module):
    """A causal LM without its output head: what a critic of its own is built on."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: MicroBatch) -> Tensor:
        """Hidden states (N, width) from which the response tokens are predicted."""
        hidden: Tensor = run(self.model, batch).last_hidden_state
        return hidden.flatten(0, 1).index_select(0, batch.positions)


def run(model: Any, batch: MicroBatch) -> Any:
    """The model's forward pass over a micro-batch, packed or padded."""
    if batch.layout is None:
        # No mask and no position ids: causal attention over right-padded rows needs neither, and
        # passing them costs the fast attention kernel.
        return model(input_ids=batch.token_ids, use_cache=False)
    return model(
        input_ids=batch.token_ids, position_ids=batch.position_ids, use_cache=False, layout=batch.layout
    )


class Loaded(NamedTuple):
    """A network, the dtype that its checkpoint has, and how many tokens a packed row may have."""

    model: Any
    stored_dtype: torch.dtype
    window: int | None  # None: any number


def load_network(
    checkpoint: str,
    *,
    precision: str,
    packed: bool,
    head: bool = True,
    activation_checkpointing: bool = False,
    compile: bool = False,
) -> Loaded:
    """A causal LM (or, without `head`, its trunk) in the compute precision.

    Chance is off (`stages.training.network.chance`): the logprobs of the sampler, of before the step and of
    the step must be of one policy.

    Args:
        packed: whether it will run over packed rows (`stages.training.network.attention`).
        compile: fuse normalisations and feed-forward layers with torch.compile, which needs a C++
            compiler on a CPU and some seconds at the first update.

    Raises:
        UsageError: the folder holds no such model, or one that can't run over packed rows.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    compute = torch.bfloat16 if precision == "bf16" else torch.float32
    try:
        config = AutoConfig.from_pretrained(checkpoint)
        chance.switch_off(config)
        stored = config.dtype or torch.float32
        model = (AutoModelForCausalLM if head else AutoModel).from_pretrained(
            checkpoint, config=config, dtype=compute, attn_implementation="sdpa"
        )
    except (OSError, ValueError) as error:
        raise UsageError(f"can't train the model at {checkpoint!r}: {error}") from error
    model.eval()
    if activation_checkpointing:
        _checkpoint_activations(model, checkpoint)
    chance.check_none(model, checkpoint, _trial(_vocabulary(model), 0))
    window = _use_packed_attention(model, checkpoint) if packed else None
    if not compile:
        lean.save_less(model)
    else:
        for module in model.modules():
            if type(module).__name__.endswith(("RMSNorm", "LayerNorm", "MLP")):
                module.compile(dynamic=True)
    return Loaded(model, stored, window)


def _checkpoint_activations(model: Any, checkpoint: str) -> None:
    try:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    except ValueError as error:
        raise UsageError(
            f"the model at {checkpoint!r} can't compute activations twice: {error}; "
            "set activation_checkpointing = false in its trainer settings"
        ) from error
    chance.train_checkpointed(model)


def _use_packed_attention(model: Any, checkpoint: str) -> int | None:
    """Switch to packed attention, and try it: two responses to one prompt must come out as alone.

    The result is the narrowest sliding window of its layers.

    Raises:
        UsageError: the architecture mixes tokens in other ways than attention, or asks more of it.
    """
    trials = [_trial(_vocabulary(model), number) for number in range(TRIALS)]
    calls: list[int | None] = []
    try:
        with torch.no_grad():
            expected = [_alone(model, *trial) for trial in trials]
            attention.register(calls)
            model.set_attn_implementation(attention.NAME)
            gaps = [
                float((_together(model, *trial) - alone).norm() / alone.norm())
                for trial, alone in zip(trials, expected, strict=True)
            ]
    except (UnsupportedAttention, TypeError, KeyError) as error:
        raise _no_packing(checkpoint, str(error)) from error
    finally:
        attention.register()
    if len(calls) != TRIALS * model.config.get_text_config().num_hidden_layers:
        raise _no_packing(checkpoint, f"only {len(calls) // TRIALS} of its layers are of plain attention")
    # Rounding alone can move the states of an odd row far (0.3 was seen in bf16), not those of every row.
    if not min(gaps) < (0.05 if model.dtype == torch.bfloat16 else 1e-4):
        raise _no_packing(checkpoint, f"its states differ by {min(gaps):.1e} when rows stand side by side")
    return min((window for window in calls if window is not None), default=None)


def _vocabulary(model: Any) -> int:
    return int(model.config.get_text_config().vocab_size)


def _trial(vocab_size: int, number: int) -> tuple[list[int], list[list[int]]]:
    """A prompt and two responses to it, of ids from all over the vocabulary."""
    ids = [1 + (number + 1) * 7919 * k % (vocab_size - 1) for k in range(1, 11)]
    return ids[:5], [ids[5:8], ids[8:]]


def _alone(model: Any, prompt: list[int], responses: list[list[int]]) -> Tensor:
    """Last states of the prompt and of both responses, each in a row of its own."""
    one, other = (_states(model, input_ids=torch.tensor([prompt + r[:-1]])) for r in responses)
    return torch.cat([one, other[len(prompt) :]])


def _together(model: Any, prompt: list[int], responses: list[list[int]]) -> Tensor:
    """The same states, of one packed row."""
    forest = forest_of([[*prompt, *response[:-1]] for response in responses])
    states = _states(
        model,
        input_ids=torch.from_numpy(forest.token_ids)[None],
        position_ids=torch.from_numpy(forest.position_ids)[None],
        layout=layout_of(forest.segments),
    )
    one, other = (states[torch.from_numpy(places)] for places in forest.places)
    return torch.cat([one, other[len(prompt) :]])


def _states(model: Any, **inputs: Any) -> Tensor:
    out = model(use_cache=False, output_hidden_states=True, **inputs)
    states: Tensor = out.hidden_states[-1][0].float()
    return states


def _no_packing(checkpoint: str, why: str) -> UsageError:
    return UsageError(
        f"the model at {checkpoint!r} can't share prompts between rows: {why}; "
        "set shared_prefix = false in its trainer settings"
    )
