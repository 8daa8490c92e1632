"""Where the tokens of each sequence stand in a trainer's batch.

A layout is a grid of slots, [length][lanes], as Megatron orders a batch. Each sequence has its
`places`. `bounds` are what context parallelism cuts: each packed sequence, or the whole length.
"""

from __future__ import annotations

from itertools import pairwise
from operator import index
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import moetap

Slots = NDArray[np.int64]


class Place(NamedTuple):
    """The slots [start, start + tokens) of a lane, where one sequence stands."""

    lane: int
    start: int
    tokens: int


class Packed:
    """Sequences one after the other, as in Megatron's PackedSeqParams and in jagged tensors.

    `cu_seqlens`: [sequences + 1] integers from 0, where each sequence's tokens begin without
    padding. `cu_seqlens_padded`: where they begin in the batch, if sequences are padded at their
    end. Padding at the end of the batch is a sequence of no tokens. ArgumentError for offsets that
    do not begin at 0, go down, or leave a sequence less room than it has tokens.
    """

    def __init__(self, cu_seqlens: Any, cu_seqlens_padded: Any = None) -> None:
        offsets = _offsets("cu_seqlens", cu_seqlens)
        padded = offsets if cu_seqlens_padded is None else _offsets("cu_seqlens_padded", cu_seqlens_padded)
        if len(padded) != len(offsets):
            raise moetap.ArgumentError(
                f"cu_seqlens_padded has {len(padded)} offsets and cu_seqlens {len(offsets)}: give both "
                "of the same sequences")
        self.length, self.lanes, self.bounds = padded[-1], 1, padded
        self.places: list[Place] = []
        for i, ((start, end), (at, to)) in enumerate(zip(pairwise(offsets), pairwise(padded), strict=True)):
            if end - start > to - at:
                raise moetap.ArgumentError(
                    f"sequence {i} has {end - start} tokens, and cu_seqlens_padded leaves room for "
                    f"{to - at}: it must not be below cu_seqlens")
            self.places.append(Place(0, at, end - start))

    def batch_first(self) -> Slots:
        """All slots, [tokens]."""
        return np.arange(self.length)


class Padded:
    """Sequences that are padded to one length, [batch][length].

    `tokens`: how many each sequence has. `starts`: where its first one stands. 0, for all or for
    each, is padding at the right; `length - tokens` is padding at the left; verl's prompts at the
    left and responses at the right are `prompt_length - prompt_tokens`. ArgumentError for a
    sequence that does not fit.
    """

    def __init__(self, tokens: Any, length: int, starts: Any = 0) -> None:
        length = index(length)
        counts = _integers("tokens", tokens)
        begins = np.broadcast_to(starts, counts.shape) if np.ndim(starts) == 0 else starts
        firsts = _integers("starts", begins)
        if len(counts) == 0 or len(firsts) != len(counts):
            raise moetap.ArgumentError(
                f"tokens of {len(counts)} sequences and {len(firsts)} starts: give one each of at least "
                "one sequence")
        self.length, self.lanes, self.bounds = length, len(counts), [0, length]
        self.places: list[Place] = []
        for i, (start, count) in enumerate(zip(firsts.tolist(), counts.tolist(), strict=True)):
            if count < 0 or start < 0 or start + count > length:
                raise moetap.ArgumentError(
                    f"sequence {i} has {count} tokens from {start} on, in a batch of length {length}: cut "
                    "the sequence, or make the batch longer")
            self.places.append(Place(i, start, count))

    def batch_first(self) -> Slots:
        """All slots, [batch][length]."""
        return np.transpose(np.reshape(np.arange(self.length * self.lanes), (self.length, self.lanes)))


Layout = Packed | Padded


def _integers(name: str, values: Any) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise TypeError(f"{name} must be integers in one dimension, not {array.dtype} {list(array.shape)}")
    return array.astype(np.int64)


def _offsets(name: str, values: Any) -> list[int]:
    offsets: list[int] = _integers(name, values).tolist()
    if len(offsets) < 2 or offsets[0] != 0:
        raise moetap.ArgumentError(
            f"{name} begins with {offsets[:2]}: it must have 0 and then the end of each sequence")
    for i, (start, end) in enumerate(pairwise(offsets)):
        if end < start:
            raise moetap.ArgumentError(f"{name} goes down from {start} to {end} at sequence {i}: it must not")
    return offsets
