"""How a packed row is cut: which tokens see which, and which are computed in one call.

A packed row is cut into *segments*. A prompt that several responses share is a segment by itself, each
of those responses is a segment that also sees it, and a prompt with one response is one segment:

    [ prompt A | response 1 | response 2 | prompt B + response | prompt C + response ]

A token sees its segment up to itself and, in a response, the whole prompt in front. Neighbours are computed
together in *blocks*, so that short segments don't cost a kernel call each.

Legend: T tokens of the row, d head size, n tokens of a block, c tokens of the prompt that it sees, m = c + n.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Segments without a shared prompt are joined up to this many tokens: the mask wastes work beyond it.
JOIN_TOKENS = 128
# Longest backward step of a causal segment: shorter ones waste less above the diagonal, in more calls.
CAUSAL_STEP = 320


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens [start, stop) of the packed row, which also see the prompt [context, context_stop)."""

    start: int
    stop: int
    context: int = 0
    context_stop: int = 0

    @property
    def length(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive segments with the same context, attended to in one call.

    `mask` (n, m) is added to the scores of the forward pass, 0 or -inf, and `hidden` (n, n) is True
    where a token does not see another of its block; None is plain causal attention without context.
    """

    start: int
    stop: int
    context: int
    context_stop: int
    mask: Tensor | None
    hidden: Tensor | None

    def steps(self) -> Iterator[Block]:
        """The block as smaller ones, each seeing the tokens before it: where all is causal."""
        if self.hidden is not None:
            yield self
            return
        length = self.stop - self.start
        count = -(-length // CAUSAL_STEP)
        for number in range(count):
            start, stop = (self.start + length * k // count for k in (number, number + 1))
            yield Block(start, stop, self.start, start, None, None)

    def keys(self, states: Tensor) -> Tensor:
        """The (…, m, d) keys or values that the block sees, of all (…, T, d)."""
        here = states[..., self.start : self.stop, :]
        if self.context == self.context_stop:
            return here
        if self.context_stop == self.start:  # the prompt lies right in front: one slice, no copy
            return states[..., self.context : self.stop, :]
        return torch.cat([states[..., self.context : self.context_stop, :], here], dim=-2)

    def add_keys(self, total: Tensor, part: Tensor) -> None:
        """Add (…, m, d) gradients to where `keys` took them from."""
        seen = self.context_stop - self.context
        total[..., self.start : self.stop, :] += part[..., seen:, :]
        if seen:
            total[..., self.context : self.context_stop, :] += part[..., :seen, :]


@dataclass(frozen=True, slots=True, eq=False)  # by identity: it keys a cache
class Layout:
    """A packed row of T tokens."""

    segments: tuple[Segment, ...]
    blocks: tuple[Block, ...]

    @property
    def longest(self) -> int:
        """The most tokens that any token sees, itself included."""
        return max(s.length + s.context_stop - s.context for s in self.segments)


def layout_of(segments: Sequence[Segment]) -> Layout:
    """Cut segments, which follow each other without a gap, into blocks.

    Responses of one prompt are joined until they are half as long as the prompt, so that at most a
    third of the scores is masked away; segments without a prompt until `JOIN_TOKENS`.
    """
    blocks: list[Block] = []
    pending: list[Segment] = []
    for segment in segments:
        if pending:
            first = pending[0]
            seen = first.context_stop - first.context
            limit = max(JOIN_TOKENS, seen // 2)
            same = (segment.context, segment.context_stop) == (first.context, first.context_stop)
            if not same or segment.stop - first.start > limit:
                blocks.append(_block(pending))
                pending = []
        pending.append(segment)
    if pending:
        blocks.append(_block(pending))
    return Layout(tuple(segments), tuple(blocks))


def _block(segments: Sequence[Segment]) -> Block:
    first, last = segments[0], segments[-1]
    seen = first.context_stop - first.context
    place = (first.start, last.stop, first.context, first.context_stop)
    if len(segments) == 1 and not seen:
        return Block(*place, None, None)
    lengths = torch.tensor([segment.length for segment in segments])
    number = torch.repeat_interleave(torch.arange(len(segments)), lengths)  # [n] the segment of each token
    within = (number[:, None] == number[None, :]).tril()  # [n, n] the same segment, and not later
    # [n, m]: all of the prompt, then what is within
    visible = torch.cat([torch.ones((len(number), seen), dtype=torch.bool), within], dim=1)
    return Block(*place, torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf), ~within)
