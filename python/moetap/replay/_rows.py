"""The rows of a batch's sequences, and which slot of its layout has which of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import moetap
from moetap.replay._layouts import Layout, Place, Slots


@dataclass(frozen=True, eq=False)
class Rows:
    """`ids`: [rows + 1][layers][top_k], one sequence after the other, and a row of -1 at the end.
    `source`: for each slot the index of its row, or -1 where none is present."""

    ids: NDArray[np.int32]
    source: Slots

    def of(self, slots: Slots, layer_index: int, others: NDArray[np.int64]) -> NDArray[np.int64]:
        """These slots' ids in a layer, [slots][top_k]: `others` where a slot has no row."""
        rows = self.source[slots]
        return np.where((rows < 0)[:, None], others, self.ids[rows, layer_index])


def collect(routes: Sequence[moetap.Routes | None], shape: moetap.ModelShape, layout: Layout,
            require: bool) -> Rows:
    """Places each sequence's rows. With `require`, RowsNotPresent where a token before a sequence's
    last has none."""
    if len(routes) != len(layout.places):
        raise moetap.ArgumentError(
            f"routes of {len(routes)} sequences, and a layout of {len(layout.places)}: give one for each, None "
            "where a sequence has no rows")
    source = np.full((layout.length, layout.lanes), -1)
    parts: list[NDArray[np.int32]] = []
    first = 0
    for i, (one, place) in enumerate(zip(routes, layout.places, strict=True)):
        if one is not None:
            _check(i, one, shape, place)
            parts.append(_ids(i, one, shape))
            begin = place.start + one.start
            indices = np.arange(first, first + len(one))
            source[begin:begin + len(one), place.lane] = np.where(_present(one), indices, -1)
            first += len(one)
        if require:
            _require(i, one, place, source[place.start:place.start + place.tokens, place.lane])
    parts.append(np.full((1, shape.num_layers, shape.top_k), -1, np.int32))
    return Rows(np.concatenate(parts), source.ravel())


def _present(routes: moetap.Routes) -> NDArray[np.bool_]:
    return np.equal(routes.states, int(moetap.RowState.present))


def _check(i: int, routes: moetap.Routes, shape: moetap.ModelShape, place: Place) -> None:
    difference = shape.with_weights(None).difference(routes.shape.with_weights(None))
    if difference:
        raise moetap.ArgumentError(
            f"sequence {i} has routes of another model than the trainer's: {difference} (the trainer's first). "
            "Take rows of this model, with the layers that `shape` names")
    if routes.end > place.tokens:
        raise moetap.ArgumentError(
            f"sequence {i} has {place.tokens} tokens, and rows of positions [{routes.start}, {routes.end}): "
            "give the rows of this sequence, or cut them with take(tokens=...)")


def _ids(i: int, routes: moetap.Routes, shape: moetap.ModelShape) -> NDArray[np.int32]:
    """Ids [rows][layers][top_k], of which those of present rows are what a router can pick."""
    ids = np.asarray(routes.to_ids("int32"), np.int32)
    bad = ids >= shape.num_experts
    if bad.any():
        row, layer, column = np.argwhere(bad)[0]
        raise moetap.RangeError(
            f"sequence {i}, position {routes.start + row}, layer {shape.moe_layers[layer]}: expert "
            f"{ids[row, layer, column]} of {shape.num_experts}. Rows of another model, or damaged ones")
    if shape.top_k > 1 and not shape.repeats_experts:
        ordered = np.sort(ids[_present(routes)], axis=2)
        if (ordered[..., 1:] == ordered[..., :-1]).any():
            raise moetap.ArgumentError(
                f"sequence {i} has a row that names an expert twice, as memory does that was never written. A model "
                "that repeats experts is declared by with_repeated_experts()")
    return ids


def _require(i: int, routes: moetap.Routes | None, place: Place, rows: Slots) -> None:
    absent = np.flatnonzero(rows[:-1] < 0)
    if len(absent) == 0:
        return
    had = "no routes" if routes is None else repr(routes)
    raise moetap.RowsNotPresent(
        f"sequence {i} has {place.tokens} tokens, and no row present for {len(absent)} of those before its "
        f"last, the first at position {absent[0]}; it was given {had}. Leave the sequence out, or say by "
        "absent='distinct' or 'masked' what these tokens get")
