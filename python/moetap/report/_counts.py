"""How often each expert was picked in each layer. Rows that are not present are never counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from moetap._errors import ArgumentError
from moetap.report._files import STATES, Ids, RouteFile, shown
from moetap.report._model import Layers, Model, require_experts
from moetap.report._runs import Run

Flags = npt.NDArray[np.bool_]

PARTLY = "-1 in some layers"  # a row that is missing as a whole, as from_npy() takes it
_REASONS = (*STATES, PARTLY)
_KEPT_GAPS = 20  # gaps of a request that are named; the others are counted


@dataclass(frozen=True)
class Gap:
    """Rows [start, end) of a request that are not present, and why."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True)
class Request:
    name: str
    rows: int
    present: int
    reasons: dict[str, int]  # rows that are not present, by reason
    gaps: tuple[Gap, ...]  # the first of them
    other_gaps: int

    @property
    def missing(self) -> int:
        return self.rows - self.present


@dataclass(frozen=True)
class RunCounts:
    name: str
    requests: tuple[Request, ...]
    picks: Ids  # [num_layers][num_experts]

    @property
    def rows(self) -> int:
        return sum(request.rows for request in self.requests)

    @property
    def present(self) -> int:
        return sum(request.present for request in self.requests)


@dataclass(frozen=True)
class Block:
    """Rows of a file from position `start` on: ids of the MoE layers, and which are present."""

    start: int
    ids: Ids  # [n][num_layers][top_k]
    present: Flags  # [n]


def checked_blocks(
    file: RouteFile, layers: Layers, model: Model, rows: int | None = None
) -> Iterable[Block]:
    """The file's rows. ArgumentError for ids that the model's router cannot have picked."""
    for start, ids in file.blocks(rows):
        _require_dense(file, start, ids, layers, model)
        require_experts(file, start, ids, layers.moe, model.num_experts, model.experts_from)
        ids = ids[:, list(layers.moe)] if layers.dense else ids
        if not model.repeated_experts:
            _require_distinct(file, start, ids, layers)
        present = np.asarray((ids >= 0).all(axis=(1, 2)))
        _require_states(file, start, ids, present)
        yield Block(start, ids, present)


def count_picks(ids: Ids, num_experts: int) -> Ids:
    """Picks of each expert, [layers][num_experts], of present rows [n][layers][top_k]."""
    num_layers = ids.shape[1]
    cells = ids + (np.arange(num_layers) * num_experts)[:, None]
    counts = np.bincount(cells.ravel(), minlength=num_layers * num_experts)
    return counts.reshape(num_layers, num_experts)


def count_request(file: RouteFile, layers: Layers, model: Model) -> tuple[Request, Ids]:
    """What a file's rows are, and the picks of those that are present."""
    picks = np.zeros((model.num_layers, model.num_experts), np.int64)
    state = np.zeros(file.rows, np.uint8)  # an index of _REASONS
    for block in checked_blocks(file, layers, model):
        picks += count_picks(block.ids[block.present], model.num_experts)
        here = slice(block.start, block.start + len(block.ids))
        any_pick = (block.ids >= 0).any(axis=(1, 2))
        state[here] = np.where(block.present, 0, np.where(any_pick, len(STATES), 1))
    if file.states is not None:
        state = np.where((state == 1), file.states, state)
    return _request(file.request, state), picks


def count_run(
    run: Run, layers: Layers, model: Model, seen: Callable[[Request, Ids], None]
) -> RunCounts:
    """Reads all of a run's files; seen() gets each request with its own picks, in their order.

    ArgumentError if none of the run's rows is present.
    """
    total = np.zeros((model.num_layers, model.num_experts), np.int64)
    requests: list[Request] = []
    for file in run.files:
        request, picks = count_request(file, layers, model)
        total += picks
        requests.append(request)
        seen(request, picks)
    counts = RunCounts(run.name, tuple(requests), total)
    if counts.present == 0:
        raise ArgumentError(
            f"run {shown(run.name)!r}: none of its {counts.rows} rows is present: leave it out"
        )
    return counts


def _request(name: str, state: npt.NDArray[np.uint8]) -> Request:
    edges = np.flatnonzero(np.diff(state)) + 1
    starts = np.concatenate(([0], edges)) if state.size else edges
    ends = np.concatenate((edges, [state.size])) if state.size else edges
    missing = state[starts] != 0
    starts, ends = starts[missing], ends[missing]
    gaps = tuple(
        Gap(int(start), int(end), _REASONS[state[start]])
        for start, end in zip(starts[:_KEPT_GAPS], ends[:_KEPT_GAPS], strict=True)
    )
    totals = np.bincount(state, minlength=len(_REASONS))
    reasons = {word: int(n) for word, n in zip(_REASONS[1:], totals[1:], strict=True) if n}
    present = int(totals[0])
    return Request(name, state.size, present, reasons, gaps, len(starts) - len(gaps))


def _require_dense(file: RouteFile, start: int, ids: Ids, layers: Layers, model: Model) -> None:
    if not layers.dense:
        return
    of_dense = ids[:, list(layers.dense)]
    bad = of_dense != model.dense_id
    if bad.any():
        row, layer, k = (int(i) for i in np.argwhere(bad)[0])
        raise ArgumentError(
            f"{shown(file.path)}: id {of_dense[row, layer, k]} in row {start + row}, layer "
            f"{layers.dense[layer]}, which has no router, and {model.dense_id} was declared for "
            f"such layers: give the configuration of the model that wrote the file, or its "
            f"--dense-id"
        )


def _require_distinct(file: RouteFile, start: int, ids: Ids, layers: Layers) -> None:
    ordered = np.sort(ids.astype(np.int32), axis=-1)
    repeated = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
    if repeated.any():
        row, layer, k = (int(i) for i in np.argwhere(repeated)[0])
        raise ArgumentError(
            f"{shown(file.path)}: expert {ordered[row, layer, k]} comes twice in row {start + row}, "
            f"layer {layers.moe[layer]}; a router picks distinct experts. If this model's repeats "
            f"them on purpose, give --repeated-experts; if the layer has no router, --dense-id "
            f"{ordered[row, layer, k]}"
        )


def _require_states(file: RouteFile, start: int, ids: Ids, present: Flags) -> None:
    if file.states is None:
        return
    said = file.states[start : start + len(ids)] == 0
    wrong = np.flatnonzero((said & ~present) | (~said & (ids >= 0).any(axis=(1, 2))))
    if wrong.size:
        row = int(wrong[0])
        what = "all ids" if present[row] else "-1"
        raise ArgumentError(
            f"{shown(file.path)}: row {start + row} has {what}, and its states file says "
            f"{STATES[file.states[start + row]]}: the two files are not of one dump. Dump both again"
        )
