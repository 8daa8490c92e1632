"""The arrays that trainers take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

import moetap
from moetap.replay._layouts import Layout, Slots
from moetap.replay._ranks import Ranks
from moetap.replay._rows import collect

Absent = Literal["refuse", "distinct", "masked"]


@dataclass(frozen=True, eq=False)
class Targets:
    """What the routers of one rank replay: `ids` has an array for each of `layers`, int64
    [tokens][top_k], in the order of the rank's tokens. `mask`: [tokens], which of them have a
    recorded row."""

    layers: tuple[int, ...]
    ids: list[NDArray[np.int64]]
    mask: NDArray[np.bool_]

    def tensors(self, device: Any = "cpu") -> list[Any]:
        """`ids` as PyTorch's tensors, for RouterReplay.set_replay_data(). On the CPU they share memory
        with `ids`."""
        torch = import_module("torch")
        return [torch.from_numpy(ids).to(device) for ids in self.ids]


def per_layer(routes: Sequence[moetap.Routes | None], shape: moetap.ModelShape, layout: Layout,
              ranks: Ranks = Ranks(), *, absent: Absent = "refuse") -> Targets:
    """What the routers of one rank take in a forward pass over the batch.

    `routes` has each sequence's rows, or None; `shape` is the trainer's model. A token without a
    row gets distinct experts, which keep each expert's share of the work alike, and is False in the
    mask. So do padding and each sequence's last token, which no engine runs. What else has no row
    is told by `absent`: "refuse" raises RowsNotPresent, "distinct" treats it alike, and "masked"
    gives -1 to all tokens without a row, for trainers that look at the mask.

    ArgumentError or RangeError for rows of another model, rows past a sequence's end, experts that
    there are not or that repeat, and batches that the ranks cannot share.
    """
    _known_word(absent)
    layers = ranks.layers_in(shape)
    slots = ranks.slots_in(layout)
    rows = collect(routes, shape, layout, absent == "refuse")
    ids = [rows.of(slots, at, _without_row(slots, at, shape, absent))
           for at in map(shape.layer_index, layers)]
    return Targets(layers, ids, rows.source[slots] >= 0)


def stacked(routes: Sequence[moetap.Routes | None], shape: moetap.ModelShape, layout: Layout, *,
            dtype: str = "int16", all_hidden: bool = False, dense_id: int = -1,
            absent: Absent = "refuse") -> tuple[NDArray[np.integer], NDArray[np.bool_]]:
    """The batch's ids, [batch][length][layers][top_k] of Padded and [tokens][layers][top_k] of
    Packed, and the mask of the tokens that have a recorded row.

    `all_hidden` has all hidden layers, and `dense_id` in those without a router. The rest is as in
    per_layer(). RangeError for a dtype that cannot hold all that is asked for.
    """
    _known_word(absent)
    kind = np.dtype(dtype)
    lowest = min(-1 if absent == "masked" else 0, dense_id if all_hidden else 0)
    highest = max(shape.num_experts - 1, dense_id if all_hidden else 0)
    if kind.kind not in "iu" or lowest < np.iinfo(kind).min or highest > np.iinfo(kind).max:
        raise moetap.RangeError(f"{kind} cannot hold ids of {lowest} to {highest}: take another integer type")
    rows = collect(routes, shape, layout, absent == "refuse")
    slots = layout.batch_first()
    flat = slots.ravel()
    layers = shape.num_hidden_layers if all_hidden else shape.num_layers
    ids = np.full((*slots.shape, layers, shape.top_k), dense_id if all_hidden else 0, kind)
    for at, layer in enumerate(shape.moe_layers):
        of_layer = rows.of(flat, at, _without_row(flat, at, shape, absent))
        ids[..., layer if all_hidden else at, :] = np.reshape(of_layer, (*slots.shape, shape.top_k))
    return ids, rows.source[slots] >= 0


def _known_word(absent: str) -> None:
    if absent not in get_args(Absent):
        raise moetap.ArgumentError(f"absent is '{absent}'; it must be one of {', '.join(get_args(Absent))}")


def _without_row(slots: Slots, layer_index: int, shape: moetap.ModelShape, absent: Absent) -> NDArray[np.int64]:
    """The ids of slots without a row: -1, or experts in turn, so that no expert gets all of them."""
    if absent == "masked":
        return np.full((len(slots), shape.top_k), -1)
    turns = slots[:, None] * shape.top_k + np.arange(shape.top_k) + layer_index
    return turns % shape.num_experts
