"""Which tokens and layers one rank of a trainer has, as Megatron cuts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

import moetap
from moetap.replay._layouts import Layout, Slots


@dataclass(frozen=True)
class Ranks:
    """A rank's place in each group of a trainer. RangeError for a rank outside its group.

    `layers`: the hidden layers whose routers the rank has, from 0, in the order of its routers;
    None for all MoE layers. Tensor parallelism alone gives each rank all tokens. With
    `sequence_parallel` it has the tp_rank-th share of them. Context parallelism gives it two
    chunks of each sequence: the cp_rank-th from its start and from its end.
    """

    tp_size: int = 1
    tp_rank: int = 0
    sequence_parallel: bool = False
    cp_size: int = 1
    cp_rank: int = 0
    layers: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name, rank, size in (("tp", self.tp_rank, self.tp_size), ("cp", self.cp_rank, self.cp_size)):
            if not 0 <= rank < size:
                raise moetap.RangeError(
                    f"{name}_rank is {rank} and {name}_size {size}: ranks are 0 to {name}_size - 1")

    def layers_in(self, shape: moetap.ModelShape) -> tuple[int, ...]:
        """The rank's layers. ArgumentError for one without a router, or one that is named twice."""
        layers = tuple(shape.moe_layers if self.layers is None else self.layers)
        for layer in layers:
            if layer not in shape.moe_layers:
                raise moetap.ArgumentError(
                    f"layer {layer} has no router; the MoE layers are {list(shape.moe_layers)}, from 0")
            if layers.count(layer) > 1:
                raise moetap.ArgumentError(f"layer {layer} is in layers more than once: name each router's once")
        return layers

    def slots_in(self, layout: Layout) -> Slots:
        """The rank's slots, in the order in which its routers see their tokens."""
        slots = np.reshape(np.arange(layout.length * layout.lanes), (layout.length, layout.lanes))
        slots = self._context_share(slots, layout.bounds)
        return self._sequence_share(slots).ravel()

    def _context_share(self, slots: Slots, bounds: list[int]) -> Slots:
        chunks = 2 * self.cp_size
        if self.cp_size == 1:
            return slots
        parts: list[Slots] = []
        for i, (start, end) in enumerate(pairwise(bounds)):
            size, rest = divmod(end - start, chunks)
            if rest:
                raise moetap.ArgumentError(
                    f"part {i} of the batch has {end - start} tokens, which cp_size {self.cp_size} cannot cut "
                    f"into {chunks} chunks: pad it to {(size + 1) * chunks}")
            parts += [slots[start + chunk * size:start + (chunk + 1) * size]
                      for chunk in (self.cp_rank, chunks - 1 - self.cp_rank)]
        return np.concatenate(parts)

    def _sequence_share(self, slots: Slots) -> Slots:
        if not self.sequence_parallel:
            return slots
        share, rest = divmod(len(slots), self.tp_size)
        if rest:
            raise moetap.ArgumentError(
                f"{len(slots)} tokens, which tp_size {self.tp_size} cannot share with sequence_parallel: pad "
                f"them to {(share + 1) * self.tp_size}")
        return slots[self.tp_rank * share:(self.tp_rank + 1) * share]
