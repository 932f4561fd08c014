"""How a packed row is cut: which tokens see which, and which are computed in one call.

A packed row is a forest. Sequences that begin alike hold their common beginning once; a *segment* is a run of
tokens between two places where sequences part or end, and what continues it follows it:

    [ instructions [ prompt A [ response 1 ][ response 2 ]][ prompt B, response ]][ prompt C, response ]

A token sees the tokens of its own segment up to itself, and all of the segments that its segment
continues: token j is seen by token i where j ≤ i < `end` of j's segment. Neighbours are computed together
in *blocks*, so that short segments don't cost a kernel call each.

Legend: T tokens of the row, d head size, n tokens of a block, c tokens in front that all of them see,
m = c + n.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Short segments are joined up to this many tokens: the mask wastes work beyond it.
JOIN_TOKENS = 128
# Longest backward step of a causal segment: shorter ones waste less above the diagonal, in more calls.
CAUSAL_STEP = 320

Span = tuple[int, int]  # tokens [start, stop) of the packed row


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens [start, stop) of the packed row; the segments that continue it are [stop, end)."""

    start: int
    stop: int
    end: int

    @property
    def length(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring tokens [start, stop), attended to in one call.

    `spans` are all tokens that the block sees: what lies in front of it, which every token sees, and itself.
    `mask` (n, m) is added to the scores of the forward pass, 0 or -inf, and `hidden` (n, n) is True
    where a token does not see another of its block; None is plain causal attention without context.
    """

    start: int
    stop: int
    spans: tuple[Span, ...]
    mask: Tensor | None
    hidden: Tensor | None

    @property
    def seen(self) -> int:
        """How many tokens in front of its own every token of the block sees: c."""
        return sum(stop - start for start, stop in self.spans) - (self.stop - self.start)

    def steps(self) -> Iterator[Block]:
        """The block as smaller ones, each seeing the tokens before it: where all is causal."""
        if self.hidden is not None:
            yield self
            return
        length = self.stop - self.start
        count = -(-length // CAUSAL_STEP)
        for number in range(count):
            start, stop = (self.start + length * k // count for k in (number, number + 1))
            yield Block(start, stop, ((self.start, stop),), None, None)

    def keys(self, states: Tensor) -> Tensor:
        """The (…, m, d) keys or values that the block sees, of all (…, T, d)."""
        if len(self.spans) == 1:  # one slice, no copy
            return states[..., slice(*self.spans[0]), :]
        return torch.cat([states[..., start:stop, :] for start, stop in self.spans], dim=-2)

    def add_keys(self, total: Tensor, part: Tensor) -> None:
        """Add (…, m, d) gradients to where `keys` took them from."""
        at = 0
        for start, stop in self.spans:
            total[..., start:stop, :] += part[..., at : at + stop - start, :]
            at += stop - start


@dataclass(frozen=True, slots=True, eq=False)  # by identity: it keys a cache
class Layout:
    """A packed row of T tokens."""

    segments: tuple[Segment, ...]
    blocks: tuple[Block, ...]
    longest: int
    """The most tokens that any token sees, itself included."""

    @property
    def ends(self) -> Tensor:
        """(T,) the `end` of the segment that each token belongs to."""
        lengths = torch.tensor([segment.length for segment in self.segments])
        return torch.repeat_interleave(torch.tensor([s.end for s in self.segments]), lengths)


def layout_of(segments: Sequence[Segment]) -> Layout:
    """Cut segments, which follow each other without a gap in the order of the forest, into blocks.

    Whole trees that continue the same segments are joined until they are half as long as what they see in
    front, so that at most a third of the scores is masked away, and up to `JOIN_TOKENS` at any rate. The
    run of tokens at the foot of a larger tree is cut likewise where it sees anything in front.
    """
    blocks: list[Block] = []
    path: list[Segment] = []  # what is continued now, each larger than fits one block with its tree
    joined: list[Segment] = []  # whole trees on `path`, with all that is in them
    end = 0  # of the last of these trees

    def close() -> None:
        if joined:
            blocks.append(_block(joined[0].start, end, _context(path), joined))
            joined.clear()

    for segment in segments:
        if segment.start < end and joined:
            joined.append(segment)
            continue
        while path and path[-1].end <= segment.start:
            close()
            path.pop()
        limit = _limit(_total(path))
        if joined and segment.end - joined[0].start > limit:
            close()
        if segment.end - segment.start <= limit:
            joined.append(segment)
            end = segment.end
        else:
            close()
            blocks += _run(segment, path)
            path.append(segment)
    close()
    return Layout(tuple(segments), tuple(blocks), _longest(segments))


def _limit(seen: int) -> int:
    return max(JOIN_TOKENS, seen // 2)


def _total(path: Sequence[Segment]) -> int:
    return sum(segment.length for segment in path)


def _context(path: Sequence[Segment]) -> tuple[Span, ...]:
    return _joined(tuple((segment.start, segment.stop) for segment in path))


def _joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The spans, in order, without empty ones, and those that touch as one."""
    out: list[Span] = []
    for start, stop in spans:
        if start == stop:
            continue
        if out and out[-1][1] == start:
            out[-1] = (out[-1][0], stop)
        else:
            out.append((start, stop))
    return tuple(out)


def _run(segment: Segment, path: Sequence[Segment]) -> Iterator[Block]:
    """The tokens of one segment alone, as blocks that see the tokens before them."""
    if not path:
        yield _block(segment.start, segment.stop, (), [segment])
        return
    context, start = _context(path), segment.start
    while start < segment.stop:
        seen = _total(path) + start - segment.start
        stop = min(segment.stop, start + _limit(seen))
        before = _joined((*context, (segment.start, start)))
        yield _block(start, stop, before, [Segment(start, stop, stop)])
        start = stop


def _block(start: int, stop: int, context: tuple[Span, ...], segments: Sequence[Segment]) -> Block:
    """The tokens of these segments, which lie side by side and all see the context."""
    spans = _joined((*context, (start, stop)))
    if len(segments) == 1 and not context:
        return Block(start, stop, spans, None, None)
    lengths = torch.tensor([segment.length for segment in segments])
    ends = torch.repeat_interleave(torch.tensor([s.end - start for s in segments]), lengths)  # [n]
    place = torch.arange(stop - start)
    within = (place[None, :] <= place[:, None]) & (place[:, None] < ends[None, :])  # [n, n]
    seen = sum(last - first for first, last in context)
    # [n, m]: all of the context, then what is within
    visible = torch.cat([torch.ones((len(place), seen), dtype=torch.bool), within], dim=1)
    return Block(start, stop, spans, torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf), ~within)


def _longest(segments: Sequence[Segment]) -> int:
    longest, path = 0, list[Segment]()
    for segment in segments:
        while path and path[-1].end <= segment.start:
            path.pop()
        path.append(segment)
        longest = max(longest, _total(path))
    return longest
